"""From rows to what is shown together: settings, their slices, one label a variant. Only pandas.

A *setting* is everything that must agree before two numbers may stand in one table or plot. A *slice* is a setting's
rows of one mode and direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from .. import units
from ..results.stats import Estimate, exponent
from ..spec import label_of
from .gather import Frame

SETTING_COLUMNS = ["suite", "machine", "device", "dtype", "threads", "batch", "heads", "head_dim", "fill", "baseline"]
# what may differ between two rows of one variant at one place of a slice; then the label says it
DISTINGUISHING_COLUMNS = [
    "kv_heads",
    "kv_len",
    "cache",
    "compiled",
    "cuda_graph",
    "inputs",
    "seed",
    "budget",
    "backend_used",
    "run_id",
]

# what two results of one variant may not share
RESULT_KEY_COLUMNS = [*SETTING_COLUMNS, "causal", "mode", "task", "inputs", "seq_len", "layer", "label"]
NUMERIC_COLUMNS = ["seq_len", "layer", "peak_memory_bytes", "state_bytes"]
_INTERVAL_COLUMNS = [f"{name}{end}" for name in ("latency_ms", "speedup") for end in ("", "_low", "_high")]
CURVE_COLUMNS = [
    "seq_len",
    "peak_memory_bytes",
    "state_bytes",
    *_INTERVAL_COLUMNS,
]  # what is drawn over lengths, and grows with them
MAX_EXPONENT_WIDTH = 0.5  # an exponent's interval that may still be printed: linear and quadratic growth are 1 apart


@dataclass(frozen=True)
class SettingRows:
    """Rows that may be compared, and what they have in common."""

    key: dict[str, Any]
    rows: Frame

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """By mode in order of appearance, bidirectional before causal."""
        modes = _split_by_column(self.rows, "mode")
        return tuple(Slice(mode, causal, rows) for mode, part in modes for causal, rows in _split_directions(part))

    @cached_property
    def baseline(self) -> str:
        """What it is called: as its rows are, where they agree."""
        labels = set(self.rows.loc[self.rows["is_baseline"], "label"])
        baseline = labels.pop() if len(labels) == 1 else self.key["baseline"]
        return str(baseline) if not pd.isna(baseline) else "the baseline"


@dataclass(frozen=True)
class Slice:
    """The rows of one setting, mode and direction; fidelity has no mode, but inputs and a length."""

    mode: str | None
    causal: bool | None
    rows: Frame
    inputs: str | None = None
    length: int | None = None


def add_labels(rows: Frame) -> Frame:
    """Rows with ``label``, the variant as it is shown, and ``is_baseline``; plain numbers, and None for what is empty.

    Two rows that would lie on each other get in their labels what tells them apart, say ``gqa (kv_heads=2)``.
    """
    rows = _convert_columns(rows)
    pairs = list(zip(rows["variant"].tolist(), rows["backend"].tolist(), strict=True))
    label_by_pair = {pair: label_of(*pair) for pair in set(pairs)}  # of thousands of rows, few differ
    label = pd.Series([label_by_pair[pair] for pair in pairs], index=rows.index, dtype=object)
    other_heads = rows["baseline_kv_heads"].notna() & (rows["kv_heads"] != rows["baseline_kv_heads"])
    rows = rows.assign(label=label, is_baseline=(label == rows["baseline"]) & ~other_heads)
    for column in DISTINGUISHING_COLUMNS:
        ok_rows = rows[rows["status"] == "ok"]
        # of fidelity inputs make tables of their own, and of training they are attempts of one mechanism
        ok_rows = ok_rows[ok_rows["mode"].notna() & (ok_rows["mode"] != "train")] if column == "inputs" else ok_rows
        key_columns = [name for name in RESULT_KEY_COLUMNS if name != column]
        several = ok_rows.groupby(key_columns, dropna=False)[column].transform("nunique") > 1
        unclear = rows["label"].isin(ok_rows.loc[several, "label"].unique()) & rows[column].notna()
        rows.loc[unclear, "label"] += f" ({column}=" + rows.loc[unclear, column].astype(str) + ")"
    return rows


def _convert_columns(rows: Frame) -> Frame:
    """The columns as Python's own objects or floats: pandas holds these together, and slices them ten times faster."""
    columns = {}
    for name in rows.columns:
        values = rows[name]
        number = name in NUMERIC_COLUMNS or pd.api.types.is_float_dtype(values.dtype)
        converted = values.astype("float64") if number else values.astype(object).where(values.notna(), None)
        columns[name] = converted
    return pd.DataFrame(columns)


def filter_task(rows: Frame, task: str) -> Frame:
    """The rows of a task; those that name none may be anybody's."""
    return rows[(rows["task"] == task) | rows["task"].isna()]


def filter_timed(rows: Frame) -> Frame:
    """The rows that measured time, memory or state."""
    measured = rows[["latency_ms", "peak_memory_bytes", "state_bytes"]].notna().any(axis=1)
    return _filter_latest(rows[(rows["status"] == "ok") & rows["mode"].notna() & rows["seq_len"].notna() & measured])


def filter_fidelity(rows: Frame) -> Frame:
    """The rows that measured how far an output is from exact attention."""
    return _filter_latest(rows[(rows["status"] == "ok") & rows["relative_error"].notna() & rows["mode"].isna()])


