"""Group rows for tables and plots: label variants, and split rows into settings and slices.

A *setting* is the set of columns that must agree for two rows to be comparable. A *slice* is a setting's rows of one
mode and direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from .. import units
from ..results.stats import Estimate, estimate_exponent
from ..spec import format_label
from .gather import Frame

SETTING_COLUMNS = ["suite", "machine", "device", "dtype", "threads", "batch", "heads", "head_dim", "fill", "baseline"]
# added to the label if two rows of a variant in one slice differ in it
DISTINGUISHING_COLUMNS = ["kv_heads", "kv_len", "cache", "compiled", "cuda_graph", "inputs", "seed", "budget"]
DISTINGUISHING_COLUMNS += ["backend_used", "run_id"]
# identify a result
RESULT_KEY_COLUMNS = [*SETTING_COLUMNS, "causal", "mode", "task", "inputs", "seq_len", "layer", "label"]
# from which labels are made
LABELLED_COLUMNS = ["variant", "backend", "kv_heads", "baseline_kv_heads", "baseline", "status", "part"]
LABELLED_COLUMNS += [*RESULT_KEY_COLUMNS[:-1], *DISTINGUISHING_COLUMNS]
PART_COLUMNS = ["swap.segment"]  # of parts of a result, which a resumed run may have measured in different sessions
NUMERIC_COLUMNS = ["seq_len", "layer", "peak_memory_bytes", "state_bytes"]
_INTERVAL_COLUMNS = [f"{name}{end}" for name in ("latency_ms", "speedup") for end in ("", "_low", "_high")]
CURVE_COLUMNS = ["seq_len", "peak_memory_bytes", "state_bytes", *_INTERVAL_COLUMNS]  # plotted over length
MAX_EXPONENT_WIDTH = 0.5  # wider intervals are not printed: linear and quadratic growth are 1 apart


@dataclass(frozen=True)
class SettingRows:
    """Comparable rows, and the columns in which they agree."""

    key: dict[str, Any]
    rows: Frame

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """By mode in order of appearance, bidirectional before causal."""
        modes = _split_by_column(self.rows, "mode")
        return tuple(
            Slice(mode, causal, rows)
            for mode, part in modes
            for causal, rows in _split_by_column(part, "causal", sort=True)
        )

    @cached_property
    def baseline(self) -> str:
        """Label of the baseline's rows, if they agree, else its name."""
        labels = set(self.rows.loc[self.rows["is_baseline"], "label"])
        baseline = labels.pop() if len(labels) == 1 else self.key["baseline"]
        return str(baseline) if not pd.isna(baseline) else "the baseline"


@dataclass(frozen=True)
class Slice:
    """Rows of one setting, mode and direction; fidelity has inputs and a length instead of a mode."""

    mode: str | None
    causal: bool | None
    rows: Frame
    inputs: str | None = None
    length: int | None = None


def add_labels(rows: Frame) -> Frame:
    """Add ``label``, the displayed name of the variant, and ``is_baseline``; convert columns, with None for missing.

    Labels of rows that would coincide are extended by the column that differs, such as ``gqa (kv_heads=2)``.
    """
    rows = _convert_columns(rows)
    pairs = list(zip(rows["variant"].tolist(), rows["backend"].tolist(), strict=True))
    label_by_pair = {pair: format_label(*pair) for pair in set(pairs)}  # there are few distinct pairs
    label = pd.Series([label_by_pair[pair] for pair in pairs], index=rows.index, dtype=object)
    other_heads = rows["baseline_kv_heads"].notna() & (rows["kv_heads"] != rows["baseline_kv_heads"])
    part_columns = [name for name in PART_COLUMNS if name in rows]
    rows = rows.assign(label=label, is_baseline=(label == rows["baseline"]) & ~other_heads)
    test = rows["part"].where(rows["mode"] == "train")  # models of another part of the suite are another test
    ok_rows = rows.assign(test=test)[rows["status"] == "ok"]
    keys = [name for name in (*RESULT_KEY_COLUMNS, "test", *part_columns) if name not in ("inputs", "label")]
    results = ok_rows.groupby(keys, dropna=False, sort=False).ngroup()  # one number is grouped faster than many columns
    ok_rows = ok_rows[["mode", *DISTINGUISHING_COLUMNS]].assign(result=results)
    for column in DISTINGUISHING_COLUMNS:
        compared = ok_rows.assign(label=rows["label"])
        if column == "inputs":  # of fidelity they have separate tables; of training they are attempts
            compared = compared[compared["mode"].notna() & (compared["mode"] != "train")]
        if compared[column].nunique() < 2:
            continue
        key_columns = [name for name in ("result", "inputs", "label") if name != column]
        several = compared.groupby(key_columns, dropna=False)[column].transform("nunique") > 1
        unclear = rows["label"].isin(compared.loc[several, "label"].unique()) & rows[column].notna()
        extended = [
            f"{x} ({column}={value})" for x, value in rows.loc[unclear, ["label", column]].itertuples(index=False)
        ]
        rows.loc[unclear, "label"] = pd.Series(extended, index=rows.index[unclear], dtype=object)
    return rows


def find_batches(rows: Frame) -> list[int]:
    """The batches of rows, ascending; of trained models those of a training step."""
    columns = rows.reindex(columns=["train.batch", "batch"]).astype(float)
    return sorted({int(batch) for batch in columns.bfill(axis=1)["train.batch"].dropna()})


