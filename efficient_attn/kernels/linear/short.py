"""Short sequences: all positions at once, in as few calls of torch as there are steps.

Cutting into stretches saves memory, of which a short call needs little, and costs more calls of torch than its products
take time. So what is cut here are batch and heads, where they are many: models in training see many short sequences.
Causal rows form their products with all keys: for few keys that is the least work as well. Features are made again in
the backward pass, as in the long forms.
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
LONGEST_CUT, LONGEST_WEIGHED = 128, 64  # where lanes go group by group, and where keys have weights then


def is_short(recipe: Recipe, q: Tensor, k: Tensor, causal: bool, *, weighed: bool) -> bool:
    """Whether a call with queries ``q [Bh, G, N, D]`` and keys ``k [Bh, M, D]`` is one for `attend_short`. weighed:
    whether keys have weights besides their features.

    What there is at once, features of a side or products of a causal call, must fit the cache as a stretch does; many
    lanes of few positions are taken in groups that do. That pays up to where a call's products are as many as a
    stretch's; weights, a power each, end it sooner. Our C++ has its own way with causal calls.
    """
    n, m = q.shape[2], k.shape[1]
    if (recipe.native and causal) or torch.compiler.is_compiling():
        return False
    if recipe.decays and not (causal and 0 <= recipe.start <= m - n):
        return False  # weights are relative to a row's own position, which has to be a key's
    if len(q) <= _count_lanes(recipe, q, k, causal):
        return max(n, m) <= (LONGEST_WEIGHED if recipe.decays else LONGEST)
    return max(n, m) <= (LONGEST_WEIGHED if weighed else LONGEST_CUT) and _count_lanes(recipe, q, k, causal) > 0


def _count_lanes(recipe: Recipe, q: Tensor, k: Tensor, causal: bool) -> int:
    """Of how many of the ``Bh`` what there is at once fits the cache."""
    group, n, m = q.shape[1], q.shape[2], k.shape[1]
    features = group * max(n, m) * recipe.phi.width(k.shape[2])
    return AT_ONCE // max(1, features, group * n * m if causal else 0)


def _cut(recipe: Recipe, q: Tensor, k: Tensor, causal: bool) -> list[slice]:
    count, size = len(q), max(1, _count_lanes(recipe, q, k, causal))
    return [slice(a, min(a + size, count)) for a in range(0, count, size)]


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
        out, totals = q.new_empty(*q.shape[:3], v.shape[2]), []
        for lanes in _cut(recipe, q, k, causal):
            found = _attend(recipe, causal, _take(valid, lanes), q[lanes], k[lanes], v[lanes], _take(logs, lanes))
            out[lanes] = found[0]
            totals.append(found[1])
        return out, torch.cat(totals) if recipe.divisor else None

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


def _take(x: Tensor | None, lanes: slice) -> Any:
    return None if x is None else x[lanes]


def _attend(
    recipe: Recipe, causal: bool, valid: Tensor | None, q: Tensor, k: Tensor, v: Tensor, logs: Tensor | None
) -> tuple[Tensor, Any]:
    """Rows, and their sums of weights where they are divided by these."""
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
    return out.view(*q.shape[:3], -1), None if total is None else total.view(*q.shape[:3], 1)


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
    tape = Tape(recipe)
    found = [torch.empty_like(x) for x in (q, k, v)]
    by_logs = None if logs is None else torch.empty_like(logs)
    for lanes in _cut(recipe, q, k, causal):
        parts = (_take(x, lanes) for x in (valid, q, k, v, logs, out, totals))
        *by, by_a = _differentiate(grad[lanes], tape, recipe, causal, *parts)
        for whole, part in zip(found, by, strict=True):
            whole[lanes] = part
        if by_logs is not None and by_a is not None:
            by_logs[lanes] = by_a
    return *found, by_logs, *tape.by_parameters


def _differentiate(
    grad: Tensor,
    tape: Tape,
    recipe: Recipe,
    causal: bool,
    valid: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    logs: Tensor | None,
    out: Tensor,
    totals: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of some lanes by q, k, v and logs."""
    every, there = slice(0, q.shape[2]), slice(0, k.shape[1])
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
    return back_to_q(by_x.view(x.shape)), back_to_k(by_y, by_a), by_v, by_a


def _hide_later(products: Tensor, group: int, weights: Tensor | None, start: int) -> Tensor:
    """Products ``[Bh, G N, M]`` of rows and keys as their weights have it, 0 for later keys."""
    square = products.view(len(products), group, -1, products.shape[2])
    return (square.tril_(start) if weights is None else square.mul_(weights)).flatten(1, 2)


def _weigh(a: Tensor | None, q: Tensor, recipe: Recipe) -> Tensor | None:
    """Weights ``[Bh, 1, N, M]`` from logarithms ``[Bh, M]``, 0 later on: relative to the largest that a row sees, or to
    that of its own position where weights fade with distance."""
    if a is None:
        return None
    seen = torch.ones(q.shape[2], a.shape[1], dtype=torch.bool, device=a.device).tril_(recipe.start)
    logs = a[:, None].masked_fill(~seen, float("-inf"))
    own = a[:, recipe.start : recipe.start + q.shape[2], None] if recipe.decays else logs.amax(-1, keepdim=True)
    return (logs - _finite(own)).exp()[:, None].to(recipe.wide(q[:0]).dtype)


def _relative(a: Tensor) -> Tensor:
    """Weights ``[Bh, M, 1]`` from logarithms, relative to the largest."""
    return (a - _finite(a.amax(1, keepdim=True))).exp()[..., None]


def _finite(top: Tensor) -> Tensor:
    return top.masked_fill(top == float("-inf"), 0)
