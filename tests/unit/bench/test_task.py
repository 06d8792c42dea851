"""Tasks: columns, source files, fingerprints and deprecated names."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_suites

from efficient_attn import tasks
from efficient_attn.bench.planning.case_factory import fingerprint_task
from efficient_attn.bench.task import Guess, Task
from efficient_attn.bench.task_registry import find_task
from efficient_attn.registry import load_plugin
from efficient_attn.tasks import TABLE

COLUMNS = {"seconds": "a number", "train.score": "whole", "train.at_*": "at other lengths"}


def _plan(*given: Any) -> Any:
    return ()


TASK = Task(
    name="t",
    words=("t",),
    plan=_plan,
    judge=lambda *_: None,  # type: ignore[arg-type, return-value]
    guess=lambda *_: Guess(0, 0, 0),
    columns=COLUMNS,
)


def test_timed_tasks_have_no_chains() -> None:
    with pytest.raises(ValueError, match=r"^the task t times its cases, so they cannot"):
        replace(TASK, work=lambda case: None, chain=lambda case: 1)  # type: ignore[arg-type, return-value]
    assert TASK.chain is None


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("seconds", True),
        ("train.score", True),
        ("train.at_64", True),
        ("train.at", False),
        ("at_64", False),
        ("second", False),
        ("seconds2", False),
        ("train_score", False),  # a dot matches a dot only
    ],
)
def test_columns_are_declared_by_name_or_prefix(name: str, declared: bool) -> None:
    assert TASK.declares(name) is declared


def test_the_source_of_a_task_is_its_plan_or_home() -> None:
    assert TASK.source is _plan
    elsewhere = replace(TASK, plan=partial(_plan, 1), home=find_task)
    assert elsewhere.source is find_task


def test_built_in_tasks_have_source_files_and_no_fingerprint() -> None:
    for target in TABLE.values():
        task = find_task(target)
        assert inspect.getsourcefile(task.source)
        assert fingerprint_task(task) == ""


PROBLEM = """
from dataclasses import replace

from efficient_attn.tasks import register_task
from efficient_attn.tasks.problems.copying import COPYING
from efficient_attn.tasks.training.learning import make_task

def draw(keys, length, count, generator, split):
    return COPYING.draw(keys, length, count, generator, split)

register_task(make_task(replace(COPYING, name="theirs", draw=draw)))
"""


def test_fingerprints_of_plugin_problems_follow_their_file(tmp_path: Path) -> None:
    text, fingerprints = tiny_suites.TINY.replace('"forward"', '"theirs"'), []
    for name, more in (("one", ""), ("same", ""), ("other", "# changed\n")):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "theirs.py"
        file.write_text(PROBLEM + more)
        with tiny_suites.isolated_registry():
            load_plugin(str(file))
            fingerprints.append({case.fingerprint for case in tiny_suites.plan(text)})
    assert len(fingerprints[0]) == 1
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Asked", "TaskRequest"),
        ("Cell", "Group"),
        ("Effort", "Sampling"),
        ("Grid", "AxisGrid"),
        ("Place", "CaseConfig"),
    ],
)
def test_names_of_version_0_1_still_work_and_warn(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"tasks.{old} is now {new}; version 0.3 removes {old}"):
        assert getattr(tasks, old) is getattr(tasks, new)


def test_attributes_of_version_0_1_still_work_and_warn() -> None:
    case = tiny_suites.case()
    with pytest.warns(DeprecationWarning, match=r"Case.cell is now group"):
        group = case.cell
    with pytest.warns(DeprecationWarning, match=r"Group.place is now config"):
        assert group.place is case.group.config
    with pytest.warns(DeprecationWarning, match=r"Group.effort is now sampling"):
        assert group.effort is case.group.sampling


def test_unknown_names_raise_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Sitting"):
        _ = tasks.Sitting
