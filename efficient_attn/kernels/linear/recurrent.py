"""One position at a time: the recurrent form of linear attention, for decoding. Shapes are those of `sums`."""

from __future__ import annotations

import torch
from torch import Tensor

from .linear_config import LinearConfig, divide
from .sums import Sums, dot_rows, relative_weights

FIRST_POSITION = slice(0, 1)


def step(config: LinearConfig, q: Tensor, k: Tensor, v: Tensor, logs: Tensor | None, past: Sums) -> tuple[Tensor, Sums]:
    """Add a position to the sums, in place, and read them: ``[Bh, G, 1, E]`` and the sums. No gradient."""
    kv, z, reference = past
    x = config.queries(q, FIRST_POSITION)[0].flatten(1, 2)
    y, a = config.keys(k, FIRST_POSITION, None, logs)
    if a is not None and reference is not None:
        newest = (a[:, 0] if config.decays else torch.maximum(reference, a[:, 0])).to(reference.dtype)
        carry = relative_weights(reference, newest).to(kv.dtype)[:, None]
        y = y * relative_weights(a, newest[:, None]).to(y.dtype)[..., None]
        reference = newest
        kv.mul_(carry[..., None])
        z.mul_(carry)
    kv.baddbmm_(y.mT, config.widen(v))
    if config.divisor:
        z += y[:, 0]
    top = (x @ kv).unflatten(1, (-1, 1))
    out = q.new_empty(top.shape)
    divide(config, top, dot_rows(x, z).unflatten(1, (-1, 1)) if config.divisor else None, out)
    return out, Sums(kv, z, reference)
