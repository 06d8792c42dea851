"""Short sequences: all positions at once, in torch's own operations; the backward pass makes them again for autograd.

Cutting into stretches and making features again saves memory, of which a short call needs little, and costs more calls
of torch than its products take time. Causal rows form their products with all keys: for few keys that is the least work
as well.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ..derivatives import KernelFunction, differentiate_once
from .recipe import AT_ONCE, Recipe
from .sums import KERNEL

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
    return cast(Tensor, _Short.apply(recipe, causal, valid, q, k, v, logs, *recipe.parameters))


class _Short(KernelFunction):
    @staticmethod
    def forward(
        recipe: Recipe, causal: bool, valid: Any, q: Tensor, k: Tensor, v: Tensor, logs: Any, *parameters: Tensor
    ) -> Tensor:
        return _attend(recipe, causal, valid, q, k, v, logs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.how = inputs[:2]
        ctx.save_for_backward(*inputs[2:7])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = differentiate_once(KERNEL, _gradients, grads[0], *ctx.how, *ctx.saved_tensors)
        return None, None, None, *found


def _gradients(grad: Tensor, recipe: Recipe, causal: bool, valid: Tensor | None, *given: Tensor | None) -> Any:
    """Gradients by q, k, v, logs and the map's parameters."""
    with torch.enable_grad():
        leaves = [None if x is None else x.detach().requires_grad_() for x in given]
        out = _attend(recipe, causal, valid, *cast(Any, leaves))
        sources = [x for x in (*leaves, *recipe.parameters) if x is not None]
        found = iter(torch.autograd.grad(out, sources, grad, allow_unused=True, materialize_grads=True))
    return tuple(None if x is None else next(found) for x in (*leaves, *recipe.parameters))


def _attend(
    recipe: Recipe, causal: bool, valid: Tensor | None, q: Tensor, k: Tensor, v: Tensor, logs: Tensor | None
) -> Tensor:
    (_, group, n, _), m = q.shape, k.shape[1]
    x, _ = recipe.queries(q, slice(0, n))
    y, a = recipe.keys(k, slice(0, m), valid, logs)
    rows, values = x.flatten(1, 2), recipe.wide(v)
    if causal:
        products = rows @ y.mT
        square = products.view(len(products), group, n, m)
        square = square.tril(recipe.start) if a is None else square * _weigh(a, n, recipe.start)[:, None].to(y.dtype)
        products = square.flatten(1, 2)
        top, total = products @ values, products.sum(-1, keepdim=True)
    else:
        if a is not None:
            y = y * (a - _finite(a.detach().amax(1, keepdim=True))).exp().to(y.dtype)[..., None]
        top, total = rows @ (y.mT @ values), rows @ y.sum(1)[..., None]
    out = top if recipe.divisor is None else top / recipe.divisor(total)
    return out.to(q.dtype).view(*q.shape[:3], -1)


def _weigh(a: Tensor, n: int, start: int) -> Tensor:
    """Weights ``[Bh, N, M]`` from logarithms ``[Bh, M]``, relative to the largest that a row sees; 0 for later keys."""
    seen = torch.ones(n, a.shape[1], dtype=torch.bool, device=a.device).tril_(start)
    logs = a[:, None].masked_fill(~seen, float("-inf"))
    return (logs - _finite(logs.detach().amax(-1, keepdim=True))).exp()


def _finite(top: Tensor) -> Tensor:
    return top.masked_fill(top == float("-inf"), 0)
