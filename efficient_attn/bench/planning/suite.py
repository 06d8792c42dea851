"""Suites: TOML files that define what is measured, validated so that errors name their location.

This module does not import torch, so that errors are reported immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from ...errors import UsageError, make_unknown_error
from ...registry import load_plugin
from ...resources import find_suites_folder, list_suite_names, parse_toml, read_toml
from ..task_registry import TaskTable, find_task, group_words, list_tasks
from .suite_schema import TABLES, GridTable, SuitePart, format_problem, list_nested_keys

MAX_SECONDS = 1e9  # thirty years; a number of rounds is computed from seconds, so that they are finite


class Suite(GridTable):
    """A suite as in its file. Without ``[[part]]`` it is one grid.

    rounds: least number of interleaved rounds of a group; max_rounds: largest (default: three times as many).
    processes: least number of processes that share the rounds. half_width: relative half width of the speedups'
    intervals at which measuring stops. budget_s: seconds of measuring for a variant in a group. timeout_s: time limit
    of a case, with everything before measuring. seed: of all inputs. warm_up_calls: before each sample, on other inputs
    and not timed, so that its time depends less on the mechanism that was timed before it. plugins: Python files
    (``.py``) relative to the suite, or dotted module paths, that register further mechanisms and tasks. The keys of
    tasks are at the same level, or in a part.
    """

    title: str
    description: str = ""
    rounds: Annotated[int, Field(ge=2, strict=True)] = 8
    max_rounds: Annotated[int, Field(ge=2, strict=True)] | None = None
    processes: Annotated[int, Field(ge=1, strict=True)] = 4
    half_width: Annotated[float, Field(gt=0, lt=1)] = 0.02
    budget_s: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 60.0
    timeout_s: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 600.0
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    warm_up_calls: Annotated[int, Field(ge=0, le=100, strict=True)] = 0
    plugins: tuple[str, ...] = ()
    part: tuple[SuitePart, ...] = ()

    @model_validator(mode="after")
    def _reject_repeated_sizes(self) -> Self:
        for grid in (self, *self.part):
            label = f"part {grid.name!r}: " if isinstance(grid, SuitePart) else ""
            shapes = grid.shapes or self.shapes or ()
            sizes = {name for shape in shapes for name in shape.given}
            varied = grid.axes.given.keys() | grid.dims.given.keys()
            if repeated := sorted(sizes & varied):
                raise ValueError(f"{label}shapes set {repeated[0]}, so axes and dims may not")
            if shapes and (grid.design or self.design):
                raise ValueError(f"{label}a design chooses from axes and cannot be combined with shapes")
        return self

    def parts(self) -> tuple[SuitePart, ...]:
        """The grids, each completed from the top level."""
        parts = []
        for part in self.part or (SuitePart(name="all"),):
            fields: dict[str, Any] = {"name": part.name}
            for name in ("measure", "baseline", "shapes", "design"):
                fields[name] = getattr(part, name) or getattr(self, name)
            source = part if part.variant or part.block else self
            fields |= {"variant": source.variant, "block": source.block}
            for name in ("axes", "quick", "dims"):
                fields[name] = getattr(self, name).model_copy(update=getattr(part, name).given)
            parts.append(SuitePart(**fields))
        return tuple(parts)


@dataclass(frozen=True)
class TaskKeys:
    """What a part requests of a task: the names that select it, and the task's keys as in the file."""

    task: str
    target: str
    words: tuple[str, ...]
    keys: Mapping[str, Any]


@dataclass(frozen=True)
class LoadedSuite:
    """A suite with its name, and the text of its file, which is stored with the results. task_keys: by part."""

    name: str
    text: str
    suite: Suite
    task_keys: tuple[tuple[TaskKeys, ...], ...] = field(default=())


def load_suite(name: str, tasks: TaskTable, *, load: Callable[[str], object] = load_plugin) -> LoadedSuite:
    """Read a built-in suite by name, or any suite by the path of its ``.toml`` file.

    tasks: the built-in ones. load: imports the plug-ins of the suite.
    """
    path = Path(name) if name.endswith(".toml") else find_suites_folder() / f"{name}.toml"
    if not name.endswith(".toml") and name not in list_suite_names():
        raise make_unknown_error("suite", name, list_suite_names())
    return parse_suite(read_toml(path), path.stem, tasks, folder=path.parent, load=load)


