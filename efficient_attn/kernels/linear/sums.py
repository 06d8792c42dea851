"""Linear attention without order: keys are summed first, and every query reads the same sums.

Tensors here are folded: queries ``[Bh, G, N, D]`` (G heads share one key-value head), keys ``[Bh, M, D]``, values
``[Bh, M, E]``. Features exist for one stretch of positions at a time, and again in the backward pass.

Keys may have a weight, given as its logarithm a. All sums are then kept relative to a reference, the largest a so far,
as softmax kernels keep a running maximum: sum_j exp(a_j - reference) phi(k_j) v_j. With ``Recipe.decays`` the reference
is part of the definition instead: the newest position's own a, whether its key is hidden or not.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..derivatives import KernelFunction, differentiate_once
from ..products import add_products, rows_times
from .recipe import Recipe, Tape, divide, undivide

KERNEL = "the kernel of linear attention"


class Sums(NamedTuple):
    """What is kept of keys: phi(k) v^T ``[Bh, F, E]``, phi(k) ``[Bh, F]`` where something divides by them, and what
    both are relative to ``[Bh]``."""

    kv: Tensor
    k: Tensor
    reference: Tensor | None = None  # None where no key has a weight, -inf before the first


def make_sums(recipe: Recipe, rows: int, width: int, value_width: int, like: Tensor, *, weighted: bool) -> Sums:
    """The sums of no keys."""
    features, like = recipe.phi.width(width), recipe.wide(like)
    reference = like.new_full((rows,), float("-inf"), dtype=torch.float64) if weighted else None
    return Sums(like.new_zeros(rows, features, value_width), like.new_zeros(rows, features), reference)


def unpack(before: Sums | None) -> tuple[Tensor | None, ...]:
    """What came before as arguments of an autograd function."""
    return (None, None, None) if before is None else tuple(before)


def start_sums(recipe: Recipe, k: Tensor, v: Tensor, logs: Tensor | None, before: tuple[Tensor | None, ...]) -> Sums:
    """What came before, in tensors that may be added to."""
    kv, z, reference = before
    if kv is None or z is None:
        weighted = logs is not None or recipe.phi.scaled
        return make_sums(recipe, k.shape[0], k.shape[2], v.shape[2], v[:0], weighted=weighted)
    return Sums(kv.clone(), z.clone(), reference)


def sum_keys(
    recipe: Recipe, k: Tensor, v: Tensor, valid: Tensor | None, logs: Tensor | None, before: Sums | None = None
) -> Sums:
    """The sums over all valid keys, added to those before. logs: weights' logarithms ``[Bh, M]``."""
    if torch.compiler.is_compiling():
        return _sum_at_once(recipe, k, v, valid, logs, before)
    given = (recipe, valid, k, v, logs, *unpack(before), *recipe.parameters)
    return Sums(*cast(tuple[Tensor, ...], _Summed.apply(*given)))


def read(recipe: Recipe, q: Tensor, sums: Sums, fading: Tensor | None = None) -> Tensor:
    """Every query over the same sums: ``[Bh, G, N, E]``. fading: logarithms ``[Bh, N]`` by which rows see them less."""
    if torch.compiler.is_compiling():
        return _read_at_once(recipe, q, sums, fading)
    given = (recipe, q, sums.kv, sums.k, fading, *recipe.parameters)
    return cast(tuple[Tensor, Tensor | None], _Read.apply(*given))[0]


def _sum_at_once(
    recipe: Recipe, k: Tensor, v: Tensor, valid: Tensor | None, logs: Tensor | None, before: Sums | None
) -> Sums:
    """`sum_keys` in torch's own operations, with the features of all keys: to cut them is the compiler's business."""
    y, a = recipe.keys(k, slice(0, k.shape[1]), valid, logs)
    kv, z, reference = start_sums(recipe, k, v, logs, unpack(before))
    if a is not None and reference is not None:
        newest = a[:, -1] if recipe.decays else torch.maximum(reference, a.amax(1))
        newest = newest.to(reference.dtype).detach()
        carry = relative(reference, newest).to(kv.dtype)[:, None]
        y = y * relative(a, newest[:, None]).to(y.dtype)[..., None]
        kv, z, reference = kv * carry[..., None], z * carry, newest
    return Sums(kv + y.mT @ recipe.wide(v), z + y.sum(1), reference)


def _read_at_once(recipe: Recipe, q: Tensor, sums: Sums, fading: Tensor | None) -> Tensor:
    """`read` in torch's own operations."""
    every = slice(0, q.shape[2])
    x = _fade(recipe.queries(q, every)[0], fading, every)
    flat = x.flatten(1, 2)
    top, total = (flat @ sums.kv).view(*x.shape[:3], -1), along(flat, sums.k).view(*x.shape[:3], 1)
    return divided(recipe, top, total).to(q.dtype)


def divided(recipe: Recipe, top: Tensor, total: Tensor) -> Tensor:
    """Numerators ``[Bh, G, N, E]`` divided as the recipe says."""
    return top if recipe.divisor is None else top / recipe.divisor(total)


def relative(a: Tensor, reference: Tensor) -> Tensor:
    """exp(a - reference), 0 where a is -inf, whatever the reference is."""
    return (a - reference.masked_fill(reference == float("-inf"), 0)).exp()


