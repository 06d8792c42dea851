"""Groups of a run: which cases are evaluated at the same time, in what order, and with how much memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import tiny_suites

from efficient_attn.bench.case import Case, group_cases
from efficient_attn.bench.measuring import parallel
from efficient_attn.bench.measuring.conditions import Conditions
from efficient_attn.bench.measuring.parallel import (
    UnusedJobs,
    check_jobs,
    evaluate_cases,
    find_chain,
    is_parallel,
    measure_groups,
)
from efficient_attn.engines.turns import Turns
from efficient_attn.errors import UsageError
from efficient_attn.results.rows import Record

TEXT = """
title   = "Trainings and times"
axes    = { seq_len = [32, 64], threads = [1] }
variant = [{ name = "full" }, { name = "linear" }]
learning_rates = [1e-3, 2e-3]
seeds   = 2
pairs   = 2
[[part]]
name    = "before"
measure = ["mqar"]
[[part]]
name    = "timed"
measure = ["forward"]
[[part]]
name    = "after"
measure = ["induction"]
"""


@dataclass
class Workers:
    """Imitates workers, each of which yields None as often as ``durations`` has for its case."""

    durations: Callable[[Case], int] = lambda case: 2
    conditions: list[Conditions] = field(default_factory=list)
    running: list[Case] = field(default_factory=list)
    most: int = 0
    events: list[tuple[str, str]] = field(default_factory=list)

    def evaluate(self, case: Case, conditions: Conditions) -> Generator[Record | None, None, None]:
        self.conditions.append(conditions)
        assert find_chain(case) not in map(find_chain, self.running)
        self.running.append(case)
        self.most = max(self.most, len(self.running))
        self.events.append(("start", case.key))
        try:
            for _ in range(self.durations(case)):
                yield None
            yield Record(case.row())
            yield None  # until its worker has ended
        finally:
            self.running.remove(case)
            self.events.append(("end", case.key))


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    imitation = Workers()
    monkeypatch.setattr(parallel, "evaluate_case", imitation.evaluate)
    monkeypatch.setattr(parallel, "POLL_S", 0.0)
    monkeypatch.setattr(parallel, "count_usable_cores", lambda: 2)
    return imitation


def _plan(**overrides: Any) -> list[Case]:
    return tiny_suites.plan(TEXT, **overrides)


def _list_keys(records: Sequence[Record]) -> list[str]:
    return [record.row.case_key for record in records]


@pytest.mark.parametrize("jobs", [1, 2, 3, 9])
def test_each_case_has_one_record_and_attempts_of_a_mechanism_follow_each_other(jobs: int, workers: Workers) -> None:
    cases = _plan(parts=["before"])
    workers.durations = lambda case: len(case.key) * 7 % 5
    keys = []
    for record in evaluate_cases(cases, Conditions(jobs=jobs)):
        keys.append(record.row.case_key)
        workers.events.append(("record", keys[-1]))
    assert sorted(keys) == sorted(case.key for case in cases)
    assert workers.most == min(jobs, 4), "two mechanisms at two lengths"
    chains: dict[Any, list[Case]] = {}
    for case in cases:
        chains.setdefault(find_chain(case), []).append(case)
    assert [len(chain) for chain in chains.values()] == [len(cases) // 4] * 4
    for chain in chains.values():
        for earlier, later in pairwise(chain):
            stored, started = (workers.events.index(event) for event in (("record", earlier.key), ("start", later.key)))
            assert stored < workers.events.index(("end", earlier.key)) < started
    if jobs == 1:
        assert keys == [case.key for case in cases]


def test_interruptions_end_all_workers(workers: Workers) -> None:
    records = evaluate_cases(_plan(parts=["before"]), Conditions(jobs=2))
    next(records)
    assert len(workers.running) == 2
    records.close()  # type: ignore[attr-defined]
    assert workers.running == []

    def interrupt(case: Case) -> int:
        if len(workers.running) == 2:
            raise KeyboardInterrupt
        return 2

    workers.durations = interrupt
    with pytest.raises(KeyboardInterrupt):
        list(evaluate_cases(_plan(parts=["before"]), Conditions(jobs=2)))
    assert workers.running == []


def test_timed_groups_run_alone_and_in_order(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(group: Any, cases: Sequence[Case], conditions: Conditions) -> list[Record]:
        assert workers.running == []
        assert (conditions.jobs, conditions.memory_bytes) == (1, 80)
        return [Record(case.row()) for case in cases]

    monkeypatch.setattr(parallel, "measure_group", measure)
    cases = _plan()
    planned = group_cases(cases)
    keys = _list_keys(list(measure_groups(planned, Conditions(memory_bytes=80, available_bytes=100), 2)))
    assert sorted(keys) == sorted(case.key for case in cases)
    parts = [key.split("/")[1] for key in keys]
    assert parts == sorted(parts, key=["before", "timed", "after"].index)
    assert {(c.jobs, c.memory_bytes) for c in workers.conditions} == {(2, 50)}
    assert [is_parallel(group) for group, _ in planned] == ["timed" not in group.part for group, _ in planned]
    workers.conditions.clear()
    assert _list_keys(list(measure_groups(planned, Conditions(memory_bytes=80), 1))) == [case.key for case in cases]
    assert workers.conditions == []


@pytest.mark.parametrize(
    ("memory_bytes", "available_bytes", "share"), [(30, 100, 30), (None, 100, 50), (None, None, None), (70, None, 70)]
)
def test_workers_share_the_available_memory(
    memory_bytes: int | None, available_bytes: int | None, share: int | None, workers: Workers
) -> None:
    conditions = Conditions(memory_bytes=memory_bytes, available_bytes=available_bytes)
    list(measure_groups(group_cases(_plan(parts=["after"])), conditions, 2))
    assert {c.memory_bytes for c in workers.conditions} == {share}


def test_jobs_need_enough_cores(workers: Workers) -> None:
    groups = [group for group, _ in group_cases(_plan())]
    with pytest.raises(UsageError, match=r"^jobs must be at least 1, got 0$"):
        check_jobs(groups, 0)
    check_jobs(groups, 2)
    with pytest.raises(
        UsageError, match=r"^--jobs 3 with 1 thread each needs 3 cores, and 2 are usable; give --jobs 2$"
    ):
        check_jobs(groups, 3)
    several = [group for group, _ in group_cases(_plan(axes={"threads": [1, 2]}))]
    check_jobs(several, 1)
    message = "--jobs 2 with 2 threads each needs 4 cores, and 2 are usable; give --threads 1"
    with pytest.raises(UsageError, match=f"^{message}$"):
        check_jobs(several, 2)
    with pytest.raises(UsageError, match="--jobs does not go with --turns"):
        check_jobs(groups, 2, Turns(5))
    check_jobs(groups, 1, Turns(5))
    timed = [group for group, _ in group_cases(_plan(parts=["timed"]))]
    with pytest.warns(UnusedJobs, match="^--jobs 9 has no effect: none of these cases is a training$"):
        check_jobs(timed, 9)
