"""A stretch of a scan in C++ (scan.cpp), for keys without weights on the CPU: the same as `chunks`, faster."""

import ctypes

from torch import Tensor

from ...errors import UnsupportedError
from ..linear.linear_config import OutputGrads, Stretch
from ..linear.scan_state import ScanState
from .building import call, make_integers

CHUNK = 16  # positions: the state stays in the nearest cache, so that chunks can be short


def attend(x: Tensor, keys: Stretch, state: ScanState, tops: Tensor) -> Tensor:
    """See `chunks.attend`."""
    y, v = _keys_without_weights(keys)
    totals = x.new_empty(*x.shape[:3], 1)
    _call("attend", _contiguous_rows(x), y, v, state, tops, totals)
    return totals


def backward_queries(grads: OutputGrads, keys: Stretch, state: ScanState) -> tuple[Tensor, list[Tensor | None]]:
    """See `chunks.backward_queries`."""
    y, v = _keys_without_weights(keys)
    grad_x = y.new_empty(*grads.top.shape[:3], y.shape[2])
    _call("backward_queries", _contiguous_rows(grads.top), grads.total, y, v, state, grad_x)
    return grad_x, [None]


def backward_keys(
    x: Tensor, keys: Stretch, grads: OutputGrads, grad_state: ScanState, references: list[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """See `chunks.backward_keys`."""
    y, v = _keys_without_weights(keys)
    grad_y, grad_v = y.new_empty(y.shape), v.new_empty(v.shape)
    rows, grad_top = _contiguous_rows(x), _contiguous_rows(grads.top)
    _call("backward_keys", rows, y, v, grad_top, grads.total, grad_state, grad_y, grad_v)
    return grad_y, grad_v


def _keys_without_weights(keys: Stretch) -> tuple[Tensor, Tensor]:
    if keys.a is not None:
        raise UnsupportedError("the C++ kernel does not support key weights")
    return _contiguous_rows(keys.y), _contiguous_rows(keys.v)


def _contiguous_rows(x: Tensor) -> Tensor:
    """With each row in one piece; strides between rows are the kernel's business."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _call(name: str, *arguments: Tensor | ScanState | None) -> None:
    """Call a function of the library with tensors ``[Bh, G, L, ..]`` or ``[Bh, L, ..]`` in its order."""
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
    pointers = (ctypes.c_void_p * len(addresses))(*addresses)
    sizes = make_integers(heads, group, length, features, values, CHUNK)
    call("scan", name, state.kv, pointers, make_integers(*strides), sizes)
