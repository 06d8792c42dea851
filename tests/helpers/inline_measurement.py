"""Measure groups of tiny suites in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import tiny_suites

from efficient_attn.bench.case import Case, group_cases
from efficient_attn.bench.measuring import round_job
from efficient_attn.bench.measuring.conditions import Conditions
from efficient_attn.bench.measuring.group import measure_group
from efficient_attn.engines.job import Job
from efficient_attn.engines.local import LocalEngine
from efficient_attn.results.rows import Record


class PicklingEngine(LocalEngine):
    """Runs jobs in this process, as a worker receives them."""

    def run(self, job: Job) -> Iterator[Any]:
        return super().run(pickle.loads(pickle.dumps(job)))


def measure_variants(*variants: str, mode: str = "forward", **axes: Any) -> list[Record]:
    text = tiny_suites.TINY.replace('"forward"', mode if '"' in mode else f'"{mode}"')
    return measure_cases(
        tiny_suites.plan(text, variants=variants, axes={name: [value] for name, value in axes.items()})
    )


def measure_cases(cases: Sequence[Case]) -> list[Record]:
    """Measure the cases of one group, and check that each has one record, in order, that can be stored."""
    ((group, members),) = group_cases(cases)
    records = list(measure_group(group, members, Conditions(engine=PicklingEngine("inline"))))
    assert [r.row.case_key for r in records] == [c.key for c in members]
    for record in records:
        Record.from_line(record.to_line())
    return records


def watch_timing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """A function that returns whether the timing of rounds has begun."""
    begun = False
    original = round_job.run_rounds

    def take_rounds(*args: Any, **options: Any) -> Any:
        nonlocal begun
        begun = True
        return original(*args, **options)

    monkeypatch.setattr(round_job, "run_rounds", take_rounds)
    return lambda: begun
