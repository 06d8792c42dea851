"""Additive masks of a geometry, made once: in a short call to make one takes longer than the softmax under it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from ..softmax.fused import additive

KEPT_BYTES = 1 << 24  # of all masks that are kept
LARGEST = 1 << 20  # pairs of one that is kept


class Added(NamedTuple):
    """What is added to scores, -inf where a pair does not count, and the rows that see nothing; None where all do."""

    scores: Tensor | None
    blind: Tensor | None


class _Kept:
    """The masks that were asked for last, so many that their bytes stay in bounds."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._masks: OrderedDict[Hashable, Added] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable, make: Callable[[], Added]) -> Added:
        """The mask of a key, made now if it has to be; one as large as the limit is not kept."""
        with self._lock:
            found = self._masks.get(key)
            if found is not None:
                self._masks.move_to_end(key)
                return found
        with torch.inference_mode(False), torch.no_grad():  # a backward pass could not save inference tensors
            found = make()
        with self._lock:
            if key not in self._masks and _size(found) <= self.limit:
                self._masks[key] = found
                self.bytes += _size(found)
                while self.bytes > self.limit:
                    self.bytes -= _size(self._masks.popitem(last=False)[1])
        return found


kept = _Kept(KEPT_BYTES)


def add_mask(allowed: Tensor, dtype: torch.dtype) -> Added:
    """The additive form of ``allowed [.., rows, keys]``."""
    if allowed.all():
        return Added(None, None)
    blind = ~allowed.any(-1)
    return Added(additive(allowed, dtype), blind if blind.any() else None)


def _size(added: Added) -> int:
    return sum(x.numel() * x.element_size() for x in added if x is not None)
