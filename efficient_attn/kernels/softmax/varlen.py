"""Packed and padded sequences through torch's varlen_attn: one kernel for all lengths, which never reads padding.

A batch is one row of positions, cut into sequences by cumulative lengths ``ends``. A padded row of the batch is three
sequences: its queries that causality ends before the last valid key, with the keys up to there; its other queries,
without keys; and its padding, without queries. A causal call leaves the second one to another call, which is not
causal, and the sum of both outputs is the result, because queries without keys get zeros.
"""

from collections.abc import Iterable
from functools import cache, lru_cache
from inspect import signature
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...contract.mask import Mask
from ...shared_caches import shared_cache
from ..custom_ops import in_functorch_transform
from ..half_precision import HALF_DTYPES
from . import sdpa_kernels

MAX_SEQUENCES = 2**16 - 1  # of the kernel's grid


@cache
def why_absent() -> str | None:
    """Why torch has no varlen_attn that can be called; None if it has."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return "torch.nn.attention.varlen needs torch 2.11 or newer"
    has_window = "window_size" in signature(varlen_attn).parameters
    return None if has_window else "varlen_attn of this torch has no window_size; 2.11 or newer has"


def why_not(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> str | None:
    """Why it cannot compute a call of tensors on a GPU; None if it can."""
    width = max(q.shape[-1], v.shape[-1])
    if q.dtype not in HALF_DTYPES:
        return f"it takes {' and '.join(map(str, HALF_DTYPES))}, not {q.dtype}"
    if width % sdpa_kernels.WIDTH_UNIT or width > sdpa_kernels.MAX_FLASH_WIDTH:
        limit = f"a multiple of {sdpa_kernels.WIDTH_UNIT} up to {sdpa_kernels.MAX_FLASH_WIDTH}"
        return f"it takes heads of {limit}, not {width}"
    if dropout:
        return "it has no dropout"
    if mask.key_mask is not None:
        return "it takes lengths of rows (key_lengths), not the explicit mask key_mask"
    sequences = 3 * len(q) if mask.cu_seqlens is None else len(mask.cu_seqlens) - 1
    if sequences > MAX_SEQUENCES:
        return f"it takes at most {MAX_SEQUENCES} sequences, a third as many rows, not {sequences}"
    flash = sdpa_kernels.find_flash()  # whose kernel it is, so that both run on the same devices
    no_flash = None if flash is None else sdpa_kernels.why_not(flash, q, k, k, None, causal=False, dropout=0.0)
    return why_absent() or no_flash


def is_default(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> bool:
    """Whether a call that names no kernel uses it: of packed or padded sequences on a GPU that it can compute, unless
    torch compiles or transforms the call, or the user's settings of torch forbid flash attention."""
    if q.device.type != "cuda" or (mask.key_lengths is None and mask.cu_seqlens is None):
        return False
    if torch.compiler.is_compiling() or in_functorch_transform() or not sdpa_kernels.is_enabled("flash"):
        return False
    return why_not(q, k, v, mask, dropout) is None


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, scale: float) -> Tensor:
    """softmax(scale q k^T) v of tensors of one width that `why_not` accepts, with zeros in rows without keys."""
    if mask.cu_seqlens is not None:
        return _attend_packed(q, k, v, mask, scale)
    n, m, start = q.shape[2], k.shape[2], mask.start(q.shape[2], k.shape[2])
    last = min(start + n, m) if mask.causal else m  # keys from there on are never seen
    causal, shape = mask.causal and n > 1 and start < m - 1, q.shape
    if not causal:  # a group's heads are more queries of the one key-value head
        q = q.reshape(len(k), k.shape[1], -1, q.shape[3])
        n = q.shape[2]
    lengths = mask.key_lengths
    if lengths is None:
        lengths = torch.full((len(q),), m, dtype=torch.int32, device=q.device)
    reached = lengths.int() if last >= m else lengths.int().clamp(max=max(last, 0))
    before = reached if not causal or (start == 0 and n == last) else (reached - start).clamp(0, n)
    as_sequences = k.shape[1] == q.shape[1] and all(x.is_contiguous() for x in (q, k, v))
    rows = q.shape[1] if as_sequences and 3 * len(q) * q.shape[1] <= MAX_SEQUENCES else 1
    if rows > 1:  # each head is a row, and nothing is copied
        tensors = [x.view(-1, 1, x.shape[3]) for x in (q, k, v)]
    else:
        tensors = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    base, parts = _make_ends(len(q), rows, n, m, causal, q.device)
    ends, added = base.clone(), reached if before is reached else torch.stack((before, reached, reached))
    ends[:, 1:].view(3, len(q), rows, 3).addcmul_(added.view(-1, len(q), 1, 1), parts)
    out = _call(tensors, (ends[0], ends[1]), (n, m), causal=causal, scale=scale)
    # queries after the last valid key see all valid keys; without padding there may be none, and none are wanted where
    # the keys' lengths are those of the queries
    wanted = start + n > m if mask.key_lengths is None else mask.query_lengths is not lengths or before is not reached
    if causal and wanted:
        out = out + _call(tensors, (ends[0], ends[2]), (n, m), causal=False, scale=scale)
    if rows > 1:
        return out.view(shape)
    return out.view(len(q), n, q.shape[1], -1).transpose(1, 2).reshape(shape)


