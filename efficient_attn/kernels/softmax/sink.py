"""A sink: an additional logit in the softmax of a row, with a weight but no value.

    l_i = log sum_j exp s_ij,    L_i = log(exp l_i + exp sink_i),    out_i = exp(l_i - L_i) softmax(s_i) v
    dsink_i = -exp(sink_i - L_i) grad_i . out_i

for the scores s_ij of row i, gpt-oss's definition (arXiv:2508.10925). torch's fused kernel computes softmax(s_i) v and
l_i, and its backward pass, given out_i and L_i, is exact.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...contract.mask import Mask
from . import fused
from .merge import FusedInputs, FusedOptions
from .sdpa import cut_causal_rows, pad_widths
from .softmax_kernel import SavedSoftmax, SoftmaxKernel


class SinkInputs(NamedTuple):
    """``q [B, H, N, D]``, ``k [B, Hkv, M, D]``, ``v [B, Hkv, M, E]``, ``sink [B, H, N]`` in float32 or wider, minus
    infinity for none, and the valid keys, bool ``[B, M]``."""

    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor
    valid: Tensor | None


class SinkOptions(NamedTuple):
    """start: the position of the first query; query i sees keys up to start + i if causal."""

    scale: float
    causal: bool
    start: int


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
    (batch, heads, n, width), kv_heads, m, value_width = q.shape, k.shape[1], k.shape[2], v.shape[-1]
    start, valid = mask.start(n, m), mask.key_valid(m)
    causal = mask.causal and start < m - 1  # a first query aligned with the last key sees all of them
    q, k, v = pad_widths(q, k, v)
    padded_width = q.shape[3]
    if kv_heads < heads and not causal:  # a group's heads are just more query rows of the one key-value head
        q, sink = (x.reshape(batch, kv_heads, -1, *x.shape[3:]) for x in (q, sink))
    elif kv_heads < heads and not fused.supports_groups(q, k):  # groups are the heads of a larger batch
        q, sink = (split_groups(x, kv_heads) for x in (q, sink))
        k, v = (x.reshape(-1, 1, *x.shape[2:]) for x in (k, v))
        valid = None if valid is None else valid.repeat_interleave(kv_heads, 0)
    q, k, v = (fused.contiguous_rows(x) for x in (q, k, v))
    inputs = SinkInputs(q, k, v, sink, valid)
    out = SINK(inputs, SinkOptions(width**-0.5, causal, start)).reshape(batch, heads, n, padded_width)
    return out[..., :value_width] if value_width < padded_width else out


def split_groups(x: Tensor, kv_heads: int) -> Tensor:
    """``[B, H, N, ..]`` to ``[B Hkv, G, N, ..]``."""
    return x.unflatten(1, (kv_heads, -1)).flatten(0, 1)


def _split_rows(inputs: SinkInputs, start: int) -> Iterator[tuple[slice, int, FusedInputs]]:
    """Rows with their own masks, some at a time, and the number of keys that they may see."""
    q, k, v, _, valid = inputs
    for rows, last, allowed in cut_causal_rows(q.shape[2], k.shape[2], start, valid, q.device):
        mask = fused.additive_mask(allowed, q.dtype)
        yield rows, last, FusedInputs(q[:, :, rows], k[:, :, :last], v[:, :, :last], mask)


def _plan_single_call(inputs: SinkInputs, options: SinkOptions) -> FusedInputs | None:
    """The inputs of the one kernel call that can process all rows; None if rows need masks of their own."""
    q, k, v, _, valid = inputs
    if options.causal and (valid is not None or options.start):
        return None
    return FusedInputs(q, k, v, None if valid is None else fused.additive_mask(valid[:, None, None], q.dtype))


def _forward(inputs: SinkInputs, options: SinkOptions) -> tuple[Tensor, Tensor]:
    q, *_, sink, _ = inputs
    if (whole := _plan_single_call(inputs, options)) is not None:
        return apply_sink(*fused.attend_with_lse(whole, FusedOptions(options.causal, options.scale)), sink)
    out, lse = torch.zeros_like(q), torch.full_like(sink, float("-inf"))
    for rows, _, part in _split_rows(inputs, options.start):
        out[:, :, rows], lse[:, :, rows] = fused.attend_with_lse(part, FusedOptions(False, options.scale))
    return apply_sink(out, lse, sink)


def _gradients(grad: Tensor, saved: SavedSoftmax[SinkInputs], options: SinkOptions) -> tuple[Tensor, ...]:
    (q, k, v, sink, _), out, lse = saved
    grad_sink = sink_gradient(grad, out, lse, sink)
    if (whole := _plan_single_call(saved.inputs, options)) is not None:
        saved_whole, whole_options = SavedSoftmax(whole, out, lse), FusedOptions(options.causal, options.scale)
        return *fused.gradients_with_lse(grad, saved_whole, whole_options), grad_sink
    grad_q = torch.zeros_like(q)
    grad_k, grad_v = (torch.zeros_like(x, dtype=lse.dtype) for x in (k, v))
    for rows, last, part in _split_rows(saved.inputs, options.start):
        saved_part = SavedSoftmax(part, out[:, :, rows], lse[:, :, rows])
        part_grads = fused.gradients_with_lse(grad[:, :, rows], saved_part, FusedOptions(False, options.scale))
        grad_q[:, :, rows], part_grad_k, part_grad_v = part_grads
        grad_k[:, :, :last] += part_grad_k
        grad_v[:, :, :last] += part_grad_v
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), grad_sink


# k and v have q's heads, or one for all of them, or as many as torch's kernel supports
NAME = "attention with a sink"
SINK = SoftmaxKernel(NAME, SinkInputs, SinkOptions, _forward, _gradients, n_differentiated=4, op="sink")
