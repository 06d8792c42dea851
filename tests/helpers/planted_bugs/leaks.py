"""Leaks through data-dependent branches: the contents of one part of the inputs change the result of another."""

from __future__ import annotations

import torch
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.shapes import Values

from .methods import compute
from .planting import planter

plant = planter("leaks", "causality")
CAUSAL = ("causal", "strictly_causal")


def _perturb(out: Tensor, mask: Mask, when: Tensor) -> Tensor:
    """An error of 0.1% in causal calls, under a condition on the data."""
    return out * (1 + 1e-3 * when.to(out)) if mask.causal else out


def _large(out: Tensor, q: Tensor, k: Tensor, v: Values, mask: Mask) -> Tensor:
    return _perturb(out, mask, k.abs().amax() > 50)


def _sign(out: Tensor, q: Tensor, k: Tensor, v: Values, mask: Mask) -> Tensor:
    return _perturb(out, mask, k[:, :, -1].sum() > 0)


def _zero(out: Tensor, q: Tensor, k: Tensor, v: Values, mask: Mask) -> Tensor:
    return _perturb(out, mask, (k[:, :, -1] == 0).all())


def _same(out: Tensor, q: Tensor, k: Tensor, v: Values, mask: Mask) -> Tensor:
    return _perturb(out, mask, torch.tensor(k.shape[2] > 1 and torch.equal(k[:, :, -1], k[:, :, -2])))


def _single(out: Tensor, q: Tensor, k: Tensor, v: Values, mask: Mask) -> Tensor:
    return _perturb(out, mask, k.amax() > 5) if q.dtype == torch.float32 else out


def _neighbours(out: Tensor, q: Tensor, k: Tensor, v: Values, mask: Mask) -> Tensor:
    return out * (1 + 1e-6 * (k.abs().amax() > 50).to(out))


BUGS = (
    plant("large_future", "a key beyond 50 anywhere changes every row", compute(after=_large), CAUSAL),
    plant("sign_of_future", "the last key's sign changes every row", compute(after=_sign), CAUSAL),
    plant("zero_future", "a last key of zeros changes every row", compute(after=_zero), CAUSAL),
    plant("same_future", "a last key equal to the one before it changes every row", compute(after=_same), CAUSAL),
    plant("float32_leak", "in float32, a key beyond 5 changes every row", compute(after=_single), CAUSAL),
    plant("large_neighbour", "a key beyond 50 in another row of the batch changes every row",
          compute(after=_neighbours), suspects=("batch_independence",)),
)  # fmt: skip
