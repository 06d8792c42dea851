"""Locality-sensitive hashing: vectors with similar directions mostly get the same bucket.

A round hashes every position by random directions and sorts positions by (bucket, position), padding last. Chunks of
the sorted order determine which positions see each other. Everything is in integers, without gradients, and shared by
the reference and the fast implementation, so that they cannot disagree about a bucket.
"""

from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from .. import products
from ..custom_ops import in_functorch_transform, is_traced, make_op
from ..derivatives import vmap_serially
from ..step_sizes import limit_rows

BITS_PER_POLYTOPE = 6  # 64 buckets; more need several cross-polytopes, so that work grows with their logarithm
MAX_POLYTOPES = 4  # 2^24 buckets at most
ROWS_A_STEP = 2048  # positions whose projections exist together


@dataclass(frozen=True, eq=False)
class Rounds:
    """Positions sorted in several rounds, each cut into chunks of ``size``. R counts the rows: batch times heads.
    order: ``[rounds, R, N]`` int32, the positions as sorted. chunk: ``[rounds, R, N]`` int32, the chunk of a position.
    lengths: ``[R]``, how many positions of a row are not padding; None where none is."""

    order: Tensor
    chunk: Tensor
    size: int
    lengths: Tensor | None

    def visible_pairs(self, causal: bool) -> Tensor:
        """Whether query i sees key j in any round, or itself if it sees no other: bool ``[R, N, N]``."""
        _, rows, n = self.chunk.shape
        pairs = torch.zeros(rows, n, n, dtype=torch.bool, device=self.chunk.device)
        for chunk in self.chunk:
            distance = chunk[:, :, None] - chunk[:, None, :]
            pairs |= (distance == 0) | (distance == 1)
        if self.lengths is not None:
            slot = torch.empty_like(self.order[0]).scatter_(1, self.order[0].long(), _make_slots(rows, n, self.order))
            valid = slot < self.lengths[:, None]
            pairs &= valid[:, :, None] & valid[:, None, :]
        if causal:
            pairs = pairs.tril()
        itself = pairs.diagonal(dim1=1, dim2=2).clone()  # no slot: a padded position is not a query either
        other_pairs = pairs & ~torch.eye(n, dtype=torch.bool, device=pairs.device)
        self_only = itself & ~other_pairs.any(-1)
        return other_pairs | torch.diag_embed(self_only)


