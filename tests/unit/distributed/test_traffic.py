"""The bytes that ranks send: counted, written by the process, and by formula."""

from typing import Any

import pytest
import torch
from rank_cases import WRITTEN, RankCase, run_on_rank
from rank_processes import RankProcesses

import efficient_attn as ea
from efficient_attn.distributed.collectives import Ranks
from efficient_attn.distributed.halo import Halo
from efficient_attn.distributed.traffic import (
    count_call_bytes,
    count_halo_bytes,
    count_head_bytes,
    count_recurrent_bytes,
    count_ring_bytes,
    count_state_bytes,
)

LONG: Any = {"length": 512, "heads": 8, "kv_heads": 4, "head_dim": 32}
CASES = [
    RankCase("ring", "full", 4, **LONG),
    RankCase("ring", "full", 2, False, "both", **LONG),
    RankCase("ring", "full", 2, dtype=torch.bfloat16, **LONG),
    RankCase("heads", "full", 4, **LONG),
    RankCase("heads", "full", 2, False, "left", **LONG),
    RankCase("halo", "sliding_window:window=50", 4, False, "left", **LONG),
    RankCase("halo", "sliding_window:window=150", 4, **LONG),
    RankCase("state", "linear", 4, **LONG),
    RankCase("state", "retention", 2, **LONG),
    RankCase("state", "performer:n_features=64", 4, False, "left", **LONG),
    RankCase("state", "kda", 4, padding="left", **LONG),
    RankCase("ring", "full", 1, **LONG),
]


def count_by_formula(case: RankCase, rank: int, *, training: bool) -> int:
    ranks, padded = Ranks(None, rank, case.world), bool(case.padding)  # pyright: ignore[reportArgumentType]
    options: Any = {"causal": case.causal, "training": training, "padded": padded}
    return count_call_bytes(case.create(), case.scheme, case.local_shape, ranks, case.dtype, **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bytes_are_those_of_the_formula(rank_processes: RankProcesses, case: RankCase) -> None:
    for rank, part in enumerate(rank_processes.run(run_on_rank, case, world=case.world)):
        assert part["sent"] == count_by_formula(case, rank, training=False)
        assert part["sent_training"] == count_by_formula(case, rank, training=True)


@pytest.mark.slow
@pytest.mark.skipif(not WRITTEN.exists(), reason="Linux counts the bytes that a process writes")
@pytest.mark.parametrize("case", [case for case in CASES if case.world > 1], ids=str)
def test_processes_write_what_is_counted(rank_processes: RankProcesses, case: RankCase) -> None:
    for part in rank_processes.run(run_on_rank, case, world=case.world):
        assert part["sent_training"] <= part["written"] < 1.01 * part["sent_training"] + 10_000  # headers of messages


def test_formulas() -> None:
    """Of a ring of four: three blocks of keys and values forward; backward three more, and three of gradients."""
    shape, ranks = ea.Shape(2, 8, 4, 100, 100, 32, 16), Ranks(None, 1, 4)  # pyright: ignore[reportArgumentType]
    keys, queries, floats = 2 * 4 * 100 * (32 + 16), 2 * 8 * 100 * (32 + 16), torch.float32
    assert count_ring_bytes(shape, ranks, floats) == 3 * 4 * keys
    assert count_ring_bytes(shape, ranks, torch.bfloat16, training=True) == 3 * (2 * 2 + 4) * keys
    assert count_head_bytes(shape, ranks, floats, training=True) == 2 * 3 * (queries + keys)
    assert count_halo_bytes(shape, ranks, floats, Halo(10, 0)) == 10 * 2 * 4 * (32 + 16) * 4
    assert count_state_bytes(shape, ranks, floats, 64) == 3 * 8 * 64 * 17 * 4
    assert count_recurrent_bytes(shape, ranks, floats, training=True) == 2 * 3 * 8 * 32 * 48 * 4
