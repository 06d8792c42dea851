"""Decode states: preallocated caches, because growing a cache in each step costs more than attention."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from ..errors import UnsupportedError, UsageError
from .mask import Mask, zero_invalid
from .row_starts import RowStarts, make_step_mask


@dataclass(frozen=True)
class KVCache:
    """All keys and values so far, in buffers of the full length. ``keys [B, Hkv, capacity, D]``, ``values [.., E]``."""

    capacity: int
    keys: Tensor | None = None
    values: Tensor | None = None
    length: int = 0
    starts: RowStarts | None = None

    @property
    def slots(self) -> int:
        """The number of positions that are allocated."""
        return self.capacity

    @property
    def mask(self) -> Mask:
        """The mask of queries that are aligned with the last keys."""
        return make_step_mask(self.starts, self.length)

    def append(self, k: Tensor, v: Tensor) -> Self:
        """Append T positions; buffers that were not allocated are allocated in the first step."""
        end = _check_end(self.length, k, self.capacity)
        k, v = blank_before_start(self, k), blank_before_start(self, v)
        keys, values = allocate(self.keys, k, self.capacity), allocate(self.values, v, self.capacity)
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        return replace(self, keys=keys, values=values, length=end)

    def filled(self) -> tuple[Tensor, Tensor]:
        """The stored keys and values, as views in the order of their slots."""
        assert self.keys is not None
        assert self.values is not None
        stored = slice(min(self.length, self.slots))
        return self.keys[:, :, stored], self.values[:, :, stored]


@dataclass(frozen=True)
class LatentCache:
    """The inputs of keys and values, one row for each position, for all heads: ``rows [B, 1, capacity, width]``."""

    capacity: int
    rows: Tensor | None = None
    length: int = 0
    starts: RowStarts | None = None

    def append(self, rows: Tensor) -> Self:
        """Write T positions after the last."""
        end = _check_end(self.length, rows, self.capacity)
        rows = blank_before_start(self, rows)
        rows_buffer = allocate(self.rows, rows, self.capacity)
        rows_buffer[:, :, self.length : end] = rows
        return replace(self, rows=rows_buffer, length=end)

    def filled(self) -> Tensor:
        """The rows so far, as a view."""
        assert self.rows is not None
        return self.rows[:, :, : self.length]


@dataclass(frozen=True, kw_only=True)
class RollingCache(KVCache):
    """The first ``prefix`` positions, and the last ``capacity`` of the others in a ring. Its size does not grow with N.
    Position p is in slot p if it is below ``prefix``, else in slot ``prefix + (p - prefix) % capacity``. ``length``
    counts all positions so far, those overwritten included."""

    max_len: int
    prefix: int = 0

    @property
    def slots(self) -> int:
        """The number of positions that are allocated: the first ones, and the ring."""
        return self.prefix + self.capacity

    def append(self, k: Tensor, v: Tensor) -> Self:
        """Write T positions; of those after the prefix only the last ``capacity`` stay."""
        end = _check_end(self.length, k, self.max_len)
        k, v = blank_before_start(self, k), blank_before_start(self, v)
        keys, values = allocate(self.keys, k, self.slots), allocate(self.values, v, self.slots)
        for first, slot, size in self._find_spans(end):
            offset = first - self.length
            keys[:, :, slot : slot + size] = k[:, :, offset : offset + size]
            values[:, :, slot : slot + size] = v[:, :, offset : offset + size]
        return replace(self, keys=keys, values=values, length=end)

    def _find_spans(self, end: int) -> Iterator[tuple[int, int, int]]:
        """First position, first slot and size of each contiguous write: the prefix, and two parts of the ring."""
        if self.length < self.prefix:
            yield self.length, self.length, min(end, self.prefix) - self.length
        first = max(self.length, self.prefix, end - self.capacity)
        while first < end:
            ring_slot = (first - self.prefix) % self.capacity
            size = min(end - first, self.capacity - ring_slot)
            yield first, self.prefix + ring_slot, size
            first += size

    def positions(self) -> Tensor:
        """The position in each used slot, ``[used]``."""
        slots = torch.arange(min(self.length, self.slots))
        last = self.length - 1
        ring = last - (last - slots) % self.capacity if self.capacity else slots
        return torch.where(slots < self.prefix, slots, ring)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Mask]:
        """The stored keys and values, oldest first, and T positions after them, with the mask of their queries."""
        end = self.length + k.shape[2]
        if self.length:
            k, v = (torch.cat(pair, 2) for pair in zip(self.in_order(), (k, v), strict=True))
        return k, v, make_step_mask(self.starts, end, end - k.shape[2])

    def in_order(self) -> tuple[Tensor, Tensor]:
        """The stored keys and values, oldest first."""
        keys, values = self.filled()
        if self.length <= self.slots:
            return keys, values
        order = self.positions().argsort().to(keys.device)
        return keys[:, :, order], values[:, :, order]


def blank_before_start(state: Any, x: Tensor) -> Tensor:
    """New rows ``[B, heads, T, width]`` of a state, zero before their row's start."""
    return x if state.starts is None else zero_invalid(x, state.starts.valid_or_none(state.length, x.shape[2]))


