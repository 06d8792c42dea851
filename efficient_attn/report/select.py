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

SETTING = ["suite", "machine", "device", "dtype", "threads", "batch", "heads", "head_dim", "fill", "baseline"]
# what may differ between two rows of one variant at one place of a slice; then the label says it
APART = ["kv_heads", "kv_len", "cache", "compiled", "cuda_graph", "inputs", "seed", "budget", "backend_used", "run_id"]

# what two results of one variant may not share
PLACE = [*SETTING, "causal", "mode", "task", "inputs", "seq_len", "layer", "label"]
NUMBERS = ["seq_len", "layer", "peak_memory_bytes", "state_bytes"]
_TIMED = [f"{name}{end}" for name in ("latency_ms", "speedup") for end in ("", "_low", "_high")]
CURVES = ["seq_len", "peak_memory_bytes", "state_bytes", *_TIMED]  # what is drawn over lengths, and grows with them
WIDEST = 0.5  # an exponent's interval that may still be printed: linear and quadratic growth are 1 apart


@dataclass(frozen=True)
class Setting:
    """Rows that may be compared, and what they have in common."""

    key: dict[str, Any]
    rows: Frame

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """By mode in order of appearance, bidirectional before causal."""
        modes = _split(self.rows, "mode")
        return tuple(Slice(mode, causal, rows) for mode, part in modes for causal, rows in _split_directions(part))

    @cached_property
    def baseline(self) -> str:
        """What it is called: as its rows are, where they agree."""
        labels = set(self.rows.loc[self.rows["is_baseline"], "label"])
        named = labels.pop() if len(labels) == 1 else self.key["baseline"]
        return str(named) if not pd.isna(named) else "the baseline"


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
    rows = _plain_columns(rows)
    pairs = list(zip(rows["variant"].tolist(), rows["backend"].tolist(), strict=True))
    known = {pair: label_of(*pair) for pair in set(pairs)}  # of thousands of rows, few differ
    label = pd.Series([known[pair] for pair in pairs], index=rows.index, dtype=object)
    other_heads = rows["baseline_kv_heads"].notna() & (rows["kv_heads"] != rows["baseline_kv_heads"])
    rows = rows.assign(label=label, is_baseline=(label == rows["baseline"]) & ~other_heads)
    for column in APART:
        ok = rows[rows["status"] == "ok"]
        # of fidelity inputs make tables of their own, and of training they are attempts of one mechanism
        ok = ok[ok["mode"].notna() & (ok["mode"] != "train")] if column == "inputs" else ok
        place = [name for name in PLACE if name != column]
        several = ok.groupby(place, dropna=False)[column].transform("nunique") > 1
        unclear = rows["label"].isin(ok.loc[several, "label"].unique()) & rows[column].notna()
        rows.loc[unclear, "label"] += f" ({column}=" + rows.loc[unclear, column].astype(str) + ")"
    return rows


def _plain_columns(rows: Frame) -> Frame:
    """The columns as Python's own objects or floats: pandas holds these together, and slices them ten times faster."""
    columns = {}
    for name in rows.columns:
        values = rows[name]
        number = name in NUMBERS or pd.api.types.is_float_dtype(values.dtype)
        plain = values.astype("float64") if number else values.astype(object).where(values.notna(), None)
        columns[name] = plain
    return pd.DataFrame(columns)


def keep_task(rows: Frame, task: str) -> Frame:
    """The rows of a task; those that name none may be anybody's."""
    return rows[(rows["task"] == task) | rows["task"].isna()]


def keep_timed(rows: Frame) -> Frame:
    """The rows that measured time, memory or state."""
    measured = rows[["latency_ms", "peak_memory_bytes", "state_bytes"]].notna().any(axis=1)
    return _keep_latest(rows[(rows["status"] == "ok") & rows["mode"].notna() & rows["seq_len"].notna() & measured])


def keep_faithful(rows: Frame) -> Frame:
    """The rows that measured how far an output is from exact attention."""
    return _keep_latest(rows[(rows["status"] == "ok") & rows["relative_error"].notna() & rows["mode"].isna()])


def _keep_latest(rows: Frame) -> Frame:
    """One row a place: of repetitions that nothing tells apart, the latest that was paired with a baseline, if any."""
    paired_last = rows.iloc[rows["speedup"].notna().to_numpy().argsort(kind="stable")]
    return paired_last.drop_duplicates(PLACE, keep="last").sort_index()


