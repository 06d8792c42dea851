"""One position at a time: the recurrent form of linear attention, for decoding. Shapes are those of `sums`."""

from __future__ import annotations

import torch
from torch import Tensor

from .recipe import Recipe, divide
from .sums import Sums, along, relative

ONE = slice(0, 1)


def step(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, logs: Tensor | None, past: Sums) -> tuple[Tensor, Sums]:
    """Add a position to the sums, in place, and read them: ``[Bh, G, 1, E]`` and the sums. No gradient."""
    kv, z, reference = past
    x = recipe.queries(q, ONE)[0].flatten(1, 2)
    y, a = recipe.keys(k, ONE, None, logs)
    if a is not None and reference is not None:
        newest = (a[:, 0] if recipe.decays else torch.maximum(reference, a[:, 0])).to(reference.dtype)
        carry = relative(reference, newest).to(kv.dtype)[:, None]
        y = y * relative(a, newest[:, None]).to(y.dtype)[..., None]
        reference = newest
        kv.mul_(carry[..., None])
        z.mul_(carry)
    kv.baddbmm_(y.mT, recipe.wide(v))
    if recipe.divisor:
        z += y[:, 0]
    top = (x @ kv).unflatten(1, (-1, 1))
    out = q.new_empty(top.shape)
    divide(recipe, top, along(x, z).unflatten(1, (-1, 1)) if recipe.divisor else None, out)
    return out, Sums(kv, z, reference)
