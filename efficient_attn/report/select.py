"""From rows to what is shown together: settings, their cells, one label a variant. Only pandas.

A *setting* is everything that must agree before two numbers may stand in one table or plot. A *cell* is a setting's rows of
one mode and direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from ..results.stats import Estimate, exponent

SETTING = ["suite", "machine", "device", "dtype", "threads", "batch", "heads", "head_dim", "baseline"]
# what may differ between two rows of one variant at one place of a cell; then the label says it
APART = ["kv_heads", "kv_len", "compiled", "inputs", "seed", "backend_used", "run_id"]


class Setting(NamedTuple):
    """Rows that may be compared, and what they have in common."""

    key: dict[str, Any]
    rows: pd.DataFrame

    @property
    def baseline(self) -> str:
        return str(self.key["baseline"]) if not pd.isna(self.key["baseline"]) else "the baseline"


@dataclass(frozen=True)
class Cell:
    """The rows of one setting, mode and direction; fidelity has no mode, but inputs and a length."""

    mode: str | None
    causal: bool | None
    rows: pd.DataFrame
    inputs: str | None = None
    length: int | None = None


def labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with ``label``, the variant as it is shown, and ``is_baseline``.

    Two rows that would lie on each other get in their labels what tells them apart, say ``gqa (kv_heads=2)``.
    """
    spoken = rows["variant"].str.contains("backend=", regex=False)
    asked = rows["backend"].notna() & ~spoken.fillna(False)
    label = rows["variant"].where(~asked, rows["variant"] + ":backend=" + rows["backend"].fillna(""))
    rows = rows.assign(label=label.astype(object), is_baseline=(label == rows["baseline"]).fillna(False).astype(bool))
    for column in APART:
        ok = rows[rows["status"] == "ok"]
        place = [*SETTING, "causal", "mode", "task", "seq_len", "layer", "label"]
        place += [] if column == "inputs" else ["inputs"]
        # inputs separate tables of fidelity already
        ok = ok[ok["mode"].notna()] if column == "inputs" else ok
        several = ok.groupby(place, dropna=False)[column].transform("nunique") > 1
        unclear = rows["label"].isin(ok.loc[several, "label"].unique()) & rows[column].notna()
        rows.loc[unclear, "label"] += f" ({column}=" + rows.loc[unclear, column].astype(str) + ")"
    return rows


def timed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that measured time, memory or state."""
    measured = rows[["latency_ms", "peak_memory_bytes", "state_bytes"]].notna().any(axis=1)
    return rows[(rows["status"] == "ok") & rows["mode"].notna() & rows["seq_len"].notna() & measured]


def faithful(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that measured how far an output is from exact attention."""
    return rows[(rows["status"] == "ok") & rows["relative_error"].notna() & rows["mode"].isna()]


def settings(rows: pd.DataFrame) -> Iterator[Setting]:
    """Rows apart by everything that forbids a comparison, in the order in which they were measured."""
    for values, part in rows.groupby(SETTING, dropna=False, sort=False):
        yield Setting(dict(zip(SETTING, values, strict=True)), part)


def cells(rows: pd.DataFrame) -> Iterator[Cell]:
    """A setting's cells: by mode in order of appearance, bidirectional before causal."""
    for mode, part in rows.groupby("mode", dropna=False, sort=False):
        for causal, cell in part.groupby("causal", dropna=False):
            yield Cell(_plain(mode), _plain(causal), cell)


def fidelity_cells(rows: pd.DataFrame) -> Iterator[Cell]:
    """A setting's fidelity rows by inputs, direction and length."""
    for (inputs, causal, length), cell in rows.groupby(["inputs", "causal", "seq_len"], dropna=False):
        yield Cell(None, _plain(causal), cell, _plain(inputs), _plain(length))


def headline(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows at the longest length at which all variants have this value, else most of them; the smallest first."""
    rows = rows[rows[column].notna()]
    if rows.empty:
        return rows
    have = rows.groupby("seq_len")["label"].nunique()
    length = have[have == have.max()].index.max()
    return latest(rows[rows["seq_len"] == length]).sort_values([column, "label"])


def latest(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a variant, length and layer: a repetition that nothing tells apart replaces the earlier one."""
    return rows.drop_duplicates(["label", "seq_len", "layer"], keep="last")


def series(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """One variant's positive values by length; only those can grow by a power."""
    return latest(rows[rows[column] > 0]).sort_values("seq_len")


def growth(rows: pd.DataFrame, column: str) -> Estimate | None:
    """The exponent with which one variant's values grow over all its lengths; None for fewer than two."""
    found = series(rows, column)
    if found["seq_len"].nunique() < 2:
        return None
    return exponent(found["seq_len"].astype(float).tolist(), found[column].astype(float).tolist())


def worth_from(rows: pd.DataFrame) -> int | None:
    """The length from which on one variant is faster than the baseline at every longer length; None for none."""
    found = series(rows, "speedup")
    start = None
    for length, low in zip(found["seq_len"], found["speedup_low"], strict=True):
        shown = not pd.isna(low) and low > 1
        start = (start if start is not None else int(length)) if shown else None
    return start


def lengths(rows: pd.DataFrame) -> list[int]:
    return sorted({int(n) for n in rows["seq_len"].dropna()})


def _plain(value: Any) -> Any:
    """A group's key as Python's own value, None where it is missing."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
