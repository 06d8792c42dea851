"""Caches of plans and masks that all mechanisms of a process share."""

from __future__ import annotations

from typing import Protocol, TypeVar


class _Cache(Protocol):
    def cache_clear(self) -> None: ...


Cache = TypeVar("Cache", bound=_Cache)

_CACHES: list[_Cache] = []


def shared_cache(cache: Cache) -> Cache:
    """Mark a cache of tensors, such as a function with `functools.lru_cache`, for `empty_shared_caches`."""
    _CACHES.append(cache)
    return cache


def empty_shared_caches() -> None:
    """Drop what earlier calls left for later ones, which then make it again.

    Otherwise a count of memory would miss a mask that another mechanism has made, and subtract one that is dropped
    because others need its room.
    """
    for cache in _CACHES:
        cache.cache_clear()
