"""Softmax over the pairs in the same chunk or in neighboring chunks, in any round: each pair once, without an N x N
matrix.

A round's chunks are gathered a few at a time (a slab). A chunk of queries and the two chunks of keys that it sees form
a tile, whose mask excludes pairs counted in earlier rounds. Rounds are merged by their log-sum-exps, and the backward
pass recomputes the weights from the merged output and log-sum-exp, as in `parts`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..step_sizes import limit_rows
from .lsh import Rounds

ROWS_A_SLAB = 1024  # queries a step; more costs memory and gains no speed
ROWS_A_TILE = 256  # queries a step where even one chunk is longer
LAST_POSITION = 1 << 30  # a position after all others
NEG_INF_BITS = {  # the integer as wide as a float, and the bits of minus infinity in it
    torch.float64: (torch.int64, -(1 << 52)),
    torch.float32: (torch.int32, -(1 << 23)),
    torch.bfloat16: (torch.int16, -(1 << 7)),
    torch.float16: (torch.int16, -(1 << 10)),
}


class Slab(NamedTuple):
    """Some tiles of a round: rows, chunks, and of each chunk the queries."""

    rows: slice
    chunks: slice
    queries: slice


@dataclass(frozen=True, eq=False)
class Layout:
    """The tiles of a round. R rows, C chunks of m slots; keys have one more chunk of empty slots, before the first.
    indices: ``[R, (C + 1) m]``, the slots as indices into all rows together, arbitrary for empty slots. length: the
    number of positions in a row. last_visible: ``[R, C, m]``, the last position that a query sees. key_position: ``[R,
    C, 2m]``. earlier_chunks: for each earlier round, two numbers whose difference is 1 or -1 if it has the pair."""

    indices: Tensor
    length: int
    last_visible: Tensor
    key_position: Tensor
    earlier_chunks: tuple[tuple[Tensor, Tensor], ...]
    causal: bool

    @property
    def size(self) -> int:
        """Slots of a chunk."""
        return self.last_visible.shape[2]

    def slabs(self) -> Iterator[Slab]:
        """The tiles that are computed together."""
        rows, chunks, size = self.last_visible.shape
        chunks_per_slab = max(limit_rows(self.last_visible.device, ROWS_A_SLAB) // size, 1)
        rows_per_slab = max(chunks_per_slab // chunks, 1)  # rows a slab, where the chunks of one do not fill it
        step = size if chunks_per_slab > 1 else ROWS_A_TILE
        for row in range(0, rows, rows_per_slab):
            for chunk in range(0, chunks, chunks_per_slab):
                for top in range(0, min(size, self.length - chunk * size), step):
                    last, end = min(chunk + chunks_per_slab, chunks), min(row + rows_per_slab, rows)
                    yield Slab(slice(row, end), slice(chunk, last), slice(top, min(top + step, size)))

    def keys(self, slab: Slab) -> Tensor:
        """``[A, S]``: where a slab's keys are, the chunk before its first included. A rows, S slots."""
        size = self.size
        return self.indices[slab.rows, slab.chunks.start * size : (slab.chunks.stop + 1) * size]

    def queries(self, x: Tensor, slab: Slab) -> Tensor:
        """The queries' part ``[A, T, W, ..]`` of ``x [A, S, ..]``. T chunks, W queries of each."""
        return _query_chunks(x, self.size)[:, :, slab.queries]

    def trim(self, x: Tensor, slab: Slab) -> Tensor:
        """``x [A, T, W, ..]`` without the slots after a row's end: ``[A * those, ..]``."""
        last = min((slab.chunks.stop - 1) * self.size + slab.queries.stop, self.length)
        return x.flatten(1, 2)[:, : last - slab.chunks.start * self.size - slab.queries.start].flatten(0, 1)

    def mask(self, slab: Slab, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The additive mask ``[A, T, W, 2m]``, and the queries ``[A, T, W]`` that see nothing in this round. In
        integers whose sign means masked: comparisons return bytes, which cost ten times as much as this arithmetic."""
        excluded = self._subtract(self.last_visible, self.key_position, slab)
        if self.earlier_chunks:
            nearest = self._subtract(*self.earlier_chunks[0], slab).abs_()
            for pair in self.earlier_chunks[1:]:
                torch.minimum(nearest, self._subtract(*pair, slab).abs_(), out=nearest)
            excluded |= nearest.sub_(2)
        if not self.causal:  # causal limits stop before the query itself
            excluded.diagonal(self.size + slab.queries.start, -2, -1).fill_(-1)
        excluded >>= 31
        empty_rows = excluded.amax(-1) < 0
        int_dtype, infinity = NEG_INF_BITS[dtype]
        return excluded.to(int_dtype).bitwise_and_(infinity).view(dtype), empty_rows

    def _subtract(self, queries: Tensor, keys: Tensor, slab: Slab) -> Tensor:
        return queries[(*slab, None)] - keys[slab.rows, slab.chunks, None]


def cut_tiles(rounds: Rounds, causal: bool) -> Iterator[tuple[Layout, Slab]]:
    """All tiles, round by round, a slab at a time."""
    for r in range(len(rounds.order)):
        layout = make_layout(rounds, r, causal)
        for slab in layout.slabs():
            yield layout, slab


def make_layout(rounds: Rounds, r: int, causal: bool) -> Layout:
    """The tiles of round r."""
    (_, rows, n), size, device = rounds.order.shape, rounds.size, rounds.order.device
    slots = torch.arange(-size, -(-n // size) * size, device=device)
    order = rounds.order[r].index_select(1, slots.clamp(0, n - 1))
    indices = order + n * torch.arange(rows, device=device)[:, None]
    lengths = n if rounds.lengths is None else rounds.lengths[:, None]
    key_position = order.masked_fill_((slots < 0) | (slots >= lengths), LAST_POSITION)
    query_position = _query_chunks(key_position, size)
    last_visible = query_position - 1 if causal else torch.full_like(query_position, LAST_POSITION - 1)
    last_visible.masked_fill_(query_position == LAST_POSITION, -1)
    earlier_chunks = []
    for chunk in rounds.chunk[:r]:
        doubled = 2 * chunk.view(-1).index_select(0, indices.view(-1)).view(indices.shape)
        earlier_chunks.append((_query_chunks(doubled, size) - 1, key_windows(doubled, size)))
    return Layout(indices, n, last_visible, key_windows(key_position, size), tuple(earlier_chunks), causal)


def _query_chunks(x: Tensor, size: int) -> Tensor:
    """``[R, C, m, ..]``: every chunk of ``x [R, (C + 1) m, ..]`` but the empty one."""
    return x[:, size:].unflatten(1, (-1, size))


def key_windows(x: Tensor, size: int) -> Tensor:
    """``[R, C, .., 2m]``: every chunk of ``x [R, (C + 1) m, ..]`` with the one before it, overlapping views."""
    return x.unfold(1, 2 * size, size)


def gather_rows(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of ``x [R * N, ..]``."""
    return x.index_select(0, indices.reshape(-1)).view(*indices.shape, *x.shape[1:])
