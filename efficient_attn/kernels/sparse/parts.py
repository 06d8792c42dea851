"""Softmax over a plan: its tiles one after another, merged by their log-sum-exps, with an exact gradient.

    for each step, W windows of R queries over S keys:
        o', l' = softmax(scale Q K^T + mask) V  [Bh, W, R G, E],  [Bh, W, R G]
        out, lse <- merge of (out, lse) and (o', l') in the rows of the step

for the G heads of a group, whose queries share the keys. The backward pass recomputes the weights a few windows at a
time, so that memory grows with N and not with the pairs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..half_precision import fused_dtype
from ..mask_cache import MASK_CACHE
from ..native import cpp_tiles
from ..softmax.fused import additive_mask
from ..softmax.merge import FusedInputs, FusedOptions, attend, attend_backward, join
from ..softmax.softmax_kernel import SavedSoftmax, SoftmaxKernel
from .additive_masks import MAX_CACHED_PAIRS, AdditiveMask, make_additive_mask
from .tiles import Step, TilePlan, Tiling


class SparseInputs(NamedTuple):
    """``q [Bh, N, group, D]``, ``k, v [Bh, M, D]``, and with padding the valid keys, bool ``[B, M]``."""

    q: Tensor
    k: Tensor
    v: Tensor
    valid: Tensor | None


@dataclass(frozen=True, eq=False)
class PlanConfig:
    """A plan with the other arguments of a call: the heads of a group, the scale. native: run it in C++."""

    plan: TilePlan
    group: int
    scale: float
    native: bool = False

    def cast(self, operation: str, q: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Tensors in the kernel's fastest dtype for the plan's largest tiles. operation: see `fused_dtype`."""
        largest = max((t for tiling in self.plan for t in tiling.tiles), key=lambda t: t.pairs, default=None)
        if largest is None:
            return q, *tensors
        compute_dtype = fused_dtype(q, operation, largest.queries.size * self.group, largest.keys.size)
        return tuple(x.to(compute_dtype) for x in (q, *tensors))

    def mask(self, tiling: Tiling, step: Step, like: Tensor, valid: Tensor | None) -> AdditiveMask:
        """The additive mask of a step, ``[1 or Bh, 1 or windows, 1 or rows, keys]``, and the rows without keys. valid:
        ``[B, M]``, with padding; the mask is then created for this call."""
        tile = step.tile
        if tile.rule is None and valid is None:
            return AdditiveMask(None, None)
        if valid is None and not like.is_meta:
            masked = Step(tile, 0, 1) if tile.mask is not None else step
            if self.group * masked.pairs <= MAX_CACHED_PAIRS:
                key = *masked, self.group, like.dtype, like.device
                device, dtype = like.device, like.dtype
                return MASK_CACHE.find(key, lambda: make_additive_mask(self._allowed(tiling, masked, device), dtype))
        allowed = None if tile.rule is None else self._allowed(tiling, step, like.device)
        if valid is not None:
            keys = tiling.positions(step, like.device).clamp(0, valid.shape[1] - 1)
            visible = valid[:, keys].repeat_interleave(like.shape[0] // valid.shape[0], dim=0)[:, :, None]
            allowed = visible if allowed is None else allowed & visible
        assert allowed is not None
        return AdditiveMask(additive_mask(allowed, like.dtype), ~allowed.any(-1))

    def _allowed(self, tiling: Tiling, step: Step, device: torch.device) -> Tensor:
        """Which pairs of a step count, for the rows of all heads of a group."""
        allowed = tiling.allowed(step, device)
        assert allowed is not None
        return allowed[None].repeat_interleave(self.group, dim=2) if self.group > 1 else allowed[None]


def run_plan(inputs: SparseInputs, config: PlanConfig) -> tuple[Tensor, Tensor]:
    """Attention over a plan's keys, and one log-sum-exp a row ``[Bh, N, group]``. Rows in no tile are zero."""
    if config.native:
        out, lse = cpp_tiles.attend(config.plan, config.scale, *inputs)
        return out, finite(lse)
    q, k, v, valid = inputs
    dtype, options = q.dtype, FusedOptions(causal=False, scale=config.scale)
    q, k, v = config.cast("forward", q, k, v)
    out = torch.zeros_like(q, dtype=_choose_sum_dtype(q, config), memory_format=torch.contiguous_format)
    lse = torch.full(q.shape[:3], float("-inf"), dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    for tiling in config.plan:
        keys, values = tiling.select_keys(k), tiling.select_keys(v)
        for step in tiling.steps():
            mask, empty_rows = config.mask(tiling, step, q, valid)
            part = FusedInputs(step.queries(q).flatten(2, 3), step.keys(keys), step.keys(values), mask)
            part_out, part_lse = attend(part, options)
            if empty_rows is not None:
                part_lse = part_lse.masked_fill(empty_rows, float("-inf"))
            grouped_parts = (x.unflatten(2, (-1, config.group)) for x in (part_out, part_lse))
            _merge_part(step.tile.fresh, step.queries(out), step.queries(lse), *grouped_parts)
    return out.to(dtype), finite(lse)


def plan_gradients(grad: Tensor, saved: SavedSoftmax[SparseInputs], config: PlanConfig) -> tuple[Tensor, ...]:
    """The gradients of q, k and v of the result of `run_plan`."""
    (q, k, v, valid), out, lse = saved
    if config.native:
        return cpp_tiles.backward(config.plan, config.scale, grad, saved.inputs, (out, lse))
    dtype, options = q.dtype, FusedOptions(causal=False, scale=config.scale)
    q, k, v, grad, out = config.cast("backward", q, k, v, grad.contiguous(), out)
    sum_dtype, layout = _choose_sum_dtype(q, config), torch.contiguous_format
    grad_q, grad_k, grad_v = (torch.zeros_like(x, dtype=sum_dtype, memory_format=layout) for x in (q, k, v))
    for tiling in config.plan:
        keys, values = tiling.select_keys(k), tiling.select_keys(v)
        targets = [x if tiling.columns is None else torch.zeros_like(tiling.select_keys(x)) for x in (grad_k, grad_v)]
        for step in tiling.steps():
            mask, _ = config.mask(tiling, step, q, valid)
            part_grad, part_q, part_out, part_lse = (step.queries(x).flatten(2, 3) for x in (grad, q, out, lse))
            part = SavedSoftmax(FusedInputs(part_q, step.keys(keys), step.keys(values), mask), part_out, part_lse)
            part_grad_q, *part_grads = attend_backward(part_grad, part, options)
            step.queries(grad_q).add_(part_grad_q.unflatten(2, (-1, config.group)))
            for target, addend in zip(targets, part_grads, strict=True):
                step.tile.keys.scatter_add(target, addend.to(target.dtype), step.first, step.last)
        if tiling.columns is not None:
            for target, addend in zip((grad_k, grad_v), targets, strict=True):
                target.index_add_(1, tiling.columns.to(target.device), addend)
    return grad_q.to(dtype), grad_k.to(dtype), grad_v.to(dtype)


KERNEL = "the kernel of sparse patterns"
softmax_over_plan = SoftmaxKernel(KERNEL, SparseInputs, PlanConfig, run_plan, plan_gradients)


def finite(lse: Tensor) -> Tensor:
    """Zero instead of minus infinity, in place: exp(-inf - 0) is 0, as required of a row without keys."""
    return lse.masked_fill_(lse == float("-inf"), 0)


def _merge_part(fresh: bool, out: Tensor, lse: Tensor, part_out: Tensor, part_lse: Tensor) -> None:
    if fresh:
        out.copy_(part_out)
        lse.copy_(part_lse)
    else:
        join(out, lse, part_out, part_lse)


def _choose_sum_dtype(q: Tensor, config: PlanConfig) -> torch.dtype:
    """The dtype in which results are accumulated: half precision would lose digits at every merge."""
    joined = any(not tile.fresh for tiling in config.plan for tile in tiling.tiles)
    return torch.promote_types(q.dtype, torch.float32) if joined else q.dtype
