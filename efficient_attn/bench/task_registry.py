"""Tasks by name: the built-in table, other packages' entry points, and those of plug-ins."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points

from ..errors import UsageError, is_out_of_memory, make_unknown_error
from .task import Task

GROUP = "efficient_attn.tasks"  # the entry-point group for tasks of other packages
TaskTable = Mapping[str, str]  # from a task's name to its target, ``module:attribute`` or a plug-in's registered name

_registered: dict[str, Task] = {}


def register_task(task: Task) -> Task:
    """Register a plug-in's task under its name. Raises `UsageError` for a name that another module uses."""
    other = _registered.get(task.name)
    if other is not None and other.source.__module__ != task.source.__module__:
        raise UsageError(f"register_task: the name {task.name!r} is already used by {other.source.__module__}")
    _registered[task.name] = task
    return task


def list_tasks(built_in: TaskTable) -> dict[str, str]:
    """The target of every task by name, without imports. Raises `UsageError` for duplicate names."""
    targets, plugins = dict(built_in), {name: name for name in _registered}
    for table, origin in ((_list_entry_points(), "an entry point"), (plugins, "a plug-in")):
        if repeated := table.keys() & targets.keys():
            raise UsageError(f"the name of the task {min(repeated)!r} of {origin} is already used")
        targets |= table
    return targets


def find_task(target: str) -> Task:
    """The task of a target. Raises `UsageError` if it cannot be imported."""
    if target in _registered:
        return _registered[target]
    module, _, attribute = target.partition(":")
    try:
        task = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise UsageError(f"the task {target} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        raise UsageError(f"{target} is not a task")
    return task


def group_words(words: Sequence[str], table: TaskTable, *, label: str = "measure") -> dict[str, tuple[str, ...]]:
    """The words of ``measure`` by the task that they select, in the table's order. Raises `UsageError` for unknown
    ones. label: of the list, as errors name it."""
    owners: dict[str, str] = {}
    for name, target in table.items():
        if all(word in owners for word in words):
            break  # later tasks are not imported
        owners |= {word: name for word in find_task(target).words if word not in owners}
    for index, word in enumerate(words):
        if word not in owners:
            raise make_unknown_error("value", word, owners, where=f"{label}.{index}")
    return {name: selected for name in table if (selected := tuple(w for w in words if owners[w] == name))}


@cache
def _list_entry_points() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUP)}