def parse_suite(
    text: str, name: str, tasks: TaskTable, *, folder: Path = Path(), load: Callable[[str], object] = load_plugin
) -> LoadedSuite:
    """Validate a suite's text. Raises `UsageError` for the first error.

    folder: of its plug-ins. load: imports them.
    """
    file = f"{name}.toml"
    data = parse_toml(text, file)
    for plugin in _as_list(data.get("plugins")):
        load(str(folder / plugin) if plugin.endswith(".py") else plugin)
    table = list_tasks(tasks)
    grids = {"": data} | {f"part.{i}.": part for i, part in enumerate(_as_tables(data.get("part")))}
    measured = [group_words(_as_list(g.get("measure")), table, label=f"{file}: {at}measure") for at, g in grids.items()]
    fields = {f for task in {*tasks, *chain(*measured)} for f in find_task(table[task]).keys.model_fields}
    if clash := sorted(fields & Suite.model_fields.keys()):
        raise UsageError(f"{file}: a task has a key {clash[0]!r}, which is also a key of suites; rename it")
    suite_keys, task_values = _split_part(data, fields)
    parts = [_split_part(part, fields) for part in _as_tables(suite_keys.get("part"))]
    if parts and len(parts) == len(suite_keys["part"]):
        suite_keys["part"] = [part for part, _ in parts]
    try:
        suite = Suite.model_validate(suite_keys)
    except ValidationError as error:
        raise format_problem(file, error, lambda table: _list_keys(table, fields)) from error
    part_keys = zip(suite.parts(), [keys for _, keys in parts] or [{}], strict=True)
    task_keys = tuple(_list_task_keys(file, part, keys, task_values, table) for part, keys in part_keys)
    return LoadedSuite(name, text, suite, task_keys)


def check_keys(target: str, keys: Mapping[str, Any], source: str) -> Any:
    """A task's keys, validated: an instance of its model. source: of the keys, as errors name it."""
    model = find_task(target).keys
    try:
        return model.model_validate(keys)
    except ValidationError as error:
        raise format_problem(source, error, lambda table: list_nested_keys(model, table)) from error


def _list_task_keys(
    file: str, part: SuitePart, keys: Mapping[str, Any], defaults: Mapping[str, Any], table: TaskTable
) -> tuple[TaskKeys, ...]:
    """The keys of each task of a part; its own override those at the top level."""
    if not part.measure:
        raise UsageError(f"{file}: part {part.name!r} has no measure; add it there or at the top level")
    task_keys = []
    for name, words in group_words(part.measure, table).items():
        task = find_task(table[name])
        if task.mechanisms and not (part.variant or (part.block and task.blocks)):
            raise UsageError(f"{file}: part {part.name!r} has no variant; add it there or at the top level")
        if part.block and not task.blocks:
            raise UsageError(f"{file}: part {part.name!r} has a block, but {name} measures mechanisms only; remove it")
        values = {key: value for key, value in {**defaults, **keys}.items() if key in task.keys.model_fields}
        check_keys(table[name], values, file)
        task_keys.append(TaskKeys(name, table[name], words, values))
    used_keys = {key for one_task in task_keys for key in one_task.keys}
    if unused := sorted(keys.keys() - used_keys):
        raise UsageError(f"{file}: part {part.name!r} has no task that uses {unused[0]}; remove it")
    return tuple(task_keys)


def _split_part(data: Mapping[str, Any], fields: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a table into the suite's own keys and those of tasks."""
    task_keys = {key: value for key, value in data.items() if key in fields}
    return {key: value for key, value in data.items() if key not in task_keys}, task_keys


def _as_list(value: Any) -> list[str]:
    return [x for x in value if isinstance(x, str)] if isinstance(value, list) else []


def _as_tables(value: Any) -> list[dict[str, Any]]:
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []


def _list_keys(table: list[int | str], fields: Iterable[str]) -> list[str]:
    """The keys that a table of a suite may have. fields: the tasks' keys."""
    names = [x for x in table if isinstance(x, str)]
    model = TABLES[names[-1]] if names else Suite
    return [*model.model_fields, *(fields if model in (Suite, SuitePart) else ())]
