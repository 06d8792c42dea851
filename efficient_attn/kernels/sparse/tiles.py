"""Tiles: equal, evenly spaced rectangles of query-key pairs, which one call of a softmax kernel processes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...patterns import Fact, Geometry, Pattern
from ...shared_caches import shared_cache

ROWS_A_STEP = 512  # rows of windows that are views: more costs fresh memory and gains no speed
KEYS_A_STEP = 4096  # keys that are copied together


@dataclass(frozen=True)
class View:
    """Evenly spaced positions, a view: window w has ``first + w * advance + step * (0 .. size - 1)``."""

    first: int
    size: int
    step: int = 1
    advance: int = 0

    def positions(self, first: int, last: int, device: torch.device) -> Tensor:
        """The positions of windows [first, last), ``[windows, size]``."""
        starts = self.first + self.advance * torch.arange(first, last, device=device)
        return starts[:, None] + self.step * torch.arange(self.size, device=device)

    def fetch(self, x: Tensor, first: int, last: int) -> Tensor:
        """The windows ``[Bh, windows, size, ..]`` of ``x [Bh, length, ..]``, as a view."""
        stride, *rest = x.stride()[1:]
        offset = x.storage_offset() + (self.first + first * self.advance) * stride
        strides = (x.stride(0), self.advance * stride, self.step * stride, *rest)
        return x.as_strided((x.shape[0], last - first, self.size, *x.shape[2:]), strides, offset)

    def scatter_add(self, grad: Tensor, part: Tensor, first: int, last: int) -> None:
        """Add the windows' gradient ``part`` into ``grad [Bh, length, ..]``: the transpose of `fetch`."""
        if self.advance == 0:
            View(self.first, self.size, self.step).fetch(grad, 0, 1).add_(part.sum(1, keepdim=True))
            return
        # windows may overlap, which an addition in place does not allow: pieces as wide as the advance do not
        piece = self.size if self.advance < self.step or last - first == 1 else self.advance // self.step
        for offset in range(0, self.size, piece):
            width = min(piece, self.size - offset)
            target = View(self.first + offset * self.step, width, self.step, self.advance).fetch(grad, first, last)
            target.add_(part[:, :, offset : offset + width])


