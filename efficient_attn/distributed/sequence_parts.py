"""Which part of a sequence each rank has.

With W ranks, ``contiguous`` gives rank r the r-th of W equal parts. ``zigzag`` cuts 2 W chunks and gives it chunks r
and 2 W - 1 - r, so that under a causal mask all ranks have equal work (Brandon et al. 2023, arXiv:2311.09431, has the
same aim with striped positions; chunks r and 2 W - 1 - r are those of Llama 3, arXiv:2407.21783).
"""

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import UsageError, make_unknown_error
from .collectives import Ranks, gather_parts, get_ranks

Order = Literal["contiguous", "zigzag"]
CHUNKS: dict[str, int] = {"contiguous": 1, "zigzag": 2}  # of each rank


def count_chunks(length: int, order: Order, what_is_cut: str = "a rank's part") -> int:
    """The chunks of a rank's part of ``length`` positions. Raises `UsageError` if it cannot be cut."""
    if order not in CHUNKS:
        raise make_unknown_error("order", order, CHUNKS)
    if length < 1 or length % CHUNKS[order]:
        raise UsageError(f"order {order!r} needs parts of {CHUNKS[order]} equal chunks, {what_is_cut} has {length}")
    return CHUNKS[order]


def list_starts(length: int, ranks: Ranks, order: Order = "contiguous") -> tuple[int, ...]:
    """The positions in the whole sequence of the first elements of each chunk of this rank's ``length`` positions."""
    size = length // count_chunks(length, order)
    chunks = (ranks.rank,) if order == "contiguous" else (ranks.rank, 2 * ranks.size - 1 - ranks.rank)
    return tuple(chunk * size for chunk in chunks)


def list_positions(
    length: int, ranks: Ranks, order: Order = "contiguous", device: torch.device | str = "cpu"
) -> Tensor:
    """``[length]``, the positions in the whole sequence of a rank's ``length`` positions."""
    starts = list_starts(length, ranks, order)
    chunk = torch.arange(length // len(starts), device=device)
    return torch.cat([start + chunk for start in starts])


def split_sequence(
    x: Tensor, *, dim: int = 1, order: Order = "contiguous", group: dist.ProcessGroup | None = None
) -> Tensor:
    """This rank's part of a tensor that every rank has, along ``dim``: by default of ``[B, N, d_model]``. Also for
    labels and masks. Raises `UsageError` if the number of chunks does not divide the length."""
    ranks, length = get_ranks(group), x.shape[dim]
    chunks = ranks.size * count_chunks(CHUNKS.get(order, 1), order)
    if length % chunks or not length:
        raise UsageError(f"{ranks.size} ranks in order {order!r} need a multiple of {chunks} positions, got {length}")
    positions = list_positions(length // ranks.size, ranks, order, x.device)
    return x.index_select(dim, positions)


def join_sequence(
    part: Tensor, *, dim: int = 1, order: Order = "contiguous", group: dist.ProcessGroup | None = None
) -> Tensor:
    """The whole sequence on every rank, from the parts of all ranks, without a gradient: the inverse of
    `split_sequence`."""
    ranks, length = get_ranks(group), part.shape[dim]
    with torch.no_grad():
        parts = gather_parts(part, ranks)
    positions = [list_positions(length, ranks._replace(rank=rank), order, part.device) for rank in range(ranks.size)]
    return torch.cat(parts.unbind(0), dim).index_select(dim, torch.cat(positions).argsort())
