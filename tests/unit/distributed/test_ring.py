"""Exact attention around a ring of processes."""

import pytest
import torch
from rank_cases import RankCase, differentiate_twice, find_differences, run_contiguous_ring, run_on_rank
from rank_processes import RankProcesses

from efficient_attn.distributed.collectives import Ranks
from efficient_attn.distributed.ring import RingConfig, find_visible
from efficient_attn.distributed.sequence_parts import Order, list_positions

PADDINGS = ("", "left", "right", "both", "holes", "first", "lengths")
CASES = [
    *(
        RankCase("ring", "full", world, causal, padding)
        for world in (2, 4)
        for causal in (True, False)
        for padding in PADDINGS
    ),
    *(RankCase("ring", "full", 4, causal, length=200, head_dim=d) for causal in (True, False) for d in (32, 128)),
    *(RankCase("ring", "full", 1, causal, "both") for causal in (True, False)),
    *(RankCase("ring", "full", 4, causal, "left", head_dim=8, value_dim=24) for causal in (True, False)),
    *(RankCase("ring", "full", 4, causal, "both", head_dim=24, value_dim=8, strided=True) for causal in (True, False)),
    *(RankCase("ring", "full", 2, False, padding, cross=40) for padding in ("", "holes")),
    *(RankCase("ring", spec, 4, heads=4, kv_heads=n, batch=1) for spec, n in (("mqa", 1), ("gqa", 2), ("full", 4))),
]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_ring_equals_one_process(rank_processes: RankProcesses, case: RankCase) -> None:
    differences = find_differences(case, rank_processes.run(run_on_rank, case, world=case.world))
    assert differences.keys() == {"out", "q", "k", "v"}
    assert max(differences.values()) < 2e-6, differences


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-14), (torch.bfloat16, 2e-2)])
def test_other_dtypes(rank_processes: RankProcesses, dtype: torch.dtype, limit: float) -> None:
    case = RankCase("ring", "full", 4, padding="left", length=40, dtype=dtype)
    differences = find_differences(case, rank_processes.run(run_on_rank, case, world=4))
    assert max(differences.values()) < limit, differences


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_contiguous_order_and_scale(rank_processes: RankProcesses, causal: bool) -> None:
    assert max(rank_processes.run(run_contiguous_ring, causal, world=4)) < 2e-6


@pytest.mark.slow
def test_gradients_can_be_repeated_but_not_differentiated(rank_processes: RankProcesses) -> None:
    for equal, message in rank_processes.run(differentiate_twice, "ring", world=2):
        assert equal
        assert message == "ring attention has no second derivative; backend=dense has one"


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_visible_blocks_are_those_of_the_causal_mask(order: Order) -> None:
    world, length = 4, 6
    for rank in range(world):
        ranks = Ranks(None, rank, world)  # pyright: ignore[reportArgumentType]
        config, own = RingConfig(ranks, True, order, 1.0), list_positions(length, ranks, order)
        for source in range(world):
            keys = list_positions(length, ranks._replace(rank=source), order)
            expected, visible = keys <= own[:, None], find_visible(config, source, length)
            pairs = torch.zeros_like(expected)
            if visible is not None:
                block = torch.ones_like(pairs[visible.rows, visible.keys])
                pairs[visible.rows, visible.keys] = block.tril() if visible.causal else block
            assert torch.equal(pairs, expected), (rank, source)


def test_zigzag_gives_all_ranks_equal_work() -> None:
    counts = []
    for rank in range(4):
        positions = list_positions(6, Ranks(None, rank, 4), "zigzag")  # pyright: ignore[reportArgumentType]
        counts.append(int((torch.arange(24) <= positions[:, None]).sum()))
    assert len(set(counts)) == 1
