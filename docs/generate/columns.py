"""The page of columns, from ``results/rows.py`` and the tasks."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

from markdown_text import convert_code, make_table, read_descriptions

from efficient_attn.bench.task_registry import find_task
from efficient_attn.results.rows import COLUMN_TYPES, SCHEMA_VERSION, Row
from efficient_attn.tasks import TABLE

OTHERS = Path(__file__).with_name("columns.toml")
TYPES = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "Status": "text"}


def render_page() -> str:
    """Every column with its type and meaning; raises `ValueError` for one without a description."""
    described = read_descriptions(Row.__doc__ or "", [field.name for field in fields(Row)])
    described |= tomllib.loads(OTHERS.read_text(encoding="utf-8"))
    missing = sorted(COLUMN_TYPES.keys() - described.keys())
    if missing:
        raise ValueError(f"{OTHERS.name}: no description of the columns {', '.join(missing)}")
    rows = [[f"`{name}`", TYPES[type_name], described[name]] for name, type_name in COLUMN_TYPES.items()]
    return "\n".join(
        [
            "# Columns of rows\n",
            f"`ea.load` returns one row a case, with these columns (schema {SCHEMA_VERSION}). Empty ones do not apply. "
            "[How results are measured](../concepts/measuring.md) defines the quantities; "
            "[results](results.md) describes the files.\n",
            make_table(("Column", "Type", "Meaning"), rows),
            "## Columns of tasks\n",
            "A task stores its own columns under its name: `fidelity.sink_mass`.\n",
            *_render_tasks(),
        ]
    )


def _render_tasks() -> list[str]:
    tables: dict[str, list[str]] = {}  # tasks by table: trained ones share theirs
    for name, target in TABLE.items():
        columns = find_task(target).columns
        rows = [
            [f"`{column if '.' in column else f'{name}.{column}'}`", convert_code(text)]
            for column, text in columns.items()
        ]
        if rows:
            tables.setdefault(make_table(("Column", "Meaning"), rows), []).append(f"`{name}`")
    return [f"### {', '.join(names)}\n\n{table}" for table, names in tables.items()]