@dataclass(frozen=True, eq=False)
class Gather:
    """Key blocks copied together: window w has the blocks ``table[w]`` of ``block`` keys; -1 for none. whole: every
    block exists in full, so that blocks are copied and not single keys."""

    table: Tensor
    block: int
    whole: bool

    @property
    def size(self) -> int:
        """Keys of a window."""
        return self.table.shape[1] * self.block

    def positions(self, first: int, last: int, device: torch.device) -> Tensor:
        """The positions of windows [first, last), ``[windows, size]``; negative for none."""
        blocks = self.table[first:last].to(device)
        keys = blocks[:, :, None] * self.block + torch.arange(self.block, device=device)
        return keys.masked_fill(blocks[:, :, None] < 0, -1).flatten(1)

    def fetch(self, x: Tensor, first: int, last: int) -> Tensor:
        """The windows ``[Bh, windows, size, width]`` of ``x [Bh, length, width]``, copied."""
        source, index = self._locate(x, first, last)
        return source.index_select(1, index).view(x.shape[0], last - first, self.size, x.shape[2])

    def scatter_add(self, grad: Tensor, part: Tensor, first: int, last: int) -> None:
        """Add the windows' gradient ``part`` into ``grad [Bh, length, width]``: the transpose of `fetch`."""
        target, index = self._locate(grad, first, last)
        target.index_add_(1, index, part.reshape(grad.shape[0], len(index), -1))

    def _locate(self, x: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        if not self.whole:
            return x, self.positions(first, last, x.device).clamp(0, x.shape[1] - 1).flatten()
        blocks = x.shape[1] // self.block
        return x[:, : blocks * self.block].view(len(x), blocks, -1), self.table[first:last].flatten().to(x.device)


@dataclass(frozen=True)
class TilingRule:
    """Which pairs a tiling of a plan is to count: those of its fact that no fact before it has counted."""

    fact: Fact | Pattern
    earlier_facts: tuple[Fact, ...]
    g: Geometry

    def __call__(self, rows: Tensor, keys: Tensor) -> Tensor:
        """Whether query index and key position belong to the tiling, elementwise; keys that do not exist never do."""
        i = rows + self.g.start
        allowed = self.fact.allows(i, keys, self.g) & (keys >= 0) & (keys < self.g.m)
        if self.earlier_facts:
            allowed = allowed & ~Pattern(self.earlier_facts).allows(i, keys, self.g)
        return allowed & (keys <= i) if self.g.causal else allowed


@dataclass(frozen=True, eq=False)
class Tile:
    """Windows ``0 .. count - 1``: query indices ``queries``, each over the keys ``keys``. rule: which pairs count; None
    if all do. mask: its result ``[rows, keys]``, the same for all windows, if computed beforehand. fresh: none of its
    rows has a result yet that it would be merged with."""

    count: int
    queries: View
    keys: View | Gather
    rule: TilingRule | None
    mask: Tensor | None = None
    fresh: bool = False

    @property
    def pairs(self) -> int:
        """Pairs computed."""
        return self.count * self.queries.size * self.keys.size

    @property
    def windows_per_step(self) -> int:
        """Windows a step."""
        if isinstance(self.keys, Gather):
            return max(KEYS_A_STEP // self.keys.size, 1)
        return max(ROWS_A_STEP // self.queries.size, 1)


class Step(NamedTuple):
    """The windows [first, last) of a tile, which one kernel call processes."""

    tile: Tile
    first: int
    last: int

    @property
    def pairs(self) -> int:
        """Pairs computed."""
        return self.tile.queries.size * self.tile.keys.size * (self.last - self.first)

    def queries(self, x: Tensor) -> Tensor:
        """The queries ``[Bh, windows, rows, ..]`` of ``x [Bh, N, ..]``, as a view."""
        return self.tile.queries.fetch(x, self.first, self.last)

    def keys(self, x: Tensor) -> Tensor:
        """The keys ``[Bh, windows, keys, width]`` of ``x [Bh, M, width]``."""
        return self.tile.keys.fetch(x, self.first, self.last)


@dataclass(frozen=True, eq=False)
class Tiling:
    """Tiles over the same keys: all of them, or those at the positions ``columns``, which are copied together once."""

    tiles: tuple[Tile, ...]
    columns: Tensor | None = None

    def select_keys(self, x: Tensor) -> Tensor:
        """The keys or values ``[Bh, length, width]`` that the tiles index. If whole blocks are gathered, an incomplete
        last one is padded: torch's gathering copies non-contiguous tensors in every call."""
        if self.columns is not None:
            return x.index_select(1, self.columns.to(x.device))
        blocks = {t.keys.block for t in self.tiles if isinstance(t.keys, Gather) and t.keys.whole}
        over = x.shape[1] % max(blocks, default=1)
        return F.pad(x, (0, 0, 0, max(blocks) - over)) if over else x

    def positions(self, step: Step, device: torch.device) -> Tensor:
        """The key positions of a step, ``[windows, keys]``."""
        positions = step.tile.keys.positions(step.first, step.last, device)
        return positions if self.columns is None else self.columns.to(device)[positions]

    def allowed(self, step: Step, device: torch.device) -> Tensor | None:
        """Which pairs of a step count, ``[1 or windows, rows, keys]``; None where all do."""
        tile, first, last = step
        if tile.rule is None or tile.mask is not None:
            if tile.mask is None:
                return None
            return tile.mask[None] if device.type == "cpu" else _place_mask(tile, device)
        rows = tile.queries.positions(first, last, device)
        return tile.rule(rows[:, :, None], self.positions(step, device)[:, None, :])

    def steps(self) -> Iterator[Step]:
        """The tiles, cut into as many windows as one kernel call processes."""
        for tile in self.tiles:
            for first in range(0, tile.count, tile.windows_per_step):
                yield Step(tile, first, min(first + tile.windows_per_step, tile.count))

    def pairs(self) -> int:
        """Pairs that count, in all tiles."""
        count = 0
        for step in self.steps():
            allowed = self.allowed(step, torch.device("cpu"))
            windows = step.last - step.first if allowed is not None and len(allowed) == 1 else 1
            count += step.pairs if allowed is None else int(allowed.sum()) * windows
        return count


@shared_cache
@lru_cache(maxsize=64)
def _place_mask(tile: Tile, device: torch.device) -> Tensor:
    """The mask of a tile ``[1, rows, keys]`` on a device, to which it is copied once."""
    assert tile.mask is not None
    with torch.inference_mode(False):  # a later backward pass could not save inference tensors
        return tile.mask.to(device)[None]


TilePlan = tuple[Tiling, ...]
