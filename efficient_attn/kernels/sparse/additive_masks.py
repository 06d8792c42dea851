"""Additive masks of a geometry, for torch's fused kernel."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..softmax.fused import additive_mask

MAX_CACHED_PAIRS = 1 << 20  # pairs of a mask in `MASK_CACHE`


class AdditiveMask(NamedTuple):
    """What is added to scores, -inf for masked pairs, and the rows without keys; None if all have some."""

    scores: Tensor | None
    empty_rows: Tensor | None


def make_additive_mask(allowed: Tensor, dtype: torch.dtype) -> AdditiveMask:
    """The additive form of ``allowed [.., rows, keys]``."""
    if allowed.all():
        return AdditiveMask(None, None)
    empty_rows = ~allowed.any(-1)
    return AdditiveMask(additive_mask(allowed, dtype), empty_rows if empty_rows.any() else None)
