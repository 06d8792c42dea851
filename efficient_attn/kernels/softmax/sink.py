"""A sink: an additional logit in the softmax of a row, with a weight but no value.

With the log-sum-exp l of a row's scores, the sink s takes sigmoid(s - l) of the weight. torch's fused kernel computes
the rest, and its backward pass, given the output and the log-sum-exp with the sink, is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...contract.mask import Mask
from ..custom_ops import is_traced
from ..derivatives import SoftmaxFunction, make_softmax_op
from . import fused
from .sdpa import MASK_ROWS, causal_key_mask


def apply_sink(out: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Output ``[.., N, E]``, in place, and log-sum-exp ``[.., N]`` of a softmax with ``sink [.., N]``; minus infinity
    means no key in a log-sum-exp, and no sink in a sink."""
    total_lse = torch.logaddexp(lse, sink)
    total_lse.masked_fill_(total_lse.isinf(), 0)
    return out.mul_((lse - total_lse).exp_()[..., None]), total_lse


def sink_gradient(grad: Tensor, out: Tensor, lse: Tensor, sink: Tensor) -> Tensor:
    """The gradient of each row's sink, from output and log-sum-exp returned by `apply_sink`."""
    return (sink - lse).exp_() * -(grad * out).sum(-1, dtype=lse.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, sink: Tensor, mask: Mask) -> Tensor:
    """softmax([q k^T / sqrt(D), sink]) without its last column, times v, under a mask. q ``[B, H, N, D]``, k, v
    ``[B, Hkv, M, D or E]``, sink ``[B, H, N]`` in float32 or wider: a logit of each row. M >= 1."""
    shape, kv_heads, m, value_width = q.shape, k.shape[1], k.shape[2], v.shape[-1]
    start, valid = mask.start(shape[2], m), mask.key_valid(m)
    causal = mask.causal and start < m - 1  # a first query aligned with the last key sees all of them
    if value_width != shape[3]:  # unequal widths would leave the flash kernel
        q, k, v = (F.pad(x, (0, max(shape[3], value_width) - x.shape[-1])) for x in (q, k, v))
    padded_shape = *shape[:3], q.shape[3]
    if kv_heads < shape[1] and not causal:  # a group's heads are just more query rows of the one key-value head
        q, sink = (x.reshape(shape[0], kv_heads, -1, *x.shape[3:]) for x in (q, sink))
    elif kv_heads < shape[1] and not fused.supports_groups(q, k):  # groups are the heads of a larger batch
        q, sink = (split_groups(x, kv_heads) for x in (q, sink))
        k, v = (x.reshape(-1, 1, *x.shape[2:]) for x in (k, v))
        valid = None if valid is None else valid.repeat_interleave(kv_heads, 0)
    run = _sink_op if is_traced(q) else SinkFunction.apply
    arguments = *(fused.contiguous_rows(x) for x in (q, k, v)), sink, valid, shape[3] ** -0.5, causal, start
    out = cast(tuple[Tensor, Tensor], run(*arguments))[0].reshape(padded_shape)
    return out[..., :value_width] if value_width < padded_shape[3] else out


def split_groups(x: Tensor, kv_heads: int) -> Tensor:
    """``[B, H, N, ..]`` to ``[B Hkv, G, N, ..]``."""
    return x.unflatten(1, (kv_heads, -1)).flatten(0, 1)


class _RowBlock(NamedTuple):
    """Rows of one kernel call, over the keys before ``last``. added: an additive mask."""

    rows: slice
    last: int
    mask: Tensor | None


def _split_rows(q: Tensor, m: int, valid: Tensor | None, start: int) -> Iterator[_RowBlock]:
    """Rows with their own masks, some at a time; none without keys."""
    for first in range(max(0, -start), q.shape[2], MASK_ROWS):
        stop = min(first + MASK_ROWS, q.shape[2])
        last = min(start + stop, m)
        allowed = causal_key_mask(start + first, stop - first, last, valid, q.device)
        yield _RowBlock(slice(first, stop), last, fused.additive_mask(allowed, q.dtype))


def _plan_single_call(q: Tensor, valid: Tensor | None, causal: bool, start: int) -> tuple[bool, Tensor | None]:
    """Whether one kernel call can process all rows, and its additive mask."""
    if causal:
        return valid is None and start == 0, None
    return True, None if valid is None else fused.additive_mask(valid[:, None, None], q.dtype)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor, valid: Tensor | None, scale: float, causal: bool, start: int
) -> tuple[Tensor, Tensor]:
    single_call, mask = _plan_single_call(q, valid, causal, start)
    if single_call:
        return apply_sink(*fused.attend_with_lse(q, k, v, mask, causal, scale), sink)
    out, lse = torch.zeros_like(q), torch.full_like(sink, float("-inf"))
    for rows, last, block_mask in _split_rows(q, k.shape[2], valid, start):
        out[:, :, rows], lse[:, :, rows] = fused.attend_with_lse(
            q[:, :, rows], k[:, :, :last], v[:, :, :last], block_mask, False, scale
        )
    return apply_sink(out, lse, sink)


def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor,
    valid: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    start: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_sink = sink_gradient(grad, out, lse, sink)
    single_call, mask = _plan_single_call(q, valid, causal, start)
    if single_call:
        return *fused.gradients_with_lse(grad, q, k, v, mask, out, lse, causal, scale), grad_sink
    grad_q = torch.zeros_like(q)
    grad_k, grad_v = (torch.zeros_like(x, dtype=lse.dtype) for x in (k, v))
    for rows, last, block_mask in _split_rows(q, k.shape[2], valid, start):
        block_grad, queries, block_out, block_lse = (x[:, :, rows] for x in (grad, q, out, lse))
        arguments = block_grad, queries, k[:, :, :last], v[:, :, :last], block_mask, block_out, block_lse, False, scale
        grad_q[:, :, rows], block_grad_k, block_grad_v = fused.gradients_with_lse(*arguments)
        grad_k[:, :, :last] += block_grad_k
        grad_v[:, :, :last] += block_grad_v
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), grad_sink


class SinkFunction(SoftmaxFunction):
    """``(q, k, v, sink, valid keys, scale, causal, start)``; k and v have q's heads, or one for all of them, or as many
    as torch's kernel supports."""

    kernel = "attention with a sink"
    n_tensors, n_differentiated = 5, 4
    forward = staticmethod(_forward)
    gradients = staticmethod(_gradients)


_sink_op: Any = make_softmax_op("sink", _forward, _gradients, n_tensors=5, n_differentiated=4)
