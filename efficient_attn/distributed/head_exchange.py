"""Attention of a sequence that is spread over ranks, with heads exchanged for positions.

Each rank gets the whole sequence of 1/W of the heads, attends, and returns to its part of the sequence with all heads
(DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv:2309.14509). What is sent does not grow with the number of ranks.
"""

from collections.abc import Callable

from torch import Tensor

from ..errors import UsageError
from .collectives import Ranks, exchange_parts, gather_parts


def scatter_heads(x: Tensor, ranks: Ranks) -> Tensor:
    """``[B, H, N, D]``, this rank's part of a sequence, to ``[B, H / W, W N, D]``, all of it of this rank's heads."""
    return exchange_parts(x.unflatten(1, (ranks.size, -1)).movedim(1, 0), ranks).movedim(0, 2).flatten(2, 3)


def gather_heads(x: Tensor, ranks: Ranks) -> Tensor:
    """``[B, H / W, W N, D]`` to ``[B, H, N, D]``: the inverse of `scatter_heads`."""
    return exchange_parts(x.unflatten(2, (ranks.size, -1)).movedim(2, 0), ranks).movedim(0, 1).flatten(1, 2)


def attend_by_heads(
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    ranks: Ranks,
) -> Tensor:
    """The rows of ``q [B, H, N, D]`` over all of ``k, v [B, Hkv, M, D or E]``. attend: attention of the whole sequence
    with 1/W of the heads, and ``valid [B, W M]``. valid: bool ``[B, M]``, of this rank's keys."""
    for name, x in (("heads", q), ("key-value heads", k)):
        if x.shape[1] % ranks.size:
            size = f"{ranks.size} ranks do not divide {x.shape[1]} {name}"
            raise UsageError(f"context_parallel='heads': {size}; use context_parallel='ring', which takes any number")
    all_valid = None if valid is None else gather_parts(valid, ranks).movedim(0, 1).flatten(1)
    out = attend(scatter_heads(q, ranks), scatter_heads(k, ranks), scatter_heads(v, ranks), all_valid)
    return gather_heads(out, ranks)
