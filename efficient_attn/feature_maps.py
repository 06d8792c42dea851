"""Feature maps for linearized attention: a softmax kernel replaced by phi(q) . phi(k), as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def _same(width: int) -> int:
    return width


@dataclass(frozen=True)
class FeatureMap:
    """phi, applied to queries and keys ``[.., D]`` alike, giving ``[.., width(D)]``.

    Its dot products should not be negative; rows whose products sum to zero give zeros.
    """

    phi: Callable[[Tensor], Tensor]
    width: Callable[[int], int] = _same

    def __call__(self, x: Tensor) -> Tensor:
        return self.phi(x)


def _elu_plus_one(x: Tensor) -> Tensor:
    if x.requires_grad and torch.is_grad_enabled():
        return F.elu(x) + 1
    return F.elu(x).add_(1)  # the same numbers without another pass over fresh memory


elu_plus_one = FeatureMap(_elu_plus_one)
