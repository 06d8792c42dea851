"""Inputs whose contents change before every sample, in unchanged storage.

Random rows are stored in a pool, and each call of a sample gets tensors that begin at another row, so that no two calls
of a sample have the same contents. Before a sample the pool is rewritten: its first rows and the rest each continue the
drawn rows from a random one. Contents do not repeat, but the first rows (corners) do, so that a cache keyed by them
returns wrong results. Pointers, shapes, strides and version counters do not change.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...contract.mechanism import Attention
from ...contract.shapes import Sample, Shape
from ..case import Case

MAX_INPUT_SETS = 256  # calls of a sample with distinct contents; further calls reuse them
MIN_INPUT_SETS = 3  # sets to choose from, so that consecutive samples of a single call mostly get other tensors
N_CORNERS = 2  # different rows with which a pool may begin
CACHE_LINE_BYTES = 64  # tensors begin at the start of a cache line
MIN_ROWS = 256  # least number of rows of a head that are drawn, even if a call has fewer


def draw_inputs(case: Case, attn: Attention, shape: Shape) -> Sample:
    """Inputs of a shape. They depend only on the seed and the sizes, so that all mechanisms of a group get the same."""
    sizes = shape.batch, shape.heads, shape.n, shape.m, shape.head_dim, shape.value_dim
    text = " ".join(map(str, (case.group.sampling.seed, *sizes)))
    generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))  # torch ignores the upper half of wider seeds
    dtype = getattr(torch, case.group.config.dtype)
    return attn.sample(shape, generator=generator, dtype=dtype, device=case.group.config.device)


class RowPool:
    """Tensors ``[B, heads, length, ..]`` in one memory, which is rewritten from the rows of ``drawn``. They overlap,
    unless they are ``separate``."""

    def __init__(self, drawn: Tensor, length: int, sets: int, *, separate: bool = False) -> None:
        batch, heads, _, *tail = drawn.shape
        width = math.prod(tail)
        self.drawn = drawn.reshape(-1, width)
        rows = batch * heads * length
        step = CACHE_LINE_BYTES // math.gcd(CACHE_LINE_BYTES, width * drawn.element_size())
        self.cut_range = min(MIN_INPUT_SETS * step, rows // 2), rows // 2  # where the first rows may end
        if separate:
            line, step = step, -(-rows // step) * step
            while math.gcd(step, len(self.drawn)) > math.gcd(line, len(self.drawn)):
                step += line  # until as many tensors as otherwise begin at different drawn rows
        self.memory = drawn.new_empty((rows + (sets - 1) * step, width))
        size = (batch, heads, length, *tail)
        strides = drawn.new_empty(size, device="meta").stride()
        self.tensors = [self.memory.as_strided(size, strides, i * step * width) for i in range(sets)]
        self.write(0, 0, 0)

    def write(self, first: int, rest: int, cut: int) -> None:
        """Set the rows before ``cut`` to the drawn rows from index ``first``, and the others to those from ``rest``.

        Does not change version counters.
        """
        self.parts = (0, cut, first), (cut, len(self.memory), rest)
        for target, drawn in self._list_regions():
            target.data.copy_(drawn)

    def is_intact(self) -> bool:
        """Whether the pool still contains what was written."""
        return all(torch.equal(current, drawn) for current, drawn in self._list_regions())

    def _list_regions(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Consecutive regions of the pool, each with the drawn rows that it contains."""
        count = len(self.drawn)
        for start, end, first in self.parts:
            while start < end:
                row = (first + start) % count
                rows = min(count - row, end - start)
                yield self.memory[start : start + rows], self.drawn[row : row + rows]
                start += rows


