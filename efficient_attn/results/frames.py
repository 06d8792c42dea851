"""Rows as one pandas DataFrame; missing baselines of older rows are taken from their run."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..garbage import garbage_collection_disabled
from ..spec import list_names
from .rows import COLUMN_TYPES, Record, Row, Value
from .shards import Damage
from .store import find_rows_path, read, read_intact_sessions

# column types follow from the row's annotations; integers and booleans are nullable
_PANDAS_DTYPES = {"str": "string", "Status": "string", "int": "Int64", "float": "float64", "bool": "boolean"}
COLUMN_DTYPES = {name: _PANDAS_DTYPES[type_name] for name, type_name in COLUMN_TYPES.items()}


def read_records(
    run: Path,
    *,
    keep_samples: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    on_damage: Callable[[Damage], object] | None = None,
) -> list[Record]:
    """A run's records from `store.read`, with the baseline of their part, if known.

    Rows contain it from schema 5 on. In older ones it is the variant of their part that was paired with itself,
    otherwise the suite's baseline, if the part contains it.
    """
    records = read(run, keep_samples=keep_samples, on_damage=on_damage)
    rows_without_baseline = [record.row for record in records if record.row.baseline is None]
    baseline_by_part = {record.row.part: record.row.variant for record in records if record.row.is_baseline}
    if any(row.part not in baseline_by_part for row in rows_without_baseline):
        suite = find_suite_baseline(find_rows_path(run).parent)
        suite_baselines = {
            row.part: row.variant
            for row in reversed(rows_without_baseline)
            if suite in (row.variant, "|".join(list_names(row.variant)))
        }
        baseline_by_part = suite_baselines | baseline_by_part
    for row in rows_without_baseline:
        row.baseline = baseline_by_part.get(row.part)
    return records


def find_suite_baseline(folder: Path) -> str | None:
    """The baseline of a run's suite, from run.json; None, with a warning, if that cannot be read."""
    sessions = read_intact_sessions(folder, "the baselines of its older rows stay empty")
    suites = (session.get("suite") or {} for session in sessions)
    return next((str(suite["baseline"]) for suite in suites if suite.get("baseline")), None)


@garbage_collection_disabled(collect_first=False)
def make_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a DataFrame with fixed column types, even for empty columns, followed by the columns of tasks."""
    rows = list(rows)
    fixed = pd.DataFrame(
        {name: pd.Series([getattr(row, name) for row in rows], dtype=dtype) for name, dtype in COLUMN_DTYPES.items()}
    )
    task_columns = dict.fromkeys(name_column(row, name) for row in rows for name in row.extra)
    if not task_columns:
        return fixed
    task_values = [{name_column(row, name): value for name, value in row.extra.items()} for row in rows]
    columns = {name: _make_column([values.get(name) for values in task_values]) for name in task_columns}
    return pd.concat([fixed, pd.DataFrame(columns, index=fixed.index)], axis=1)


def name_column(row: Row, name: str) -> str:
    """The full name of a task's column; a name that several tasks share already contains a dot."""
    return name if "." in name else f"{row.task}.{name}"


def _make_column(values: Sequence[Value]) -> pd.Series:
    """A column with the dtype of its values, or ``object`` if they have several types or none."""
    types = {_value_type(value) for value in values if value is not None}
    if types == {int, float}:
        types = {float}
    dtype = _PANDAS_DTYPES[types.pop().__name__] if len(types) == 1 else "object"
    return pd.Series(list(values), dtype=dtype)


def _value_type(value: Value) -> type:
    """The type of a value; integers beyond 64 bits count as floats."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int if abs(value) < 2**63 else float
    return next(kind for kind in (bool, float, str) if isinstance(value, kind))
