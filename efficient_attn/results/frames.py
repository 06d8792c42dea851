"""Rows as one pandas DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import pandas as pd

from .rows import Row, Value
from .store import read

# a column's type follows from the row's annotation; whole numbers and truth values keep theirs beside empty cells
_PANDAS = {"str": "string", "Status": "string", "int": "Int64", "float": "float64", "bool": "boolean"}
DTYPES = {f.name: _PANDAS[str(f.type).split(" ")[0]] for f in fields(Row) if f.name != "extra"}


def load(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> pd.DataFrame:
    """The rows of one or more runs (folders, or their ``rows.jsonl``) as one DataFrame with the columns of `Row`,
    and in place of ``extra`` a column ``task.name`` for each value that a task added.

    Cells that do not apply are empty. Of a case that was measured again only the latest row is there. Records that are
    damaged are left out with a `DamagedRecord` warning. Raises `UsageError` for a folder without a run.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    return frame(record.row for path in several for record in read(Path(path)))


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a DataFrame, every column of its fixed type even where all cells are empty; then what tasks added."""
    rows = list(rows)
    fixed = pd.DataFrame([vars(row) for row in rows], columns=list(DTYPES)).astype(DTYPES)
    added = dict.fromkeys(f"{row.task}.{name}" for row in rows for name in row.extra)
    if not added:
        return fixed
    each = [{f"{row.task}.{name}": value for name, value in row.extra.items()} for row in rows]
    columns = {name: _column([values.get(name) for values in each]) for name in added}
    return pd.concat([fixed, pd.DataFrame(columns, index=fixed.index)], axis=1)


def _column(values: Sequence[Value]) -> pd.Series:
    """A column of the type that all its values have; of any type where they have several, or none."""
    kinds = {_kind(value) for value in values if value is not None}
    if kinds == {int, float}:
        kinds = {float}
    dtype = _PANDAS[kinds.pop().__name__] if len(kinds) == 1 else "object"
    return pd.Series(list(values), dtype=dtype)


def _kind(value: Value) -> type:
    """What a value is; whole numbers that 64 bits do not hold count as floats."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int if abs(value) < 2**63 else float
    return next(kind for kind in (bool, float, str) if isinstance(value, kind))
