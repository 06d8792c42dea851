"""Masks and weights of a geometry, created once: in a short call creating them takes longer than the products."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ..shared_caches import shared_cache

MAX_CACHE_BYTES = 1 << 24  # bytes of all cached masks


Mask = TypeVar("Mask", bound=tuple[Tensor | None, ...])  # in the form that a kernel needs


class _MaskCache:
    """The least recently used masks are dropped, so that their bytes are bounded."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._masks: OrderedDict[Hashable, tuple[Any, ...]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable, make: Callable[[], Mask]) -> Mask:
        """The mask of a key, created if necessary; one above the limit is not cached."""
        with self._lock:
            mask = self._masks.get(key)
            if mask is not None:
                self._masks.move_to_end(key)
                return cast(Mask, mask)
        with torch.inference_mode(False), torch.no_grad():  # a backward pass could not save inference tensors
            mask = make()
        with self._lock:
            if key not in self._masks and _count_bytes(mask) <= self.limit:
                self._masks[key] = mask
                self.bytes += _count_bytes(mask)
                while self.bytes > self.limit:
                    self.bytes -= _count_bytes(self._masks.popitem(last=False)[1])
        return mask

    def cache_clear(self) -> None:
        """Drop all masks."""
        with self._lock:
            self._masks.clear()
            self.bytes = 0


MASK_CACHE = shared_cache(_MaskCache(MAX_CACHE_BYTES))


def _count_bytes(mask: tuple[Any, ...]) -> int:
    return sum(x.numel() * x.element_size() for x in mask if x is not None)