class _Summed(KernelFunction):
    @staticmethod
    def forward(recipe: Recipe, valid: Any, k: Tensor, v: Tensor, logs: Any, *rest: Any) -> Any:
        kv, z, reference = start_sums(recipe, k, v, logs, rest[:3])
        for rows in recipe.cut(k.shape[1], k.shape[0], k.shape[2]):
            y, a = recipe.keys(k[:, rows], rows, valid, logs)
            if a is not None and reference is not None:
                newest = (a[:, -1] if recipe.decays else torch.maximum(reference, a.amax(1))).to(reference.dtype)
                carry = relative(reference, newest).to(kv.dtype)[:, None]
                kv.mul_(carry[..., None])
                z.mul_(carry)
                reference = newest
                weights = relative(a, newest[:, None]).to(y.dtype)[..., None]
                add_products(kv, y, v[:, rows] * weights)  # values are mostly narrower than features
                if recipe.divisor:
                    z += (weights.mT @ y)[:, 0]
            else:
                add_products(kv, y, recipe.wide(v[:, rows]))
                if recipe.divisor:
                    z += y.sum(1)
        return kv, z, None if reference is None else reference.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.recipe, valid, k, v, logs, _, _, before, *_ = inputs
        ctx.save_for_backward(valid, k, v, logs, before, output[2])
        if output[2] is not None:
            ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        given = (*grads[:2], *ctx.saved_tensors, ctx.recipe, ctx.needs_input_grad[5])
        return None, None, *differentiate_once(KERNEL, _by_summed, *given)


def _by_summed(
    by_kv: Tensor,
    by_z: Tensor,
    valid: Tensor | None,
    k: Tensor,
    v: Tensor,
    logs: Tensor | None,
    before: Tensor | None,
    reference: Tensor | None,
    recipe: Recipe,
    has_past: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_Summed` from ``k`` on."""
    by_kv = by_kv.contiguous()
    by_k, by_v, by_logs = torch.empty_like(k), torch.empty_like(v), None if logs is None else torch.empty_like(logs)
    tape = Tape(recipe)
    for rows in recipe.cut(k.shape[1], k.shape[0], k.shape[2]):
        keys, hidden = (
            partial(recipe.keys, rows=rows, valid=valid, logs=logs),
            None if valid is None else ~valid[:, rows],
        )
        y, a, back = tape.record(keys, k[:, rows], hidden)
        scale = 1 if a is None or reference is None else relative(a, reference[:, None]).to(y.dtype)[..., None]
        by_v[:, rows] = rows_times(y, by_kv).mul_(scale)
        by_y = rows_times(recipe.wide(v[:, rows]) * scale, by_kv.mT).add_(by_z[:, None] * scale)
        by_a = None if a is None else (by_y * y).sum(-1)
        if by_logs is not None and by_a is not None:
            by_logs[:, rows] = by_a
        by_k[:, rows] = back(by_y, by_a)
    if has_past and before is not None and reference is not None:
        carry = relative(before, reference).to(by_kv.dtype)[:, None]
        by_kv, by_z = by_kv * carry[..., None], by_z * carry
    by_state = (by_kv, by_z) if has_past else (None, None)
    return by_k, by_v, by_logs, *by_state, None, *tape.by_parameters


class _Read(KernelFunction):
    @staticmethod
    def forward(
        recipe: Recipe, q: Tensor, kv: Tensor, z: Tensor, fading: Any, *parameters: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        out = q.new_empty(*q.shape[:3], kv.shape[2])
        totals = kv.new_empty(*q.shape[:3], 1) if recipe.divisor else None
        for rows in recipe.cut(q.shape[2], q.shape[0] * q.shape[1], q.shape[3]):
            x = _fade(recipe.queries(q[:, :, rows], rows)[0], fading, rows)
            top, total = rows_times(x.flatten(1, 2), kv).view(*x.shape[:3], -1), None
            if totals is not None:
                total = totals[:, :, rows] = along(x.flatten(1, 2), z).view(*x.shape[:3], 1)
            divide(recipe, top, total, out[:, :, rows])
        return out, totals

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.recipe, *tensors = inputs[:5]
        ctx.save_for_backward(*tensors, *output)
        if output[1] is not None:
            ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, *differentiate_once(KERNEL, _by_read, grads[0], *ctx.saved_tensors, ctx.recipe)


def _by_read(
    grad: Tensor,
    q: Tensor,
    kv: Tensor,
    z: Tensor,
    fading: Tensor | None,
    out: Tensor,
    totals: Tensor | None,
    recipe: Recipe,
) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_Read` from ``q`` on."""
    by_q, by_kv, by_z = torch.empty_like(q), torch.zeros_like(kv), torch.zeros_like(z)
    tape, parts = Tape(recipe), recipe.divisors(totals)
    for rows in recipe.cut(q.shape[2], q.shape[0] * q.shape[1], q.shape[3]):
        x, _, back = tape.record(partial(recipe.queries, rows=rows), q[:, :, rows])
        flat = _fade(x, fading, rows).flatten(1, 2)
        by_top, by_total = (None if g is None else g.flatten(1, 2) for g in undivide(grad, out, *parts, rows))
        assert by_top is not None
        by_x = rows_times(by_top, kv.mT)
        add_products(by_kv, flat, by_top)
        if by_total is not None:
            by_x.addcmul_(by_total, z[:, None])
            by_z += (by_total.mT @ flat)[:, 0]
        by_q[:, :, rows] = back(_fade(by_x.view(x.shape), fading, rows))
    return by_q, by_kv, by_z, None, *tape.by_parameters


def along(x: Tensor, z: Tensor) -> Tensor:
    """Products ``[Bh, rows, 1]`` of rows ``[Bh, rows, F]`` with a vector ``[Bh, F]``, the way round that is faster."""
    return (z[:, None] @ x.mT).mT


def _fade(x: Tensor, fading: Tensor | None, rows: slice) -> Tensor:
    return x if fading is None else x * fading[:, None, rows, None].exp().to(x.dtype)