class ChangingInputs:
    """The inputs of the calls of each sample: ``n`` queries and ``m`` keys, from pools that change.

    separate_bytes: if given, calls cycle through inputs of more than so many bytes together, in separate memory.
    """

    def __init__(
        self,
        drawn: Sample,
        n: int,
        m: int,
        *,
        sides: Mapping[str, str],
        seed: int,
        sets: int,
        separate_bytes: int | None = None,
    ) -> None:
        lengths = {"q": n, "k": m, "v": m} | {name: n if side == "query" else m for name, side in sides.items()}
        drawn_by_name = {"q": drawn.q, "k": drawn.k, "v": drawn.v, **drawn.inputs}
        tensors = {name: x for name, x in drawn_by_name.items() if x is not None}
        size = sum({id(x): x[:, :, :1].nbytes * lengths[name] for name, x in tensors.items()}.values())
        separate = separate_bytes is not None and size <= separate_bytes  # larger inputs evict themselves
        if separate_bytes is not None and separate:
            sets = max(MIN_INPUT_SETS, separate_bytes // size + 1)
        self.random, self.sets = random.Random(seed), sets
        self.names: dict[str, int] = {}  # a tensor shared by two inputs stays shared
        self.pools: dict[int, RowPool] = {}
        for name, x in tensors.items():
            self.names[name] = id(x)
            if id(x) not in self.pools:
                self.pools[id(x)] = RowPool(x, lengths[name], sets, separate=separate)
        self.corners = [
            {key: self.random.randrange(len(pool.drawn)) for key, pool in self.pools.items()} for _ in range(N_CORNERS)
        ]

    def change(self, calls: int) -> list[Sample]:
        """Write new contents, and return the inputs of the calls, in random order."""
        corner = self.random.choice(self.corners)
        for key, pool in self.pools.items():
            pool.write(corner[key], self.random.randrange(len(pool.drawn)), self.random.randint(*pool.cut_range))
        count = min(self.sets, max(calls, MIN_INPUT_SETS))
        return [self._make_sample(index) for index in self.random.sample(range(count), min(calls, count))]

    def _make_sample(self, index: int) -> Sample:
        by_name = {name: self.pools[key].tensors[index] for name, key in self.names.items()}
        return Sample(by_name.pop("q"), by_name.pop("k"), by_name.pop("v", None), by_name)

    def find_modified(self) -> str | None:
        """The name of an input whose contents were modified."""
        return next((name for name, key in self.names.items() if not self.pools[key].is_intact()), None)

    def find_owner(self, x: Tensor) -> str | None:
        """The name of the input whose memory a tensor shares."""
        return find_sharing(x, {name: self.pools[key].memory for name, key in self.names.items()})


def make_inputs(
    case: Case,
    attn: Attention,
    shape: Shape,
    drawn: Sample | None,
    *,
    seed: int,
    sets: int = MAX_INPUT_SETS,
    separate_bytes: int | None = None,
) -> ChangingInputs:
    """Changing inputs for calls of a shape. drawn: inputs of that shape, unless it has fewer than `MIN_ROWS`.
    separate_bytes: as of `ChangingInputs`, instead of ``sets``."""
    sides = {name: i.side for name, i in attn.traits.inputs.items()}
    if drawn is None or shape.n < MIN_ROWS:
        is_short = shape.n == shape.m < MIN_ROWS
        drawn = draw_inputs(case, attn, replace(shape, n=MIN_ROWS, m=MIN_ROWS) if is_short else shape)
    more: dict[str, Any] = {"seed": seed, "sets": sets, "separate_bytes": separate_bytes}
    return ChangingInputs(drawn, shape.n, shape.m, sides=sides, **more)


def list_tensors(sample: Sample) -> Sequence[Tensor]:
    """All tensors of a sample."""
    return tuple(x for x in (sample.q, sample.k, sample.v, *sample.inputs.values()) if x is not None)


def find_sharing(x: Tensor, tensors: Mapping[str, Tensor | None]) -> str | None:
    """The name of the first of these tensors that shares its memory with ``x``."""
    pointer = x.untyped_storage().data_ptr()
    named = tensors.items()
    return next((name for name, t in named if t is not None and t.untyped_storage().data_ptr() == pointer), None)
