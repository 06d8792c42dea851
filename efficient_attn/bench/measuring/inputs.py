"""Inputs whose contents change before every sample, in unchanged storage.

Random rows are stored in a pool, and each call of a sample gets tensors that begin at another row: no two calls of a
sample see the same contents. Before a sample the pool is rewritten, its first rows and the rest each starting from a
random row, so that contents do not repeat, though corners do, against caches keyed by them. Pointers, shapes, strides
and version counters stay the same, and rows stay whole.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...contract.mechanism import Attention
from ...contract.shapes import Sample, Shape
from ..case import Case

MAX_INPUT_SETS = 256  # calls of a sample with distinct contents; further calls start again
MIN_INPUT_SETS = 3  # where a sample is a single call, the next sample gets other tensors
MAX_CORNER_ROWS = 2  # rows with which a pool may begin
CACHE_LINE_BYTES = 64  # bytes: tensors begin where a line of the cache does
MIN_ROWS = 256  # rows of a head that are drawn even for a call over one


def draw_inputs(case: Case, attn: Attention, shape: Shape) -> Sample:
    """Inputs of a shape, a pure function of the seed and the sizes: all mechanisms of a group get the same queries."""
    sizes = (
        f"{case.group.sampling.seed} {shape.batch} {shape.heads} {shape.n} {shape.m} {shape.head_dim} {shape.value_dim}"
    )
    generator = torch.Generator().manual_seed(zlib.crc32(sizes.encode()))  # of a wider seed torch drops the upper half
    dtype = getattr(torch, case.group.config.dtype)
    return attn.sample(shape, generator=generator, dtype=dtype, device=case.group.config.device)


class RowPool:
    """One drawn tensor ``[B, heads, length, ..]``, and tensors of its kind, of ``length`` positions, that change."""

    def __init__(self, drawn: Tensor, length: int, sets: int) -> None:
        batch, heads, _, *tail = drawn.shape
        width = math.prod(tail)
        self.drawn = drawn.reshape(-1, width)
        rows, step = (
            batch * heads * length,
            CACHE_LINE_BYTES // math.gcd(CACHE_LINE_BYTES, width * drawn.element_size()),
        )
        self.edge = min(MIN_INPUT_SETS * step, rows // 2), rows // 2  # where the first rows may end
        self.memory = drawn.new_empty((rows + (sets - 1) * step, width))
        size = (batch, heads, length, *tail)
        strides = drawn.new_empty(size, device="meta").stride()
        self.tensors = [self.memory.as_strided(size, strides, at * step * width) for at in range(sets)]
        self.write(0, 0, 0)

    def write(self, first: int, rest: int, cut: int) -> None:
        """Set the rows before ``cut`` to the random rows from one index on, and the others to those from another index
        on.

        Writes past the version counters.
        """
        self.stretches = (0, cut, first), (cut, len(self.memory), rest)
        for target, drawn in self._list_regions():
            target.data.copy_(drawn)

    def is_intact(self) -> bool:
        """Whether the pool still contains what was written."""
        return all(torch.equal(current, drawn) for current, drawn in self._list_regions())

    def _list_regions(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The pool piece by piece, each with the drawn rows that belong there."""
        count = len(self.drawn)
        for at, until, first in self.stretches:
            while at < until:
                row = (first + at) % count
                rows = min(count - row, until - at)
                yield self.memory[at : at + rows], self.drawn[row : row + rows]
                at += rows


class ChangingInputs:
    """The inputs of the calls of each sample: ``n`` queries and ``m`` keys, from pools that change."""

    def __init__(self, drawn: Sample, n: int, m: int, *, sides: Mapping[str, str], seed: int, sets: int) -> None:
        self.random, self.sets = random.Random(seed), sets
        lengths = {"q": n, "k": m, "v": m} | {name: n if side == "query" else m for name, side in sides.items()}
        self.names: dict[str, int] = {}  # a tensor shared by two inputs stays shared
        self.pools: dict[int, RowPool] = {}
        for name, x in {"q": drawn.q, "k": drawn.k, "v": drawn.v, **drawn.inputs}.items():
            if x is not None:
                self.names[name] = id(x)
                self.pools.setdefault(id(x), RowPool(x, lengths[name], sets))
        self.corners = [
            {key: self._draw(len(p.drawn)) for key, p in self.pools.items()} for _ in range(MAX_CORNER_ROWS)
        ]

    def change(self, calls: int) -> list[Sample]:
        """Write new contents, and return the inputs of the calls, in random order."""
        corner = self.random.choice(self.corners)
        for key, pool in self.pools.items():
            pool.write(corner[key], self._draw(len(pool.drawn)), self.random.randint(*pool.edge))
        count = min(self.sets, max(calls, MIN_INPUT_SETS))
        return [self._sample(place) for place in self.random.sample(range(count), min(calls, count))]

    def _draw(self, below: int) -> int:
        return self.random.randrange(below)

    def _sample(self, place: int) -> Sample:
        by_name = {name: self.pools[key].tensors[place] for name, key in self.names.items()}
        return Sample(by_name.pop("q"), by_name.pop("k"), by_name.pop("v", None), by_name)

    def find_modified(self) -> str | None:
        """The name of an input whose contents were modified."""
        return next((name for name, key in self.names.items() if not self.pools[key].is_intact()), None)

    def find_owner(self, x: Tensor) -> str | None:
        """The name of the input whose memory a tensor shares."""
        at = x.untyped_storage().data_ptr()
        pools = {name: self.pools[key].memory.untyped_storage().data_ptr() for name, key in self.names.items()}
        return next((name for name, pointer in pools.items() if pointer == at), None)


def make_inputs(
    case: Case,
    attn: Attention,
    shape: Shape,
    drawn: Sample | None,
    *,
    seed: int,
    sets: int = MAX_INPUT_SETS,
) -> ChangingInputs:
    """Changing inputs for calls of a shape. drawn: inputs of that shape; where it has few positions, more are drawn."""
    sides = {name: i.side for name, i in attn.traits.inputs.items()}
    if drawn is None or shape.n < MIN_ROWS:
        drawn = draw_inputs(
            case, attn, replace(shape, n=MIN_ROWS, m=MIN_ROWS) if shape.n == shape.m < MIN_ROWS else shape
        )
    return ChangingInputs(drawn, shape.n, shape.m, sides=sides, seed=seed, sets=sets)


def list_tensors(sample: Sample) -> Sequence[Tensor]:
    """All tensors of a sample."""
    return tuple(x for x in (sample.q, sample.k, sample.v, *sample.inputs.values()) if x is not None)