def _convert_columns(rows: Frame) -> Frame:
    """Convert columns to objects or floats, which pandas consolidates and slices ten times faster."""
    columns = {}
    for name in rows.columns:
        values = rows[name]
        if name in NUMERIC_COLUMNS or pd.api.types.is_float_dtype(values.dtype):
            columns[name] = values.astype("float64")
        elif isinstance(values.dtype, pd.api.extensions.ExtensionDtype):
            codes, uniques = pd.factorize(values)  # there are few: converting each value would take seconds
            objects = np.array([*uniques.astype(object), None], dtype=object)
            columns[name] = pd.Series(objects[codes], rows.index, object)  # the code of missing values is -1
        else:
            columns[name] = values.astype(object).where(values.notna(), None)
    return pd.DataFrame(columns)


def filter_task(rows: Frame, task: str) -> Frame:
    """The rows of a task, and those without one."""
    return rows[(rows["task"] == task) | rows["task"].isna()]


def filter_timed(rows: Frame) -> Frame:
    """The rows that measured time, memory or state."""
    measured = rows[["latency_ms", "peak_memory_bytes", "state_bytes"]].notna().any(axis=1)
    return _filter_latest(rows[(rows["status"] == "ok") & rows["mode"].notna() & rows["seq_len"].notna() & measured])


def filter_fidelity(rows: Frame) -> Frame:
    """The rows that measured the error against exact attention."""
    return _filter_latest(rows[(rows["status"] == "ok") & rows["relative_error"].notna() & rows["mode"].isna()])


def _filter_latest(rows: Frame) -> Frame:
    """One row per result: of repetitions, the latest that was paired with a baseline, if any."""
    paired_last = rows.iloc[rows["speedup"].notna().to_numpy().argsort(kind="stable")]
    return paired_last.drop_duplicates(RESULT_KEY_COLUMNS, keep="last").sort_index()


def split_settings(rows: Frame) -> Iterator[SettingRows]:
    """Split rows into settings, in order of appearance."""
    for values, part in rows.groupby(SETTING_COLUMNS, dropna=False, sort=False):
        yield SettingRows(dict(zip(SETTING_COLUMNS, values, strict=True)), part)


def make_config_key(config: Mapping[str, Any]) -> str:
    """A setting's columns with ``mode`` and ``causal`` as text, in which missing values are equal."""
    return str([str(config[name]) for name in (*SETTING_COLUMNS, "mode", "causal")])


def _split_by_column(rows: Frame, column: str, *, sort: bool = False) -> Iterator[tuple[Any, Frame]]:
    """Split rows by a column, in order of appearance or of the values, missing ones last."""
    for value, part in rows.groupby(column, dropna=False, sort=sort):
        yield _as_python_value(value), part


def slice_fidelity(rows: Frame) -> Iterator[Slice]:
    """Split a setting's fidelity rows by inputs, direction and length."""
    for (inputs, causal, length), part in rows.groupby(["inputs", "causal", "seq_len"], dropna=False):
        yield Slice(None, _as_python_value(causal), part, _as_python_value(inputs), int(length) if length > 0 else None)


def find_budgets(rows: Frame) -> dict[str, tuple[int, str]]:
    """Rank and name of the budget to which each variant was fitted, by label; rank 0 without a budget."""
    budgets = rows["budget"].dropna().unique().tolist()
    ranked_budgets = {budget: (rank, str(budget)) for rank, budget in enumerate(budgets, 1)}
    fitted = rows.groupby("label", sort=False)["budget"].first()
    return {str(label): ranked_budgets.get(budget, (0, units.EMPTY)) for label, budget in fitted.items()}


def find_headline_rows(rows: Frame, column: str) -> Frame:
    """Rows at the length with the most speedups, then the most values, then the longest; smallest values first."""
    values, lengths, labels = (rows[name].to_numpy() for name in (column, "seq_len", "label"))
    measured = ~np.isnan(values)
    paired_counts = Counter(lengths[measured & ~np.isnan(rows["speedup"].to_numpy())].tolist())
    counts = Counter(length for length, _ in set(zip(lengths[measured].tolist(), labels[measured], strict=True)))
    longest = max(counts, key=lambda length: (paired_counts[length], counts[length], length), default=np.nan)
    indices = np.flatnonzero(measured & (lengths == longest))
    return rows.iloc[sorted(indices, key=lambda i: (values[i], labels[i]))]


ColumnArrays: TypeAlias = Mapping[str, Any]  # arrays of equal length, by column


def split_variants(rows: Frame) -> dict[str, ColumnArrays]:
    """Arrays of each variant in order of appearance; thousands of small frames would take seconds."""
    codes, labels = pd.factorize(rows["label"])
    order, cuts = codes.argsort(kind="stable"), np.cumsum(np.bincount(codes))[:-1]
    parts = {name: np.split(rows[name].to_numpy()[order], cuts) for name in CURVE_COLUMNS}
    return {label: {name: parts[name][i] for name in CURVE_COLUMNS} for i, label in enumerate(labels)}


def sort_series(arrays: ColumnArrays, *columns: str) -> tuple[tuple[float, ...], ...]:
    """Sorted lengths of a variant and its values of each column, where the first column is positive."""
    series = np.array([arrays[name] for name in ("seq_len", *columns)])
    series = series[:, series[1] > 0]
    return tuple(map(tuple, series[:, series[0].argsort(kind="stable")].tolist()))


def fit_growth(arrays: ColumnArrays, column: str) -> Estimate | None:
    """Fitted exponent of a variant's values over its lengths; None for fewer than two lengths."""
    lengths, values = sort_series(arrays, column)
    return estimate_exponent(lengths, values) if len(set(lengths)) > 1 else None


def is_precise_growth(growth: Estimate) -> bool:
    """Whether the interval of an exponent is narrow enough to print it."""
    return growth.low is None or growth.high is None or growth.high - growth.low <= MAX_EXPONENT_WIDTH


def _as_python_value(value: Any) -> Any:
    """A group key as a Python scalar, None if missing."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
