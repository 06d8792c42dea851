"""The folder of the run, in its workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planted
import pytest

from efficient_attn.bench.case import group_by_cell
from efficient_attn.bench.config import Place
from efficient_attn.bench.measuring import scratch
from efficient_attn.bench.measuring.conditions import Conditions
from efficient_attn.bench.measuring.group import measure
from efficient_attn.bench.planning.request import Asked
from efficient_attn.bench.task import Guess, Task
from efficient_attn.bench.task_registry import register_task
from efficient_attn.engines.local import Local
from efficient_attn.results.rows import Record, Row


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with planted.undone():
        yield
    scratch.use(None)


def test_a_worker_knows_the_folder_of_its_run_and_no_earlier_one(tmp_path: Path) -> None:
    seen: list[Path | None] = []

    def judge(case: Any, row: Row, at: Any) -> Record:
        seen.append(scratch.folder())
        return Record(row)

    def plan(asked: Asked) -> Any:
        yield asked.cell(Place(seq_len=8, max_len=8)), None

    register_task(Task(name="look", words=("look",), plan=plan, judge=judge, guess=lambda case, best: Guess(0, 0, 0)))
    ((cell, cases),) = group_by_cell(planted.plan(planted.TINY.replace('"forward"', '"look"')))
    for folder in (tmp_path, None):
        list(measure(cell, cases, Conditions(engine=Local("inline"), folder=folder)))
    assert seen == [tmp_path, None]
