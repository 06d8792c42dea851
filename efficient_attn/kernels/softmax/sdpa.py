"""Exact softmax attention through torch's fused kernels, without expanding heads or building an N x M mask."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ...contract.mask import Mask
from ...errors import UnsupportedError
from ..autotuning import autotuner
from ..derivatives import wants_gradient
from ..step_sizes import ON_GPU
from . import decode, fused, sdpa_kernels, varlen
from .sdpa_kernels import find_kernel, fold_groups

MASK_ROWS = 256  # query rows that share one explicit mask; a mask then has 256 x M entries, whatever N is; more on GPUs


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    scale: float | None = None,
    backend: str = "sdpa",
    dropout: float = 0.0,
) -> Tensor:
    """softmax(scale q k^T) v with a mask. q ``[B, H, N, D]``, k, v ``[B, Hkv, M, D or E]``, M >= 1. scale: 1/sqrt(D)
    unless given. backend: a kernel of `sdpa_kernels`, or ``varlen``, which raise `UnsupportedError` where they cannot
    serve; ``cpp``, for a few queries that see the same keys the C++ kernel instead of torch's, without dropout only.
    dropout: torch's ``dropout_p``, for which torch stores all weights on the CPU."""
    if backend == "cpp" and dropout:
        raise UnsupportedError("the C++ kernel does not support dropout")
    if backend == "varlen" or (backend == "sdpa" and varlen.is_default(q, k, v, mask, dropout)):
        return _attend_lengths(q, k, v, mask, q.shape[3] ** -0.5 if scale is None else scale, dropout)
    n, m, start = q.shape[2], k.shape[2], mask.start(q.shape[2], k.shape[2])
    valid = mask.key_valid(m)
    causal = mask.causal and start < m - 1  # a first query aligned with the last key sees all of them
    run = partial(attend_fused, scale=scale, backend=backend, dropout=dropout)
    if valid is None and causal and q.device.type == "cuda" and 0 < start + n < m:  # later keys are never seen
        k, v, m = k[:, :, : start + n], v[:, :, : start + n], start + n
    if not causal:
        return run(q, k, v, allowed=None if valid is None else valid[:, None, None])
    takes_last = valid is None and sdpa_kernels.takes_last_queries(backend, q, k, v, dropout)
    if valid is None and start == 0 and (n <= m or not takes_last):
        return run(q, k, v, causal=True)
    first, end = min(max(0, -start), n), min(m - start, n)  # of the queries that do not all see the same keys
    parts = [q.new_zeros(*q.shape[:2], first, v.shape[-1])] if first else []
    if takes_last:
        if first < end:
            parts.append(run(q[:, :, first:end], k[:, :, : start + end], v[:, :, : start + end], causal=True))
        if end < n:
            parts.append(run(q[:, :, end:], k, v))
        return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]
    for rows, last, allowed in cut_causal_rows(n, m, start, valid, q.device, q.shape[1] // k.shape[1]):
        parts.append(run(q[:, :, rows], k[:, :, :last], v[:, :, :last], allowed=allowed))
    return torch.cat(parts, dim=2)


def _attend_lengths(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float) -> Tensor:
    """`attend` through torch's varlen_attn."""
    if reason := varlen.why_not(q, k, v, mask, dropout):
        raise UnsupportedError(f"backend 'varlen' cannot compute this call: {reason}")
    if not torch.compiler.is_compiling():
        point = sdpa_kernels.describe_call(q, k, causal=mask.causal, trains=wants_gradient(q, k, v))
        autotuner.record(sdpa_kernels.ATTENTION.name, "varlen", point)
    return varlen.attend(*pad_widths(q, k, v), mask, scale=scale)[..., : v.shape[-1]]


def cut_causal_rows(
    n: int, m: int, start: int, valid: Tensor | None, device: torch.device, group: int = 1
) -> Iterator[tuple[slice, int, Tensor]]:
    """The queries of a causal call that see any key, some at a time: how many keys they may see, and which of these
    each of them sees, ``[1 or B, 1, rows, keys]``. start: of the first query. valid: bool, ``[B, M]``. group: the heads
    that share keys, for each of which a GPU gets the mask."""
    masks = 1 if valid is None else len(valid)
    size = MASK_ROWS if device.type == "cpu" else max(MASK_ROWS, ON_GPU // (masks * group * m))
    for first in range(max(0, -start), n, size):
        rows = slice(first, min(first + size, n))
        last = min(start + rows.stop, m)
        i = torch.arange(start + first, start + rows.stop, device=device)
        allowed = (torch.arange(last, device=device) <= i[:, None])[None, None]
        yield rows, last, allowed if valid is None else allowed & valid[:, None, None, :last]


def attend_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    allowed: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    backend: str = "sdpa",
    dropout: float = 0.0,
) -> Tensor:
    """One call of torch's fused kernel on its fast path: equal widths, and groups folded instead of expanded. allowed:
    bool, ``[1 or B, 1, 1 or N, M]``. causal: query i sees keys up to i, both counted from zero; where
    `takes_last_queries` from the last. The rest: see `attend`."""
    batch, kv_heads, width, value_width = q.shape[0], k.shape[1], q.shape[3], v.shape[3]
    factor = width**-0.5 if scale is None else scale
    if backend == "cpp" and not causal and (allowed is None or allowed.shape[2] == 1):
        rows = q.reshape(batch, kv_heads, -1, width)
        if decode.cpp_supports(rows, k, v):
            valid = None if allowed is None else allowed[:, 0, 0].expand(batch, -1)
            return decode.attend_in_one_pass(rows, k, v, factor, valid).reshape(*q.shape[:3], value_width)
    q, k, v = pad_widths(q, k, v)
    few_rows_out = None
    kernel = None
    if backend in sdpa_kernels.KERNELS or q.device.type == "cuda":
        kernel = find_kernel(backend, q, k, v, allowed, causal=causal, dropout=dropout, scale=factor)
    if kernel is None and (allowed is None or allowed.shape[2] == 1) and not causal and not dropout:
        rows = q.reshape(batch, kv_heads, -1, q.shape[-1])
        valid = None if allowed is None else allowed[:, 0, 0].expand(batch, -1)
        few_rows_out = decode.attend_few(rows, k, v, factor, valid)
    if few_rows_out is not None:
        out = few_rows_out.reshape(q.shape)
    elif kernel is not None:
        rows = fold_groups(q, k, allowed, causal)
        options = {"causal": causal, "scale": factor, "dropout": dropout, "groups": kv_heads < rows.shape[1]}
        out = fused.call_torch(rows, k, v, allowed, **options, kernel=kernel).reshape(q.shape)
    elif kv_heads == q.shape[1]:
        out = fused.attend(q, k, v, allowed=allowed, causal=causal, scale=factor, dropout=dropout)
    elif not causal and (allowed is None or allowed.shape[2] == 1):
        # no row has its own mask: a group's heads are more query rows of the one key-value head
        rows = q.reshape(batch, kv_heads, -1, q.shape[-1])
        out = fused.attend(rows, k, v, allowed=allowed, causal=False, scale=factor, dropout=dropout).reshape(q.shape)
    else:
        out = attend_grouped(q, k, v, allowed, causal, factor, dropout)
    return out[..., :value_width] if value_width < out.shape[-1] else out


def pad_widths(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one width and with adjacent columns, which torch's flash kernel requires: without them it stores
    all scores. Zeros change neither scores nor outputs."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    width, value_width = q.shape[-1], v.shape[-1]
    if width < value_width:
        q, k = (F.pad(x, (0, value_width - width)) for x in (q, k))
    elif width > value_width:
        v = F.pad(v, (0, width - value_width))
    if q.device.type == "cpu" or torch.compiler.is_compiling():  # the compiler lays out tensors itself
        return q, k, v
    return _align(q), _align(k), _align(v)


def _align(x: Tensor) -> Tensor:
    """x with rows and heads at multiples of 16 bytes, as kernels for GPUs require, also of dimensions of size 1, whose
    strides are never used."""
    unit = 16 // x.element_size()
    if x.shape[-1] % unit or not (x.storage_offset() % unit or any(stride % unit for stride in x.stride()[:-1])):
        return x
    return x.clone(memory_format=torch.contiguous_format).flatten().view(x.shape)


def attend_grouped(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool, scale: float, dropout: float = 0.0
) -> Tensor:
    """Softmax attention of ``q [B, H, N, D]`` over ``k, v [B, Hkv, M, D]`` with a mask for each row: a group shares its
    keys, by stride zero or in torch's kernel itself. allowed: bool, ``[1 or B, 1, N, M]``."""
    on_gpu = q.device.type == "cuda"
    if on_gpu and causal and allowed is None and q.shape[2] <= MASK_ROWS and not fused.supports_groups(q, k):
        i, j = (torch.arange(length, device=q.device) for length in (q.shape[2], k.shape[2]))
        allowed, causal = (j <= i[:, None])[None, None], False
    if on_gpu and allowed is not None and not causal:
        return _attend_as_rows(q, k, v, allowed, scale, dropout)
    kernel_groups = not dropout and fused.supports_groups(q, k)
    if not kernel_groups and k.shape[1] > 1:
        return _attend_as_batch(q, k, v, allowed, causal, scale, dropout)
    if q.device.type == "cpu" and not dropout and wants_gradient(q, k, v):
        return fused.attend_differentiable(q, k, v, allowed, causal, scale)
    if kernel_groups:
        return fused.call_torch(q, k, v, allowed, causal=causal, scale=scale, dropout=0.0, groups=True)
    k, v = (x.expand(-1, q.shape[1], -1, -1) for x in (k, v))
    return fused.attend(q, k, v, allowed=allowed, causal=causal, scale=scale, dropout=dropout)


def _attend_as_rows(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float, dropout: float) -> Tensor:
    """The heads of a group as further rows, each with the mask of its row: smaller than the keys of every head."""
    rows, masks = q.reshape(len(q), k.shape[1], -1, q.shape[-1]), allowed.repeat(1, 1, q.shape[1] // k.shape[1], 1)
    return fused.attend(rows, k, v, allowed=masks, causal=False, scale=scale, dropout=dropout).reshape(q.shape)


def _attend_as_batch(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Groups as the heads of a larger batch, with one head's keys and values."""
    kv_heads = k.shape[1]
    keys, values = (x.reshape(-1, 1, *x.shape[2:]) for x in (k, v))
    if allowed is not None and allowed.shape[0] > 1:
        allowed = allowed.repeat_interleave(kv_heads, dim=0)
    rows = q.reshape(len(keys), -1, *q.shape[2:])
    return attend_grouped(rows, keys, values, allowed, causal, scale, dropout).reshape(q.shape)
