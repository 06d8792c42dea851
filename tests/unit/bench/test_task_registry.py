"""The task registry: the built-in table, plug-ins, entry points, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import tiny_suites
from inline_measurement import measure_cases

from efficient_attn.bench import task_registry
from efficient_attn.bench.case_config import CaseConfig
from efficient_attn.bench.planning.request import TaskRequest
from efficient_attn.bench.task import Guess, Keys, Task
from efficient_attn.bench.task_registry import find_task, group_words, list_tasks, register_task
from efficient_attn.errors import UsageError
from efficient_attn.results.rows import Record, Row
from efficient_attn.tasks import TABLE


def task(name: str, *words: str, plan: Any = None) -> Task:
    plan = plan or (lambda request: ())
    return Task(name=name, words=words, plan=plan, judge=lambda *_: None, guess=lambda *_: Guess(0, 0, 0))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


def test_built_in_tasks_have_the_names_of_the_table() -> None:
    assert {name: find_task(target).name for name, target in TABLE.items()} == {name: name for name in TABLE}


def test_words_of_built_in_tasks_are_distinct() -> None:
    words = [word for target in TABLE.values() for word in find_task(target).words]
    assert len(words) == len(set(words))


def test_words_are_grouped_by_task_in_table_order() -> None:
    groups = group_words(["fidelity", "decode", "forward"], TABLE)
    assert groups == {"speed": ("decode", "forward"), "fidelity": ("fidelity",)}


def test_tasks_of_plugins_are_appended_to_the_table() -> None:
    mine = register_task(task("mine", "this", "that"))
    table = list_tasks(TABLE)
    assert list(table) == [*TABLE, "mine"]
    assert find_task(table["mine"]) is mine
    assert group_words(["that", "forward"], table) == {"speed": ("forward",), "mine": ("that",)}


def test_tasks_of_entry_points_are_added_to_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_registry, "_list_entry_points", lambda: {"theirs": TABLE["fidelity"]})
    assert list_tasks({"speed": TABLE["speed"]})["theirs"] == TABLE["fidelity"]


def test_unused_tasks_are_not_imported() -> None:
    assert group_words(["forward"], TABLE | {"broken": "no_such_module:TASK"}) == {"speed": ("forward",)}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:TASK", "no_such_module:TASK cannot be imported: ModuleNotFoundError"),
        ("efficient_attn.errors:TASK", "cannot be imported: AttributeError"),
        ("efficient_attn.errors:UsageError", "is not a task"),
    ],
)
def test_invalid_targets_are_refused(target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        group_words(["other"], {"other": target})


def test_an_unknown_word_is_refused_with_position_and_suggestion() -> None:
    with pytest.raises(UsageError, match=r"mine\.toml: measure\.1: unknown value 'fidelty'; did you mean 'fidelity'"):
        group_words(["forward", "fidelty"], TABLE, label="mine.toml: measure")


def test_duplicate_names_of_tasks_are_refused() -> None:
    register_task(task("speed", "fast"))
    with pytest.raises(UsageError, match="the task 'speed' of a plug-in is already used"):
        list_tasks(TABLE)


def test_only_the_same_module_may_register_a_name_again() -> None:
    register_task(task("mine"))
    register_task(task("mine"))
    with pytest.raises(UsageError, match="the name 'mine' is already used by"):
        register_task(task("mine", plan=task_registry.list_tasks))


class Seeded(Keys):
    seed: int = 0


def test_task_keys_that_are_keys_of_suites_are_refused() -> None:
    register_task(replace(task("mine", "mine"), keys=Seeded))
    with pytest.raises(UsageError, match=r"trial\.toml: a task has a key 'seed', which is also a key of suites"):
        tiny_suites.parse(tiny_suites.TINY.replace('"forward"', '"mine"'))


@pytest.mark.parametrize(
    ("extra", "message"), [({"x": float("nan")}, "Out of range float"), ({"y": 1}, "declares no column 'y'")]
)
def test_invalid_extra_values_fail_only_their_case(extra: dict[str, Any], message: str) -> None:
    def judge(case: Any, row: Row, at: Any) -> Record:
        row.extra = extra if case.variant == "full" else {"x": 1.0}
        return Record(row)

    def plan(request: TaskRequest) -> Any:
        yield request.make_group(CaseConfig(seq_len=8, max_len=8, heads=2, head_dim=8)), None

    register_task(replace(task("mine", "mine", plan=plan), judge=judge, columns={"x": "a number"}))
    text = tiny_suites.TINY.replace('"forward"', '"mine"') + '[[variant]]\nname = "linear"\n'
    failed, passed = measure_cases(tiny_suites.plan(text))
    assert (failed.row.status, passed.row.status, passed.row.extra) == ("error", "ok", {"x": 1.0})
    assert message in (failed.row.reason or "")
    assert failed.row.extra == {}
