"""Parts of a sequence, in both orders."""

import pytest
import torch
from rank_cases import split_and_join
from rank_processes import RankProcesses

import efficient_attn as ea
from efficient_attn.distributed.collectives import Ranks
from efficient_attn.distributed.sequence_parts import Order, list_positions, list_starts


def make_ranks(rank: int, size: int) -> Ranks:
    return Ranks(None, rank, size)  # pyright: ignore[reportArgumentType]


def test_orders() -> None:
    assert [list_positions(2, make_ranks(r, 3)).tolist() for r in range(3)] == [[0, 1], [2, 3], [4, 5]]
    zigzag = [list_positions(4, make_ranks(r, 2), "zigzag").tolist() for r in range(2)]
    assert zigzag == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert list_starts(4, make_ranks(0, 2), "zigzag") == (0, 6)
    assert list_positions(4, make_ranks(0, 1), "zigzag").tolist() == [0, 1, 2, 3]


def test_parts_that_cannot_be_cut() -> None:
    with pytest.raises(ea.UsageError, match="order 'zigzag' needs parts of 2 equal chunks, a rank's part has 3"):
        list_starts(3, make_ranks(0, 2), "zigzag")
    with pytest.raises(ea.UsageError, match="unknown order 'zigzac'; did you mean 'zigzag'"):
        list_starts(4, make_ranks(0, 2), "zigzac")  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_join_is_the_inverse_of_split(rank_processes: RankProcesses, order: Order, world: int) -> None:
    whole = torch.arange(2.0 * 24 * 3).view(2, 24, 3)
    for joined in rank_processes.run(split_and_join, whole, order, world=world):
        assert torch.equal(joined, whole)


@pytest.mark.slow
def test_lengths_that_ranks_do_not_divide(rank_processes: RankProcesses) -> None:
    for text in rank_processes.run(split_and_join, torch.zeros(1, 12, 1), "zigzag", world=4):
        assert text == "UsageError: 4 ranks in order 'zigzag' need a multiple of 8 positions, got 12"
