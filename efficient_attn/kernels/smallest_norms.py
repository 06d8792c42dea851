"""Softmax over the last keys and those of the smallest norm, in one pass over a sequence with a bounded set of keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ..contract.decode_state import KVCache, allocate
from ..contract.mask import Mask
from ..errors import UsageError
from .dense import masked_softmax, widen
from .selected_keys import take_keys

ROWS = 64  # positions that are read together


def keep_smallest(norms: Tensor, eligible: Tensor, count: int) -> Tensor:
    """Of the eligible keys of each row ``[B, heads, N, M]`` those with the smallest ``norms [B, heads, M]``; of equal
    ones the first."""
    order = norms.argsort(dim=-1, stable=True)[:, :, None].expand(eligible.shape)
    sorted_flags = eligible.gather(-1, order)
    smallest = sorted_flags & (sorted_flags.cumsum(-1) <= count)
    return torch.zeros_like(eligible).scatter(-1, order, smallest)


class Candidates(NamedTuple):
    """Keys that later queries may see, in the order of positions: ``keys [B, Hkv, C, D]``, values, ``valid [B, Hkv,
    C]``.

    left: the first so many have left the window; they differ between heads. start: the position of the next one, which
    the others follow.
    """

    keys: Tensor
    values: Tensor
    valid: Tensor
    left: int
    start: int

    def append(self, keys: Tensor, values: Tensor, valid: Tensor) -> Candidates:
        """With the keys at the next positions."""
        return self._replace(
            keys=torch.cat([self.keys, keys], 2),
            values=torch.cat([self.values, values], 2),
            valid=torch.cat([self.valid, valid], 2),
        )

    @property
    def positions(self) -> Tensor:
        """``[C]``, -1 for those that have left the window."""
        numbers = torch.arange(
            self.start - self.left, self.start - self.left + self.keys.shape[2], device=self.keys.device
        )
        return numbers.masked_fill(numbers < self.start, -1)

    def norms(self) -> Tensor:
        """The squares of the norms, infinite for keys that do not count."""
        return self.keys.double().square().sum(-1).masked_fill(~self.valid, inf)

    def attend(self, q: Tensor, positions: Tensor, window: int, count: int) -> Tensor:
        """Of queries ``[B, H, N, D]`` at their positions, over the last keys and the smallest."""
        (batch, heads, n, width), kv_heads = q.shape, self.keys.shape[1]
        i, j, valid = positions[:, None], self.positions, self.valid[:, :, None]
        recent = valid & (j <= i) & (j > i - window)
        visible = recent | keep_smallest(self.norms(), valid & (j <= i - window), count)
        scores = widen(q).reshape(batch, kv_heads, -1, width) @ widen(self.keys).mT * width**-0.5
        weights = masked_softmax(scores.unflatten(2, (-1, n)), visible[:, :, None]).flatten(2, 3)
        return (weights @ widen(self.values)).view(batch, heads, n, -1).to(q.dtype)

    def reduce(self, end: int, window: int, count: int) -> Candidates:
        """The keys that a query at position ``end`` or later may see."""
        leaving = min(max(end - window + 1 - self.start, 0), self.keys.shape[2] - self.left)
        older, start = self.left + leaving, self.start + leaving
        if older <= count:
            return self._replace(left=older, start=start)
        places = self.norms()[:, :, :older].argsort(dim=-1, stable=True)[:, :, :count].sort(dim=-1).values
        keys, values = (take_keys(x[:, :, :older], places) for x in (self.keys, self.values))
        first = Candidates(keys, values, self.valid[:, :, :older].gather(2, places), count, start)
        return first.append(self.keys[:, :, older:], self.values[:, :, older:], self.valid[:, :, older:])


def attend_smallest(q: Tensor, k: Tensor, v: Tensor, mask: Mask, window: int, count: int) -> Tensor:
    """Causal attention of a whole sequence; keys are read once."""
    (batch, _, n, _), m = q.shape, k.shape[2]
    start, valid = mask.start(n, m), mask.key_valid(m)
    valid = torch.ones(1, m, dtype=torch.bool, device=k.device) if valid is None else valid
    valid = valid[:, None].expand(batch, k.shape[1], m)
    candidates = Candidates(k[:, :, :0], v[:, :, :0], valid[:, :, :0], 0, 0)
    parts = [q.new_zeros(*q.shape[:2], min(max(-start, 0), n), v.shape[3])]
    for first in range(0, max(start + n, 0), ROWS):
        stop = min(first + ROWS, start + n)
        block = slice(min(first, m), min(stop, m))
        candidates = candidates.append(k[:, :, block], v[:, :, block], valid[:, :, block])
        rows = slice(max(first - start, 0), max(stop - start, 0))
        if rows.stop > rows.start:
            positions = torch.arange(start + rows.start, stop, device=k.device)
            parts.append(candidates.attend(q[:, :, rows], positions, window, count))
        candidates = candidates.reduce(stop, window, count)
    return torch.cat(parts, 2)


@dataclass(frozen=True, kw_only=True)
class NormCache(KVCache):
    """The keys and values of a decode state, in the order of positions, of which ``window`` are the last and at most
    ``count`` others."""

    window: int
    count: int

    @property
    def slots(self) -> int:
        """The number of positions that are allocated."""
        return min(self.window + self.count, self.capacity)

    def append(self, k: Tensor, v: Tensor) -> Self:
        """Add T positions and drop those that no later query sees."""
        end = self.length + k.shape[2]
        if end > self.capacity:
            raise UsageError(f"the decode state was made for max_len={self.capacity} positions, {end} are needed")
        candidates = self._join(k, v).reduce(end - 1, self.window, self.count)
        keys, values = allocate(self.keys, k, self.slots), allocate(self.values, v, self.slots)
        used = candidates.keys.shape[2]
        keys[:, :, :used], values[:, :, :used] = candidates.keys, candidates.values
        return replace(self, keys=keys, values=values, length=end)

    def _join(self, k: Tensor, v: Tensor) -> Candidates:
        """The stored keys and new ones."""
        valid = torch.ones((), dtype=torch.bool, device=k.device).expand(k.shape[:3])
        if self.keys is None or self.values is None:
            return Candidates(k, v, valid, 0, 0)
        used = min(self.length, self.keys.shape[2])
        recent = min(self.length, self.window)
        stored = torch.ones((), dtype=torch.bool, device=k.device).expand(*self.keys.shape[:2], used)
        start = self.length - recent
        candidates = Candidates(self.keys[:, :, :used], self.values[:, :, :used], stored, used - recent, start)
        return candidates.append(k, v, valid)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The outputs of new positions, before they are appended."""
        positions = torch.arange(self.length, self.length + q.shape[2], device=q.device)
        return self._join(k, v).attend(q, positions, self.window, self.count)
