"""The page of suite files, from the models that validate them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from markdown_text import convert_code, make_table, read_descriptions
from pydantic import BaseModel

from efficient_attn.bench.planning.suite import TABLES, Suite
from efficient_attn.bench.task_registry import find_task
from efficient_attn.cli.parser import AXES
from efficient_attn.tasks import TABLE
from efficient_attn.tasks.training.problem import LearnKeys

KEYS = Path(__file__).with_name("suite_keys.toml")
INTRODUCTION = """# Suite files

A suite is a TOML file that defines what is measured. `efficient-attn run FILE` measures it, `efficient-attn plan FILE`
shows its cases; both accept options that [replace its values](../how-to/select-cases.md). Unknown keys are refused,
with the nearest valid one. [Measure mechanisms](../how-to/measure.md#your-own-suite) has an example,
[How results are measured](../concepts/measuring.md) explains sampling, designs and budgets.
"""
TITLES = {
    "part": "`[[part]]`: parts",
    "axes": "`[axes]`: what varies",
    "dims": "`[dims]`: sizes that do not vary",
    "shapes": "`shapes`: sizes that belong together",
    "design": "`[design]`: a few points of all combinations",
    "variant": "`[[variant]]` and `[[block]]`: mechanisms and layers",
}
SET_BY_PLANS = {"attempt", "counted_by", "data_digest", "peak_memory", "process_memory", "stage"}
TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "object": "table"}
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def render_page() -> str:
    """All keys of a suite, of its tables, and of the tasks."""
    parts = [INTRODUCTION, "## Top level\n", _describe_model(Suite)]
    for name, title in TITLES.items():
        parts += [f"## {title}\n", _describe_model(TABLES[name])]
    return "\n".join([*parts, *_describe_tasks()])


def _describe_tasks() -> Iterator[str]:
    yield "## Keys of tasks\n\nKeys of tasks are at the top level, or in a part. Words of `measure` select tasks:\n"
    tasks = {name: find_task(target) for name, target in TABLE.items()}
    yield make_table(
        ("Task", "Words"),
        [[f"`{name}`", ", ".join(f"`{word}`" for word in task.words)] for name, task in tasks.items()],
    )
    names_by_model: dict[type[BaseModel], list[str]] = {}
    for name, task in tasks.items():
        names_by_model.setdefault(task.keys, []).append(f"`{name}`")
    for model, names in names_by_model.items():
        if not issubclass(model, LearnKeys):
            yield f"### {', '.join(names)}\n\n{_describe_model(model)}"
    yield f"### All [training tasks](../concepts/training-tasks.md)\n\n{_describe_model(LearnKeys)}"
    for model, names in names_by_model.items():
        if issubclass(model, LearnKeys) and model is not LearnKeys:
            yield f"### {', '.join(names)}\n\n{_describe_model(model, without=LearnKeys.model_fields)}"


def _describe_model(model: type[BaseModel], *, without: Any = ()) -> str:
    """A table of the keys. without: those of a base class. Raises `ValueError` for a key without a description."""
    described = _read_keys(model)
    schema = model.model_json_schema()
    fields = {name: field for name, field in model.model_fields.items() if name not in {*without, *SET_BY_PLANS}}
    missing = sorted(fields.keys() - described.keys())
    if missing:
        raise ValueError(f"{KEYS.name}: no description of {', '.join(missing)} in [{model.__name__}]")
    rows = []
    for name, field in sorted(fields.items(), key=lambda item: not item[1].is_required()):
        default = "required" if field.is_required() else _format_default(field.get_default(call_default_factory=True))
        rows.append([f"`{name}`", _format_type(schema["properties"][name]), default, described[name]])
    return make_table(("Key", "Type", "Default", "Meaning"), rows)


def _read_keys(model: type[BaseModel]) -> dict[str, str]:
    """The descriptions of a model's keys: in its docstrings, in the table of axes, or in this folder's file."""
    tables = _read_tables()
    described = {name: convert_code(text) for name, (_, text) in AXES.items()} if model is TABLES["axes"] else {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, BaseModel) and cls is not BaseModel:
            described |= read_descriptions(cls.__doc__ or "", cls.model_fields) | tables.get(cls.__name__, {})
    return described


@cache
def _read_tables() -> dict[str, dict[str, str]]:
    return tomllib.loads(KEYS.read_text(encoding="utf-8"))


def _format_default(value: Any) -> str:
    if value is None or isinstance(value, BaseModel) or value in ((), {}, ""):
        return "none"
    return f"`{json.dumps(value)}`"


def _format_type(schema: dict[str, Any]) -> str:
    """``list: integer, at least 1``, from a JSON schema."""
    if "$ref" in schema:
        return "table"
    if "anyOf" in schema:
        kinds = [_format_type(option) for option in schema["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list: {_format_type(schema.get('items', {}))}"
    limits = [f"{text} {schema[key]:g}" for key, text in BOUNDS.items() if key in schema]
    return ", ".join([TYPES.get(schema.get("type", ""), "any value"), *limits])
