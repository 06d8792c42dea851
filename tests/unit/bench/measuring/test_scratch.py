"""The folder of the run in its workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_suites

from efficient_attn.bench.case import group_cases
from efficient_attn.bench.case_config import CaseConfig
from efficient_attn.bench.measuring import scratch
from efficient_attn.bench.measuring.conditions import Conditions
from efficient_attn.bench.measuring.group import measure_group
from efficient_attn.bench.planning.request import TaskRequest
from efficient_attn.bench.task import Guess, Task
from efficient_attn.bench.task_registry import register_task
from efficient_attn.engines.local import LocalEngine
from efficient_attn.results.rows import Record, Row


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield
    scratch.set_folder(None)


def test_workers_have_the_folder_and_the_jobs_of_the_current_run(tmp_path: Path) -> None:
    seen: list[tuple[Path | None, int]] = []

    def judge(case: Any, row: Row, at: Any) -> Record:
        seen.append((scratch.get_folder(), scratch.get_jobs()))
        return Record(row)

    def plan(request: TaskRequest) -> Any:
        yield request.make_group(CaseConfig(seq_len=8, max_len=8)), None

    register_task(Task(name="look", words=("look",), plan=plan, judge=judge, guess=lambda case, best: Guess(0, 0, 0)))
    ((group, cases),) = group_cases(tiny_suites.plan(tiny_suites.TINY.replace('"forward"', '"look"')))
    for folder, jobs in ((tmp_path, 3), (None, 1)):
        list(measure_group(group, cases, Conditions(engine=LocalEngine("inline"), folder=folder, jobs=jobs)))
    assert seen == [(tmp_path, 3), (None, 1)]
