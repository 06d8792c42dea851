"""A stretch of a scan in C++ (scan.cpp), for keys without weights on the CPU: the same as `chunks`, faster."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ...errors import UnsupportedError
from ..linear.scan_state import ScanState
from .building import load_library

CHUNK = 16  # positions: the state stays in the nearest cache, so that chunks can be short


def why_no_native() -> str | None:
    """Why it cannot run here; None when it can. Builds it, the first time."""
    return load_library("scan")[1]


def attend(x: Tensor, y: Tensor, v: Tensor, a: Tensor | None, state: ScanState, tops: Tensor) -> Tensor:
    """See `chunks.attend`."""
    _reject_weights(a)
    x, y, v = _contiguous_rows(x), _contiguous_rows(y), _contiguous_rows(v)
    totals = x.new_empty(*x.shape[:3], 1)
    _call("attend", x, y, v, state, tops, totals)
    return totals


def backward_queries(
    grad_top: Tensor, grad_total: Tensor | None, y: Tensor, v: Tensor, a: Tensor | None, state: ScanState
) -> tuple[Tensor, list[Tensor | None]]:
    """See `chunks.by_queries`."""
    _reject_weights(a)
    grad_top, y, v = _contiguous_rows(grad_top), _contiguous_rows(y), _contiguous_rows(v)
    grad_x = y.new_empty(*grad_top.shape[:3], y.shape[2])
    _call("by_queries", grad_top, grad_total, y, v, state, grad_x)
    return grad_x, [None]


def backward_keys(
    x: Tensor,
    y: Tensor,
    v: Tensor,
    a: Tensor | None,
    grad_top: Tensor,
    grad_total: Tensor | None,
    grad_state: ScanState,
    references: list[Tensor | None],
) -> tuple[Tensor, Tensor]:
    """See `chunks.by_keys`."""
    _reject_weights(a)
    x, y, v, grad_top = _contiguous_rows(x), _contiguous_rows(y), _contiguous_rows(v), _contiguous_rows(grad_top)
    grad_y, grad_v = y.new_empty(y.shape), v.new_empty(v.shape)
    _call("by_keys", x, y, v, grad_top, grad_total, grad_state, grad_y, grad_v)
    return grad_y, grad_v


def _reject_weights(a: Tensor | None) -> None:
    if a is not None:
        raise UnsupportedError("the C++ kernel does not support key weights")


def _contiguous_rows(x: Tensor) -> Tensor:
    """With each row in one piece; strides between rows are the kernel's business."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _call(name: str, *arguments: Tensor | ScanState | None) -> None:
    """Call a function of the library with tensors ``[Bh, G, L, ..]`` or ``[Bh, L, ..]`` in its order."""
    cdll, reason = load_library("scan")
    if cdll is None:
        raise UnsupportedError(f"no kernel in C++: {reason}")
    addresses: list[int | None] = []
    strides: list[int] = []
    state, group, length = None, 1, 0
    for x in arguments:
        if isinstance(x, ScanState):
            state = x
            x.kv, x.z = x.kv.contiguous(), x.z.contiguous()
            addresses += [x.kv.data_ptr(), x.z.data_ptr()]
        elif x is None:
            addresses.append(None)
            strides += [0, 0, 0]
        else:
            addresses.append(x.data_ptr())
            strides += x.stride()[:3] if x.ndim == 4 else (x.stride(0), 0, x.stride(1))
            group, length = (x.shape[1] if x.ndim == 4 else group), x.shape[-2]
    assert state is not None
    heads, features, values = state.kv.shape
    sizes = (ctypes.c_int64 * 6)(heads, group, length, features, values, CHUNK)
    run = getattr(cdll, f"{name}_{'double' if state.kv.dtype == torch.float64 else 'float'}")
    run(
        (ctypes.c_void_p * len(addresses))(*addresses),
        (ctypes.c_int64 * len(strides))(*strides),
        sizes,
        ctypes.c_int64(torch.get_num_threads()),
    )