def split_settings(rows: Frame) -> Iterator[Setting]:
    """Rows apart by everything that forbids a comparison, in the order in which they were measured."""
    for values, part in rows.groupby(SETTING, dropna=False, sort=False):
        yield Setting(dict(zip(SETTING, values, strict=True)), part)


def name_place(place: Mapping[str, Any]) -> str:
    """A setting's columns with ``mode`` and ``causal`` as one text: what is missing equals itself there."""
    return str([str(place[name]) for name in (*SETTING, "mode", "causal")])


def _split_directions(rows: Frame) -> list[tuple[Any, Frame]]:
    return sorted(_split(rows, "causal"), key=lambda part: (part[0] is None, part[0]))


def _split(rows: Frame, column: str) -> Iterator[tuple[Any, Frame]]:
    """Rows apart by one column, in order of appearance. Mostly there is but one part, and that costs no copy."""
    values = rows[column].to_numpy()
    found = list(dict.fromkeys(map(_plain, values)))
    for value in found:
        yield value, rows if len(found) == 1 else rows[[_plain(v) == value for v in values]]


def slice_fidelity(rows: Frame) -> Iterator[Slice]:
    """A setting's fidelity rows by inputs, direction and length."""
    for (inputs, causal, length), part in rows.groupby(["inputs", "causal", "seq_len"], dropna=False):
        yield Slice(None, _plain(causal), part, _plain(inputs), int(length) if length > 0 else None)


def find_budgets(rows: Frame) -> dict[str, tuple[int, str]]:
    """To what each variant was fitted, by its label, and which of the budgets that is; those to none come first."""
    budgets = rows["budget"].dropna().unique().tolist()
    places = {budget: (place, str(budget)) for place, budget in enumerate(budgets, 1)}
    fitted = rows.groupby("label", sort=False)["budget"].first()
    return {str(label): places.get(budget, (0, units.NONE)) for label, budget in fitted.items()}


def find_headline(rows: Frame, column: str) -> Frame:
    """The rows at the length where most variants have a speedup, then this value; the longest such, smallest first."""
    values, lengths, labels = (rows[name].to_numpy() for name in (column, "seq_len", "label"))
    have: dict[float, set[str]] = {}
    for i in np.flatnonzero(~np.isnan(values)):
        have.setdefault(lengths[i], set()).add(labels[i])
    if not have:
        return rows[:0]
    paired = dict.fromkeys(have, 0)
    for i in np.flatnonzero(~np.isnan(values) & ~np.isnan(rows["speedup"].to_numpy())):
        paired[lengths[i]] += 1
    longest = max(have, key=lambda length: (paired[length], len(have[length]), length))
    shown = np.flatnonzero((lengths == longest) & ~np.isnan(values))
    return rows.iloc[sorted(shown, key=lambda i: (values[i], labels[i]))]


Columns: TypeAlias = Mapping[str, Any]  # arrays of one length by their column's name


def split_variants(rows: Frame) -> dict[str, Columns]:
    """Each variant's numbers, in order of appearance: as arrays, for thousands of small frames would cost seconds."""
    codes, labels = pd.factorize(rows["label"])
    order, cuts = codes.argsort(kind="stable"), np.cumsum(np.bincount(codes))[:-1]
    parts = {name: np.split(rows[name].to_numpy()[order], cuts) for name in CURVES}
    return {label: {name: parts[name][i] for name in CURVES} for i, label in enumerate(labels)}


def order_series(own: Columns, *columns: str) -> tuple[tuple[float, ...], ...]:
    """One variant's lengths in order, and its values of each column, where the first is positive and so can grow."""
    found = np.array([own[name] for name in ("seq_len", *columns)])
    found = found[:, found[1] > 0]
    return tuple(map(tuple, found[:, found[0].argsort(kind="stable")].tolist()))


def fit_growth(own: Columns, column: str) -> Estimate | None:
    """The exponent with which one variant's values grow over all its lengths; None for fewer than two."""
    lengths, values = order_series(own, column)
    return exponent(lengths, values) if len(set(lengths)) > 1 else None


def is_clear(growth: Estimate) -> bool:
    """Whether an exponent may be printed: not one that could as well be another."""
    return growth.low is None or growth.high is None or growth.high - growth.low <= WIDEST


def _plain(value: Any) -> Any:
    """A group's key as Python's own value, None where it is missing."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