def _check_end(length: int, k: Tensor, max_len: int) -> int:
    end = length + k.shape[2]
    if end > max_len:
        raise UsageError(f"the decode state was made for max_len={max_len} positions, {end} are needed")
    return end


def allocate(buffer: Tensor | None, like: Tensor, capacity: int) -> Tensor:
    """The buffer, or a new one for ``capacity`` positions of tensors like ``[B, heads, T, width]``."""
    if buffer is None:
        return like.new_zeros(like.shape[0], like.shape[1], capacity, like.shape[3])
    if (buffer.shape[:2], buffer.shape[3]) != (like.shape[:2], like.shape[3]) or buffer.dtype != like.dtype:
        raise UsageError(
            f"the decode state was made for [B, heads, T, width] = {[*buffer.shape[:2], 'T', buffer.shape[3]]} "
            f"{buffer.dtype}, got {list(like.shape)} {like.dtype}"
        )
    return buffer


Cache = TypeVar("Cache", bound=KVCache)


def preallocate(cache: Cache, sizes: tuple[int | None, ...], dtype: torch.dtype, device: torch.device) -> Cache:
    """Allocate the buffers of ``(batch, kv_heads, key width, value width)``; with a None the first step does it."""
    if None in sizes:
        return cache
    batch, heads, *widths = sizes
    slots = cache.slots
    keys, values = (torch.zeros(batch, heads, slots, w, dtype=dtype, device=device) for w in widths)  # type: ignore[arg-type]
    return replace(cache, keys=keys, values=values)


def cache_dtype(state: Any) -> torch.dtype | None:
    """The dtype of a cache; None if it is empty, quantised, or not a cache."""
    stored = state.rows if isinstance(state, LatentCache) else getattr(state, "keys", None)
    return stored.dtype if isinstance(stored, Tensor) and stored.is_floating_point() else None


def state_bytes(state: Any) -> int:
    """Bytes of all tensors in a decode state, each storage counted once. Counted, not computed from a formula."""
    # not by address, which tensors on torch's meta device do not have
    storages = {s._cdata: s.nbytes() for s in (t.untyped_storage() for t in iterate_tensors(state))}
    return sum(storages.values())


def select_state_rows(state: Any, batch: int, rows: Sequence[int]) -> Any:
    """A copy of a decode state with these rows of its batch, in this order; rows may be repeated. The state and the
    copy share nothing. The first dimension of each tensor is the batch, or batch and heads folded. Raises
    `UnsupportedError` for a state with other contents."""
    if isinstance(state, Tensor):
        return state.unflatten(0, (batch, -1))[list(rows)].flatten(0, 1)
    if state is None or isinstance(state, bool | int | float | str):
        return state
    if select_rows := getattr(state, "select_rows", None):
        return select_rows(rows, select_state_rows)

    def select(part: Any) -> Any:
        return select_state_rows(part, batch, rows)

    kind: Any = type(state)
    if isinstance(state, tuple) and hasattr(state, "_fields"):  # a named one
        return kind(*map(select, state))
    if kind in (tuple, list):
        return kind(map(select, state))
    if isinstance(state, Mapping):
        return {name: select(part) for name, part in state.items()}
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **{f.name: select(getattr(state, f.name)) for f in fields(state)})
    raise UnsupportedError(f"a decode state with a {kind.__name__} in it cannot be copied row by row")


def iterate_tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a decode state, each as often as it occurs."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from iterate_tensors(getattr(value, f.name))
    elif isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from iterate_tensors(item)