def draw_rotations(rounds: int, width: int, seed: int) -> Tensor:
    """Random directions ``[rounds, polytopes, directions, width]``, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rounds, MAX_POLYTOPES, 1 << (BITS_PER_POLYTOPE - 1), width, generator=generator)


def choose_hash_bits(length: int, size: int) -> int:
    """The number of buckets for so many positions, as a power of two: the first with ``size`` or fewer on average."""
    return min(max((-(-length // size) - 1).bit_length(), 1), BITS_PER_POLYTOPE * MAX_POLYTOPES)


def count_directions(bits: int) -> list[int]:
    """Directions of each polytope of a hash with so many bits; d of them give 2d buckets."""
    full, rest = divmod(bits, BITS_PER_POLYTOPE)
    return [1 << (BITS_PER_POLYTOPE - 1)] * full + ([1 << (rest - 1)] if rest else [])


@torch.no_grad()
def sort_rounds(x: Tensor, rotations: Tensor, size: int, valid: Tensor | None = None) -> Rounds:
    """Hash ``x [B, H, N, D]`` with the rotations and sort; ``valid [B, N]`` with padding. A row of the batch has the
    buckets of its own length, so that it is sorted as it would be alone."""
    sort = _sort_rounds_op if is_traced(x) or in_functorch_transform() else _sort_rounds
    order, chunk = sort(x, rotations, size, valid)
    lengths = None if valid is None else valid.sum(1, dtype=torch.int32).repeat_interleave(x.shape[1])
    return Rounds(order, chunk, size, lengths)


def _sort_rounds(x: Tensor, rotations: Tensor, size: int, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """``[rounds, R, N]``: the positions as sorted, and the chunk of each."""
    batch, heads, n, _ = x.shape
    lengths = [n] * batch if valid is None else valid.sum(1).tolist()
    codes = find_buckets(x, rotations, size, lengths)
    padding_code = 1 << choose_hash_bits(max(lengths), size)
    if valid is not None:
        codes.masked_fill_(~valid[:, None], padding_code)
    rows = batch * heads
    order, flat_order = _sort_codes(codes.view(-1, n), padding_code + 1)
    chunk = torch.empty_like(order)
    chunk.view(-1)[flat_order] = (_make_slots(len(order), n, order) // size).view(-1)
    return order.view(-1, rows, n), chunk.view(-1, rows, n)


def _shapes(x: Tensor, rotations: Tensor, size: int, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    rows = x.new_empty(len(rotations), x.shape[0] * x.shape[1], x.shape[2], dtype=torch.int32)
    return rows, torch.empty_like(rows)


_sort_rounds_op = make_op("sort_rounds", _sort_rounds, _shapes)
_sort_rounds_op.register_vmap(partial(vmap_serially, _sort_rounds_op))


def _sort_codes(codes: Tensor, code_count: int) -> tuple[Tensor, Tensor]:
    """Each row's positions by (code, position), also as indices into all rows together. All rows together, because
    torch sorts one long sequence of small integers by their digits, several times faster."""
    rows, n = codes.shape
    row = torch.arange(rows, device=codes.device)[:, None]
    keys = codes + (row * code_count).to(torch.int32) if rows * code_count < 1 << 31 else codes + row * code_count
    flat_order = keys.flatten().sort(stable=True)[1]
    return (flat_order.view(rows, n) - row * n).to(torch.int32), flat_order


def find_buckets(x: Tensor, rotations: Tensor, size: int, lengths: list[int]) -> Tensor:
    """The bucket of each position ``[rounds, B, H, N]``, int32, of as many as a row's length needs."""
    batch, heads, n, width = x.shape
    codes = torch.zeros(rotations.shape[0], batch, heads, n, dtype=torch.int32, device=x.device)
    first = 0
    for bits, members in groupby(lengths, key=partial(choose_hash_bits, size=size)):
        last = first + len(list(members))
        rows = x[first:last].reshape(-1, width)
        _write_buckets(rows, rotations, count_directions(bits), codes[:, first:last].flatten(1))
        first = last
    return codes


def _write_buckets(x: Tensor, rotations: Tensor, counts: list[int], codes: Tensor) -> None:
    """Write the buckets of ``x [rows, D]`` into ``codes [rounds, rows]``: one cross-polytope after another."""
    step = limit_rows(x.device, ROWS_A_STEP)
    for count, rotation in zip(counts, rotations.unbind(1), strict=False):
        axes = rotation[:, :count].flatten(0, 1).double()
        for first in range(0, len(x), step):
            # in float64 for all dtypes, so that a key close to a border between buckets has the same one in each
            rows = x[first : first + step].double()
            projections = products.project_onto(rows, axes).view(len(rows), -1, count)
            corner = _argmax_abs(projections).long()
            opposite = projections.gather(-1, corner) < 0
            code = codes[:, first : first + step]
            code.mul_(2 * count).add_((corner + count * opposite)[..., 0].mT)


def _argmax_abs(x: Tensor) -> Tensor:
    """The index ``[.., 1]`` of the largest absolute value in a row ``[.., 2^b]`` of float64; the first of nearly equal
    ones. It replaces the last bits of numbers, compared as integers: torch's argmax takes five times as long."""
    last = x.shape[-1] - 1
    places = torch.arange(last, -1, -1, device=x.device)
    return (
        x.abs().view(torch.int64).bitwise_and_(~last).bitwise_or_(places).amax(-1, keepdim=True).bitwise_not_() & last
    )


def _make_slots(rows: int, n: int, like: Tensor) -> Tensor:
    return torch.arange(n, dtype=like.dtype, device=like.device).expand(rows, n)
