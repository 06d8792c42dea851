"""A stretch of a scan in C++ (scan.cpp), for keys without weights on the CPU: the same as `chunks`, faster."""

import torch.nn.functional as F
from torch import Tensor

from ...errors import UnsupportedError
from ..linear.linear_config import OutputGrads, Stretch
from ..linear.scan_state import ScanState
from .building import call, make_integers

CHUNK = 16  # positions: the state stays in the nearest cache, so that chunks can be short
PADDING = 16  # the state's rows and columns are a multiple of it, as it is of any vector's width


def attend(x: Tensor, keys: Stretch, state: ScanState, tops: Tensor) -> Tensor:
    """See `chunks.attend`."""
    y, v = _keys_without_weights(keys)
    totals = x.new_empty(*x.shape[:3], 1)
    _call("attend", state, _contiguous_rows(x), y, v, tops, totals)
    return totals


def backward_queries(grads: OutputGrads, keys: Stretch, state: ScanState) -> tuple[Tensor, list[Tensor | None]]:
    """See `chunks.backward_queries`."""
    y, v = _keys_without_weights(keys)
    grad_x = y.new_empty(*grads.top.shape[:3], y.shape[2])
    _call("backward_queries", state, _contiguous_rows(grads.top), grads.total, y, v, grad_x, transposed=True)
    return grad_x, [None]


def backward_keys(
    x: Tensor, keys: Stretch, grads: OutputGrads, grad_state: ScanState, references: list[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """See `chunks.backward_keys`."""
    y, v = _keys_without_weights(keys)
    grad_y, grad_v = y.new_empty(y.shape), v.new_empty(v.shape)
    rows, grad_top = _contiguous_rows(x), _contiguous_rows(grads.top)
    _call("backward_keys", grad_state, rows, y, v, grad_top, grads.total, grad_y, grad_v)
    return grad_y, grad_v


def _keys_without_weights(keys: Stretch) -> tuple[Tensor, Tensor]:
    if keys.a is not None:
        raise UnsupportedError("the C++ kernel does not support key weights")
    return _contiguous_rows(keys.y), _contiguous_rows(keys.v)


def _contiguous_rows(x: Tensor) -> Tensor:
    """With each row in one piece; strides between rows are the kernel's business."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _call(name: str, state: ScanState, rows: Tensor, *others: Tensor | None, transposed: bool = False) -> None:
    """Call a function of the library with tensors ``[Bh, G, L, ..]`` or ``[Bh, L, ..]`` in its order. transposed:
    whether it takes the state so."""
    heads, features, values = state.kv.shape
    kv, z = state.kv.mT if transposed else state.kv, state.z.contiguous()
    kv = F.pad(kv, (0, -kv.shape[2] % PADDING, 0, -kv.shape[1] % PADDING)).contiguous()
    tensors: list[int] = []  # address and strides of each: of a head of keys, of a query head in its group, of a row
    for x in (kv, z, rows, *others):
        strides = (0, 0, 0) if x is None else x.stride()[:3] if x.ndim == 4 else (x.stride(0), 0, x.stride(1))
        tensors += [0 if x is None else x.data_ptr(), *strides]
    sizes = make_integers(heads, *rows.shape[1:3], features, values, CHUNK)
    call("scan", name, kv, make_integers(*tensors), sizes)
    state.kv, state.z = (kv.mT if transposed else kv)[:, :features, :values].contiguous(), z
