"""Tasks by name: the built-in table, plug-ins and entry points, and what is refused."""

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
    plan = plan or (lambda asked: ())
    return Task(name=name, words=words, plan=plan, judge=lambda *_: None, guess=lambda *_: Guess(0, 0, 0))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


def test_built_in_tasks_are_found_and_named_as_the_table_has_them() -> None:
    assert {name: find_task(target).name for name, target in TABLE.items()} == {name: name for name in TABLE}


def test_every_word_of_a_built_in_task_belongs_to_one_of_them() -> None:
    words = [word for target in TABLE.values() for word in find_task(target).words]
    assert len(words) == len(set(words))


def test_words_lead_to_tasks_in_the_tables_order() -> None:
    found = group_words(["fidelity", "decode", "forward"], TABLE)
    assert found == {"speed": ("decode", "forward"), "fidelity": ("fidelity",)}


def test_a_plugins_task_joins_the_table() -> None:
    mine = register_task(task("mine", "this", "that"))
    table = list_tasks(TABLE)
    assert list(table) == [*TABLE, "mine"]
    assert find_task(table["mine"]) is mine
    assert group_words(["that", "forward"], table) == {"speed": ("forward",), "mine": ("that",)}


def test_an_entry_point_joins_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_registry, "_list_entry_points", lambda: {"theirs": TABLE["fidelity"]})
    assert list_tasks({"speed": TABLE["speed"]})["theirs"] == TABLE["fidelity"]


def test_what_nobody_asks_for_is_not_imported() -> None:
    assert group_words(["forward"], TABLE | {"broken": "no_such_module:TASK"}) == {"speed": ("forward",)}


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no_such_module:TASK", "no_such_module:TASK cannot be imported: ModuleNotFoundError"),
        ("efficient_attn.errors:TASK", "cannot be imported: AttributeError"),
        ("efficient_attn.errors:UsageError", "is not a task"),
    ],
)
def test_what_is_no_task_is_refused_in_one_line(target: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        group_words(["other"], {"other": target})


def test_an_unknown_word_names_its_place_and_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"mine\.toml: measure\.1: unknown value 'fidelty'; did you mean 'fidelity'"):
        group_words(["forward", "fidelty"], TABLE, label="mine.toml: measure")


def test_a_name_that_is_taken_is_refused() -> None:
    register_task(task("speed", "fast"))
    with pytest.raises(UsageError, match="the task 'speed' of a plug-in is already used"):
        list_tasks(TABLE)


def test_a_plugin_that_is_loaded_again_may_register_again_and_no_other_module() -> None:
    register_task(task("mine"))
    register_task(task("mine"))
    with pytest.raises(UsageError, match="the name 'mine' is already used by"):
        register_task(task("mine", plan=task_registry.list_tasks))


class Seeded(Keys):
    seed: int = 0


def test_a_tasks_key_that_is_the_suites_own_is_refused() -> None:
    register_task(replace(task("mine", "mine"), keys=Seeded))
    with pytest.raises(UsageError, match=r"trial\.toml: a task has a key 'seed', which is also a key of suites"):
        tiny_suites.parse(tiny_suites.TINY.replace('"forward"', '"mine"'))


@pytest.mark.parametrize(
    ("extra", "says"), [({"x": float("nan")}, "Out of range float"), ({"y": 1}, "declares no column 'y'")]
)
def test_what_a_task_adds_and_nobody_can_keep_ends_its_case_and_not_the_run(extra: dict[str, Any], says: str) -> None:
    def judge(case: Any, row: Row, at: Any) -> Record:
        row.extra = extra if case.variant == "full" else {"x": 1.0}
        return Record(row)

    def plan(asked: TaskRequest) -> Any:
        yield asked.make_group(CaseConfig(seq_len=8, max_len=8, heads=2, head_dim=8)), None

    register_task(replace(task("mine", "mine", plan=plan), judge=judge, columns={"x": "a number"}))
    text = tiny_suites.TINY.replace('"forward"', '"mine"') + '[[variant]]\nname = "linear"\n'
    failed, fine = measure_cases(tiny_suites.plan(text))
    assert (failed.row.status, fine.row.status, fine.row.extra) == ("error", "ok", {"x": 1.0})
    assert says in (failed.row.reason or "")
    assert failed.row.extra == {}
