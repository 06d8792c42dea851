"""The bytes that ranks send: counted, written by the process, and by formula."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from rank_cases import WRITTEN, RankCase, run_on_rank
from rank_processes import RankProcesses

from efficient_attn.distributed import traffic
from efficient_attn.distributed.collectives import Ranks
from efficient_attn.distributed.halo import find_halo

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
    ranks, shape, attn = Ranks(None, rank, case.world), case.local_shape, case.create()  # pyright: ignore[reportArgumentType]
    options: dict[str, Any] = {"training": training}
    agreement = traffic.count_agreement_bytes(ranks)
    if case.scheme == "state":
        if case.spec == "kda":
            return agreement + traffic.count_recurrent_bytes(shape, ranks, case.dtype, **options)
        if case.spec == "retention":  # each head has its own decay
            shape = replace(shape, kv_heads=shape.heads)
        features = {"linear": 32, "retention": 32}.get(case.spec, 64)
        options["weighted"] = case.spec != "linear"
        return agreement + traffic.count_state_bytes(shape, ranks, case.dtype, features, **options)
    options["padded"] = bool(case.padding)
    if case.scheme == "halo":
        halo = find_halo(attn, case.causal)
        assert halo is not None
        return agreement + traffic.count_halo_bytes(shape, ranks, case.dtype, halo, **options)
    count = traffic.count_ring_bytes if case.scheme == "ring" else traffic.count_head_bytes
    return agreement + count(shape, ranks, case.dtype, **options)


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
