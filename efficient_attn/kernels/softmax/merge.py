"""One part of a softmax with its log-sum-exp, its gradient, and the merging of parts.

    lse = log(exp lse_a + exp lse_b),    out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b

for a row's disjoint sets of keys a and b. The CPU's kernel stores no N x M matrix, but autograd does not differentiate
its log-sum-exp. Its backward pass, given the output and the log-sum-exp of all parts, is exact for each part. Its name
is private to torch and only used in this file.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .softmax_kernel import SavedSoftmax


class FusedInputs(NamedTuple):
    """``q [B, W, R, D]``, ``k, v [B, W, S, D]``, and an additive mask that broadcasts to ``[B, W, R, S]``."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None


class FusedOptions(NamedTuple):
    """causal: query i sees keys up to i. scale: of the scores."""

    causal: bool
    scale: float


def attend(inputs: FusedInputs, options: FusedOptions) -> tuple[Tensor, Tensor]:
    """Outputs ``[B, W, R, D]`` and log-sum-exps ``[B, W, R]``, undefined for a row that is masked throughout."""
    if inputs.q.device.type != "cpu":
        return attend_unfused(inputs, options)
    q, k, v, mask = inputs
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(q, k, v, 0.0, options.causal, attn_mask=mask, scale=options.scale)


def attend_backward(grad: Tensor, saved: SavedSoftmax[FusedInputs], options: FusedOptions) -> tuple[Tensor, ...]:
    """The gradients of q, k, v of a part whose rows have the output and log-sum-exp of the whole."""
    (q, k, v, mask), out, lse = saved
    if q.device.type != "cpu":
        return attend_unfused_backward(grad, saved, options)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return kernel(grad, q, k, v, out, lse, 0.0, options.causal, attn_mask=mask, scale=options.scale)


def attend_unfused(inputs: FusedInputs, options: FusedOptions) -> tuple[Tensor, Tensor]:
    """`attend` in matrix products, for devices without the CPU's kernel."""
    scores = _masked_scores(inputs, options)
    lse = scores.logsumexp(-1)
    return _weigh(scores, lse).to(inputs.v.dtype) @ inputs.v, lse


def attend_unfused_backward(
    grad: Tensor, saved: SavedSoftmax[FusedInputs], options: FusedOptions
) -> tuple[Tensor, ...]:
    """`attend_backward` in matrix products. Keys and values may have one head for all of q's."""
    (q, k, v, _), out, lse = saved
    weights = _weigh(_masked_scores(saved.inputs, options), lse)
    delta = (grad * out).sum(-1, keepdim=True, dtype=weights.dtype)
    grad_score = (weights * ((grad @ v.mT) - delta) * options.scale).to(q.dtype)
    grad_k, grad_v = grad_score.mT @ q, weights.to(grad.dtype).mT @ grad
    return grad_score @ k, grad_k.sum_to_size(k.shape), grad_v.sum_to_size(v.shape)


def _weigh(scores: Tensor, lse: Tensor) -> Tensor:
    """exp(scores - lse), and zeros for a row without keys, whose scores and log-sum-exp are minus infinity."""
    return (scores - lse.nan_to_num(neginf=0)[..., None]).exp()


def _masked_scores(inputs: FusedInputs, options: FusedOptions) -> Tensor:
    q, k, _, mask = inputs
    scores = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) * options.scale
    if options.causal:
        scores += torch.full_like(scores[0, 0], float("-inf")).triu(1)
    return scores if mask is None else scores + mask


def join_parts(outs: Tensor, lse: Tensor) -> Tensor:
    """The whole ``[B, R, E]`` of parts ``outs [B, W, R, E]`` with log-sum-exps ``[B, W, R]``."""
    weights = lse.mT.softmax(-1).mT  # along the last dimension few numbers stay on one thread
    return (outs * weights[..., None]).sum(1).to(outs.dtype)


def join(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge a part ``[.., E]`` and its log-sum-exp ``[..]`` into the result so far, in place; -inf for no result."""
    weight = torch.sigmoid(part_lse - lse).nan_to_num_(0)  # two empty parts stay empty
    out.lerp_(part.to(out.dtype), weight[..., None].to(out.dtype))
    lse.copy_(torch.logaddexp(lse, part_lse))