def _attend_packed(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    assert mask.cu_seqlens is not None
    lengths, ends = mask.packed_lengths(q.shape[2]), mask.cu_seqlens
    on_host = ends.device != q.device
    ends = _copy_ends(tuple(ends.tolist()), q.device) if on_host else ends.int()
    longest, tensors = max(lengths), (x[0].transpose(0, 1) for x in (q, k, v))
    out = _call(tensors, (ends, ends), (longest, longest), causal=mask.causal, scale=scale)
    return out.transpose(0, 1)[None]


def _call(
    tensors: Iterable[Tensor], ends: tuple[Tensor, Tensor], longest: tuple[int, int], *, causal: bool, scale: float
) -> Tensor:
    """varlen_attn of tensors ``[positions, heads, D]``, where causal queries are aligned with the last key of their
    sequence. ends, longest: of queries and keys; no sequence has more than the longest."""
    from torch.nn.attention import varlen

    q, k, v = tensors
    limits = (max(length, 2) for length in longest)  # with 1 torch would take every sequence for one query
    # torch 2.11 takes groups without being asked
    groups: dict[str, Any] = {"enable_gqa": True} if k.shape[1] < q.shape[1] and _has_groups() else {}
    window = (-1, 0) if causal else (-1, -1)
    return cast(Tensor, varlen.varlen_attn(q, k, v, *ends, *limits, scale=scale, window_size=window, **groups))


@cache
def _has_groups() -> bool:
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in signature(varlen_attn).parameters


@shared_cache
@lru_cache(maxsize=64)
@torch.inference_mode(False)  # kept for later calls, whose backward pass could not save inference tensors
def _make_ends(batch: int, rows: int, n: int, m: int, causal: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ends of the sequences of all rows, ``[3, 1 + batch rows 3]``, as if no key were valid: of queries, of keys, and
    of keys in the second call; and to which ends of a row its lengths are added, ``[3, 1, 1, 3]``."""
    all_queries, parts_of_queries = ((0, n, n), (1, 0, 0)) if causal else ((n, n, n), (0, 0, 0))
    firsts = torch.arange(batch * rows, dtype=torch.int32)[:, None] * torch.tensor((n, m, m))[:, None, None]
    ends = firsts + torch.tensor((all_queries, (0, 0, m), (0, 0, m)))[:, None]
    parts = torch.tensor((parts_of_queries, (1, 1, 0), (0, 1, 0)), dtype=torch.int32)[:, None, None]
    return F.pad(ends.flatten(1).int(), (1, 0)).to(device), parts.to(device)


@shared_cache
@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _copy_ends(ends: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(ends, dtype=torch.int32).to(device)
