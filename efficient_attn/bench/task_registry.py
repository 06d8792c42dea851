"""Tasks by name: the built-in table, other packages' entry points, and those of plug-ins."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points

from ..errors import UsageError, make_unknown_error
from .task import Task

GROUP = "efficient_attn.tasks"  # the entry-point group for tasks of other packages
TaskTable = Mapping[str, str]  # a task's name to ``module:attribute``; of a plug-in's task, to its name

_registered: dict[str, Task] = {}


def register_task(task: Task) -> Task:
    """Register a plug-in's task under its name. Raises `UsageError` for a name that another module uses."""
    other = _registered.get(task.name)
    if other is not None and other.source.__module__ != task.source.__module__:
        raise UsageError(f"register_task: the name {task.name!r} is already used by {other.source.__module__}")
    _registered[task.name] = task
    return task


def list_tasks(built_in: TaskTable) -> dict[str, str]:
    """Every task's name and location, without imports. Raises `UsageError` for duplicate names."""
    targets = dict(built_in)
    for names, origin in (
        (_list_entry_points(), "an entry point"),
        ({name: name for name in _registered}, "a plug-in"),
    ):
        if repeated := names.keys() & targets.keys():
            raise UsageError(f"the name of the task {min(repeated)!r} of {origin} is already used")
        targets |= names
    return targets


def find_task(target: str) -> Task:
    """The task that a table names by this. Raises `UsageError` where it cannot be imported."""
    if target in _registered:
        return _registered[target]
    module, _, attribute = target.partition(":")
    try:
        task = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise UsageError(f"the task {target} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        raise UsageError(f"{target} is not a task")
    return task


def find_words(words: Iterable[str], table: TaskTable, *, where: str = "measure") -> dict[str, tuple[str, ...]]:
    """The names in ``measure`` that select each task, by the task's name, in the table's order. Raises `UsageError` for
    unknown names."""
    remaining_words: list[str] = list(words)
    owners: dict[str, str] = {}
    for name, target in table.items():
        if all(word in owners for word in remaining_words):
            break  # later tasks are not imported
        owners |= {word: name for word in find_task(target).words if word not in owners}
    for place, word in enumerate(remaining_words):
        if word not in owners:
            raise make_unknown_error("value", word, owners, where=f"{where}.{place}")
    return {
        name: task_words for name in table if (task_words := tuple(w for w in remaining_words if owners[w] == name))
    }


@cache
def _list_entry_points() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUP)}
