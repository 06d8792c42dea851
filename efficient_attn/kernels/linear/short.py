"""Short sequences: all positions at once, in as few calls of torch as there are steps.

Cutting into stretches saves memory, of which a short call needs little, and costs more calls of torch than its products
take time. Causal rows form their products with all keys: for few keys that is the least work as well. Features are made
again in the backward pass, as in the long forms.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ..derivatives import KernelFunction, differentiate_once
from .recipe import AT_ONCE, Recipe, Tape, undivide
from .sums import KERNEL, along

LONGEST = 512  # positions on either side


def is_short(recipe: Recipe, q: Tensor, k: Tensor, causal: bool) -> bool:
    """Whether a call with queries ``q [Bh, G, N, D]`` and keys ``k [Bh, M, D]`` is one for `attend_short`.

    What there is at once, features of a side or products of a causal call, must fit the cache as a stretch does: with
    more of them the stretches were faster. Decaying weights are relative to a row's own position, which is the scan's
    business, and so is our C++.
    """
    n, m, lanes = q.shape[2], k.shape[1], q.shape[0] * q.shape[1]
    if max(n, m) > LONGEST or recipe.decays or (recipe.native and causal) or torch.compiler.is_compiling():
        return False
    features = lanes * max(n, m) * recipe.phi.width(k.shape[2])
    return features <= AT_ONCE and (not causal or lanes * n * m <= AT_ONCE)


def attend_short(
    recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, logs: Tensor | None, causal: bool
) -> Tensor:
    """Linear attention ``[Bh, G, N, E]`` of a call that is short. causal: query i sees keys up to ``recipe.start + i``.

    valid, logs: ``[Bh, M]``, where there is padding, and where keys have weights besides their features.
    """
    found = _Short.apply(recipe, causal, valid, q, k, v, logs, *recipe.parameters)
    return cast(tuple[Tensor, Tensor | None], found)[0]


class _Short(KernelFunction):
    @staticmethod
    def forward(
        recipe: Recipe, causal: bool, valid: Any, q: Tensor, k: Tensor, v: Tensor, logs: Any, *parameters: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        x, _ = recipe.queries(q, slice(0, q.shape[2]))
        y, a = recipe.keys(k, slice(0, k.shape[1]), valid, logs)
        rows, values = x.flatten(1, 2), recipe.wide(v)
        if causal:
            products = _hide_later(rows @ y.mT, q.shape[1], _weigh(a, q, recipe), recipe.start)
            top, total = products @ values, products.sum(-1, keepdim=True) if recipe.divisor else None
        else:
            y = y if a is None else y * _relative(a).to(y.dtype)
            top, total = rows @ (y.mT @ values), along(rows, y.sum(1)) if recipe.divisor else None
        out = top if recipe.divisor is None or total is None else top / recipe.divisor(total)
        return out.to(q.dtype).view(*q.shape[:3], -1), None if total is None else total.view(*q.shape[:3], 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.how = inputs[:2]
        ctx.save_for_backward(*inputs[2:7], *output)
        if output[1] is not None:
            ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = differentiate_once(KERNEL, _gradients, grads[0], *ctx.how, *ctx.saved_tensors)
        return None, None, None, *found


def _gradients(
    grad: Tensor,
    recipe: Recipe,
    causal: bool,
    valid: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    logs: Tensor | None,
    out: Tensor,
    totals: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Gradients by q, k, v, logs and the map's parameters."""
    tape, every, there = Tape(recipe), slice(0, q.shape[2]), slice(0, k.shape[1])
    x, _, back_to_q = tape.record(partial(recipe.queries, rows=every), q)
    y, a, back_to_k = tape.record(
        partial(recipe.keys, rows=there, valid=valid, logs=logs), k, None if valid is None else ~valid
    )
    tops, by_totals = undivide(grad, out, *recipe.divisors(totals), every)
    rows, values, tops = x.flatten(1, 2), recipe.wide(v), tops.flatten(1, 2)
    by_totals = None if by_totals is None else by_totals.flatten(1, 2)
    if causal:
        weights = _weigh(a, q, recipe)
        products = _hide_later(rows @ y.mT, q.shape[1], weights, recipe.start)
        by_products = tops @ values.mT if by_totals is None else torch.baddbmm(by_totals, tops, values.mT)
        by_products = _hide_later(by_products, q.shape[1], weights, recipe.start)
        by_x, by_y, by_v = by_products @ y, by_products.mT @ rows, products.mT @ tops
    else:
        scale = None if a is None else _relative(a).to(y.dtype)
        kept = y if scale is None else y * scale
        by_x, by_kv = tops @ (kept.mT @ values).mT, rows.mT @ tops
        by_y, by_v = values @ by_kv.mT, kept @ by_kv
        if by_totals is not None:
            by_x.addcmul_(by_totals, kept.sum(1)[:, None])
            by_y.add_(by_totals.mT @ rows)
        by_y = by_y if scale is None else by_y.mul_(scale)
    by_a = None if a is None else (by_y * y).sum(-1)
    by_logs = None if logs is None or by_a is None else by_a.to(logs.dtype)
    found = back_to_q(by_x.view(x.shape)), back_to_k(by_y, by_a), by_v
    return *(by.to(x.dtype) for by, x in zip(found, (q, k, v), strict=True)), by_logs, *tape.by_parameters


def _hide_later(products: Tensor, group: int, weights: Tensor | None, start: int) -> Tensor:
    """Products ``[Bh, G N, M]`` of rows and keys as their weights have it, 0 for later keys."""
    square = products.view(len(products), group, -1, products.shape[2])
    return (square.tril_(start) if weights is None else square.mul_(weights)).flatten(1, 2)


def _weigh(a: Tensor | None, q: Tensor, recipe: Recipe) -> Tensor | None:
    """Weights ``[Bh, 1, N, M]`` from logarithms ``[Bh, M]``, relative to the largest that a row sees; 0 later on."""
    if a is None:
        return None
    seen = torch.ones(q.shape[2], a.shape[1], dtype=torch.bool, device=a.device).tril_(recipe.start)
    logs = a[:, None].masked_fill(~seen, float("-inf"))
    return (logs - _finite(logs.amax(-1, keepdim=True))).exp()[:, None].to(recipe.wide(q[:0]).dtype)


def _relative(a: Tensor) -> Tensor:
    """Weights ``[Bh, M, 1]`` from logarithms, relative to the largest."""
    return (a - _finite(a.amax(1, keepdim=True))).exp()[..., None]


def _finite(top: Tensor) -> Tensor:
    return top.masked_fill(top == float("-inf"), 0)