def _filter_latest(rows: Frame) -> Frame:
    """One row a place: of repetitions that nothing tells apart, the latest that was paired with a baseline, if any."""
    paired_last = rows.iloc[rows["speedup"].notna().to_numpy().argsort(kind="stable")]
    return paired_last.drop_duplicates(RESULT_KEY_COLUMNS, keep="last").sort_index()


def split_settings(rows: Frame) -> Iterator[SettingRows]:
    """Rows apart by everything that forbids a comparison, in the order in which they were measured."""
    for values, part in rows.groupby(SETTING_COLUMNS, dropna=False, sort=False):
        yield SettingRows(dict(zip(SETTING_COLUMNS, values, strict=True)), part)


def make_config_key(config: Mapping[str, Any]) -> str:
    """A setting's columns with ``mode`` and ``causal`` as one text: what is missing equals itself there."""
    return str([str(config[name]) for name in (*SETTING_COLUMNS, "mode", "causal")])


def _split_directions(rows: Frame) -> list[tuple[Any, Frame]]:
    return sorted(_split_by_column(rows, "causal"), key=lambda part: (part[0] is None, part[0]))


def _split_by_column(rows: Frame, column: str) -> Iterator[tuple[Any, Frame]]:
    """Rows apart by one column, in order of appearance. Mostly there is but one part, and that costs no copy."""
    values = rows[column].to_numpy()
    distinct = list(dict.fromkeys(map(_as_python_value, values)))
    for value in distinct:
        yield value, rows if len(distinct) == 1 else rows[[_as_python_value(v) == value for v in values]]


def slice_fidelity(rows: Frame) -> Iterator[Slice]:
    """A setting's fidelity rows by inputs, direction and length."""
    for (inputs, causal, length), part in rows.groupby(["inputs", "causal", "seq_len"], dropna=False):
        yield Slice(None, _as_python_value(causal), part, _as_python_value(inputs), int(length) if length > 0 else None)


def find_budgets(rows: Frame) -> dict[str, tuple[int, str]]:
    """To what each variant was fitted, by its label, and which of the budgets that is; those to none come first."""
    budgets = rows["budget"].dropna().unique().tolist()
    ranked_budgets = {budget: (rank, str(budget)) for rank, budget in enumerate(budgets, 1)}
    fitted = rows.groupby("label", sort=False)["budget"].first()
    return {str(label): ranked_budgets.get(budget, (0, units.NONE)) for label, budget in fitted.items()}


def find_headline_rows(rows: Frame, column: str) -> Frame:
    """The rows at the length where most variants have a speedup, then this value; the longest such, smallest first."""
    values, lengths, labels = (rows[name].to_numpy() for name in (column, "seq_len", "label"))
    labels_by_length: dict[float, set[str]] = {}
    for i in np.flatnonzero(~np.isnan(values)):
        labels_by_length.setdefault(lengths[i], set()).add(labels[i])
    if not labels_by_length:
        return rows[:0]
    paired_counts = dict.fromkeys(labels_by_length, 0)
    for i in np.flatnonzero(~np.isnan(values) & ~np.isnan(rows["speedup"].to_numpy())):
        paired_counts[lengths[i]] += 1
    longest = max(labels_by_length, key=lambda length: (paired_counts[length], len(labels_by_length[length]), length))
    indices = np.flatnonzero((lengths == longest) & ~np.isnan(values))
    return rows.iloc[sorted(indices, key=lambda i: (values[i], labels[i]))]


ColumnArrays: TypeAlias = Mapping[str, Any]  # arrays of one length by their column's name


def split_variants(rows: Frame) -> dict[str, ColumnArrays]:
    """Each variant's numbers, in order of appearance: as arrays, for thousands of small frames would cost seconds."""
    codes, labels = pd.factorize(rows["label"])
    order, cuts = codes.argsort(kind="stable"), np.cumsum(np.bincount(codes))[:-1]
    parts = {name: np.split(rows[name].to_numpy()[order], cuts) for name in CURVE_COLUMNS}
    return {label: {name: parts[name][i] for name in CURVE_COLUMNS} for i, label in enumerate(labels)}


def sort_series(arrays: ColumnArrays, *columns: str) -> tuple[tuple[float, ...], ...]:
    """One variant's lengths in order, and its values of each column, where the first is positive and so can grow."""
    series = np.array([arrays[name] for name in ("seq_len", *columns)])
    series = series[:, series[1] > 0]
    return tuple(map(tuple, series[:, series[0].argsort(kind="stable")].tolist()))


def fit_growth(arrays: ColumnArrays, column: str) -> Estimate | None:
    """The exponent with which one variant's values grow over all its lengths; None for fewer than two."""
    lengths, values = sort_series(arrays, column)
    return exponent(lengths, values) if len(set(lengths)) > 1 else None


def is_precise_growth(growth: Estimate) -> bool:
    """Whether an exponent may be printed: not one that could as well be another."""
    return growth.low is None or growth.high is None or growth.high - growth.low <= MAX_EXPONENT_WIDTH


def _as_python_value(value: Any) -> Any:
    """A group's key as Python's own value, None where it is missing."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
