"""Ranks: certain if times are distinct, uncertain otherwise, and reproducible."""

from __future__ import annotations

import random
from collections.abc import Sequence

import report_runs as runs

from efficient_attn.report.site.group_results import GroupResult, Rank, TimedMechanism, list_leaderboards, rank_records


def _records(*means: float, spread: float = 0.01, rounds: int = 12) -> list[runs.Record]:
    noise = random.Random(1)
    return [
        runs.Record(
            runs.row(f"v{at}"),
            {
                "latency_ms": [[mean * noise.lognormvariate(0, spread)] for _ in range(rounds)],
                "process": [0, 1, 2] * (rounds // 3),
            },
        )
        for at, mean in enumerate(means)
    ]


def test_distinct_times_have_certain_ranks() -> None:
    assert rank_records(_records(3, 1, 2)) == [Rank(3, 3, 3), Rank(1, 1, 1), Rank(2, 2, 2)]


def test_similar_times_have_overlapping_ranks() -> None:
    ranks = rank_records(_records(1, 1.001, 5, spread=0.05))
    assert [(rank.low, rank.high) for rank in ranks if rank] == [(1, 2), (1, 2), (3, 3)]
    assert ranks == rank_records(_records(1, 1.001, 5, spread=0.05))


def test_disturbances_of_whole_rounds_do_not_affect_ranks() -> None:
    steady = _records(1, 1.02, spread=0.0)
    for record in steady:
        record.samples["latency_ms"] = [
            [passes[0] * (1 + at % 5)] for at, passes in enumerate(record.samples["latency_ms"])
        ]
    assert rank_records(steady) == [Rank(1, 1, 1), Rank(2, 2, 2)]


def test_few_rounds_give_no_rank() -> None:
    assert rank_records(_records(1, 2, rounds=3)) == [None, None]


def _make_group(machine: str, length: int, names: Sequence[str] = ("a", "b")) -> GroupResult:
    rows = [runs.row(name, machine=machine, mode="forward", seq_len=length, latency_ms=1.0) for name in names]
    return GroupResult(
        (machine, "forward"), length, "here", tuple(TimedMechanism(r.variant, r, "exact", None) for r in rows)
    )


def test_leaderboards_are_per_machine_at_the_longest_length() -> None:
    boards = list_leaderboards([_make_group("x", 64), _make_group("x", 128), _make_group("y", 64)])
    assert [(board.machine, [cell.length for cell in board.groups]) for board in boards] == [("x", [128]), ("y", [64])]


def test_a_rank_is_reported_with_its_interval() -> None:
    assert (Rank(2, 1, 3).format_rank(), Rank(2, 2, 2).format_rank()) == ("2 (1\u20133)", "2")
