"""A stretch of a scan in C++ (scan.cpp), for keys without weights on the CPU: the same as `chunks`, faster.

For maps of few instructions also a whole scan of queries and keys, whose features are made in the cache.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UnsupportedError
from ...feature_maps import FeatureMap
from ..linear.linear_config import KeyInputs, OutputGrads, Stretch
from ..linear.scan_state import ScanState
from .building import call, contiguous_rows, make_integers, pack_tensors
from .cpp_sums import MAPS

CHUNK = 16  # positions: the state stays in the nearest cache, so that chunks can be short
PADDING = 16  # the state's rows and columns are a multiple of it, as it is of any vector's width


def attend(x: Tensor, keys: Stretch, state: ScanState, tops: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See `chunks.attend`."""
    y, v = _keys_without_weights(keys)
    tops, totals = x.new_empty(*x.shape[:3], v.shape[2]) if tops is None else tops, x.new_empty(*x.shape[:3], 1)
    _call("attend", state, contiguous_rows(x), y, v, tops, totals)
    return tops, totals


def backward_queries(grads: OutputGrads, keys: Stretch, state: ScanState) -> tuple[Tensor, list[Tensor | None]]:
    """See `chunks.backward_queries`."""
    y, v = _keys_without_weights(keys)
    grad_x = y.new_empty(*grads.top.shape[:3], y.shape[2])
    _call("backward_queries", state, contiguous_rows(grads.top), grads.total, y, v, grad_x, transposed=True)
    return grad_x, [None]


def backward_keys(
    x: Tensor, keys: Stretch, grads: OutputGrads, grad_state: ScanState, references: list[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """See `chunks.backward_keys`."""
    y, v = _keys_without_weights(keys)
    grad_y, grad_v = y.new_empty(y.shape), v.new_empty(v.shape)
    rows, grad_top = contiguous_rows(x), contiguous_rows(grads.top)
    _call("backward_keys", grad_state, rows, y, v, grad_top, grads.total, grad_y, grad_v)
    return grad_y, grad_v


def _keys_without_weights(keys: Stretch) -> tuple[Tensor, Tensor]:
    if keys.a is not None:
        raise UnsupportedError("the C++ kernel does not support key weights")
    return contiguous_rows(keys.y), contiguous_rows(keys.v.to(keys.y.dtype))


def attend_rows(
    phi: FeatureMap, q: Tensor, keys: KeyInputs, state: ScanState, *, divides: bool
) -> tuple[Tensor, Tensor]:
    """Rows ``[Bh, G, N, E]`` and the sums of their weights ``[Bh, G, N, 1]``, of float32, and the state after them.
    divides: by these sums, or 1 where they are zero."""
    q, k, v = map(contiguous_rows, (q, *keys[:2]))
    out, totals = (q.new_empty(*q.shape[:3], width, dtype=torch.float32) for width in (v.shape[2], 1))
    _call("attend_rows", state, q, k, v, keys.valid, out, totals, phi=phi, divides=divides)
    return out, totals


def backward_query_rows(
    phi: FeatureMap, q: Tensor, keys: KeyInputs, rows: tuple[Tensor, Tensor, Tensor], state: ScanState, *, divides: bool
) -> Tensor:
    """The gradient by q. rows: by what `attend_rows` returned, of float32, and that. state: before them."""
    q, k, v, *others = map(contiguous_rows, (q, *keys[:2], *rows))
    grad_q = torch.empty_like(q, memory_format=torch.contiguous_format)
    _call("backward_query_rows", state, q, k, v, keys.valid, *others, grad_q, transposed=True, phi=phi, divides=divides)
    return grad_q


def backward_key_rows(
    phi: FeatureMap,
    q: Tensor,
    keys: KeyInputs,
    rows: tuple[Tensor, Tensor, Tensor],
    grad_state: ScanState,
    *,
    divides: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients by k and v, and by the state before them. rows: as for `backward_query_rows`."""
    q, k, v, *others = map(contiguous_rows, (q, *keys[:2], *rows))
    grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k, v))
    _call("backward_key_rows", grad_state, q, k, v, keys.valid, *others, grad_k, grad_v, phi=phi, divides=divides)
    return grad_k, grad_v


def _call(
    name: str,
    state: ScanState,
    rows: Tensor,
    *others: Tensor | None,
    transposed: bool = False,
    phi: FeatureMap | None = None,
    divides: bool = False,
) -> None:
    """Call a function of the library with tensors ``[Bh, G, L, ..]`` or ``[Bh, L, ..]`` in its order. transposed:
    whether it takes the state so. phi, divides: of the functions of queries and keys."""
    kv, z = state.split()
    heads, features, values = kv.shape
    kv = kv.mT if transposed else kv
    kv = F.pad(kv, (0, -kv.shape[2] % PADDING, 0, -kv.shape[1] % PADDING)).contiguous()
    sizes = (heads, *rows.shape[1:3], features, values, CHUNK, -1 if phi is None else MAPS.index(phi), divides)
    like = kv if phi is None else rows
    call("scan", name, like, pack_tensors(kv, z, rows, *others), make_integers(*sizes))
    state.replace((kv.mT if transposed else kv)[:, :features, :values], z)
