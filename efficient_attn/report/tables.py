"""The tables of costs and errors: cells as people read them, with the number behind each for sorting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..patterns.counting import possible_pairs
from . import select, words
from .gather import Frame


class Shown(NamedTuple):
    """A cell: its text, the value it sorts by, and a mark (faster, slower, unclear, base) that gives it a look."""

    text: str
    sort: float | str | None = None
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """What both pages print. The first column names its row; ``numeric`` columns stand to the right."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[Shown]]
    text_columns: int = 1
    note: str = ""


# of a row, what the tables of costs show
SHOWN = [
    *("label", "is_baseline", "latency_ms", "latency_ms_low", "latency_ms_high", "speedup", "speedup_low"),
    *("speedup_high", "tokens_per_s", "peak_memory_bytes", "state_bytes", "seq_len", "kv_len", "causal"),
    *("pairs", "pairs_computed", "backend_used", "batch", "kv_heads", "bytes_moved", "bandwidth_share"),
    *("memory_budget_bytes", "longest_context"),
]
PAIRS = ("Pairs kept", "Computed for each")
PAIRS_SAID = (
    "'Pairs kept' is the share of all query-key pairs, of all that causality leaves where it is causal, over which a "
    "mechanism attends; 'computed for each' is how many its backend computes for each pair kept."
)
PREFILL_SAID = "Prefill takes a whole prompt through one step into a new decode state."
ALL, ONCE = "all", "1"  # of the pairs, and for each: where nothing is sparse, no table need show it
MARKS = {"faster": "\u25b2", "slower": "\u25bc", "unclear": "\u2248"}


def records(rows: Frame) -> list[dict[str, Any]]:
    """What the tables show of each row; column by column, which is faster than pandas' own."""
    return [dict(zip(SHOWN, row, strict=True)) for row in zip(*(rows[name].tolist() for name in SHOWN), strict=True)]


def headline(setting: select.Setting, cell: select.Cell, top: Frame) -> Table:
    """What each variant costs at the length that `select.headline` chose, and how its cost grows."""
    groups, ran, prefill = select.variants(cell.rows), served(cell.rows), cell.mode == "prefill"
    rows = []
    for row in records(top):
        own = groups[row["label"]]
        shown = [name_cell(row), backend_cell(row, ran), time_cell(row)]
        shown += [rate_cell(row["tokens_per_s"] if prefill else None), speedup_cell(row), _worth(row, own)]
        shown += [growth_cell(own, "latency_ms"), size_cell(row["peak_memory_bytes"])]
        rows.append([*shown, growth_cell(own, "peak_memory_bytes"), *pairs_cells(row, int(row["seq_len"]))])
    head = ("Variant", "Backend", "Time", "Tokens a second", f"Speedup over {setting.baseline}", "Faster from")
    head = (*head, "Time exponent", "Peak memory", "Memory exponent", *PAIRS)
    where = words.cell_words(cell.mode, cell.causal)
    note = " ".join(filter(None, (PREFILL_SAID if prefill else "", absent(cell, top))))
    return trimmed(Table(f"{_capital(where)} at length {length_of(top)}", head, rows, 2, note))


def fidelity(cell: select.Cell) -> Table:
    """How far each variant is from exact attention, averaged over layers, beside predictors that know nothing."""
    columns = ["relative_error", "mean_value_error", "cosine_similarity", "total_variation", "missed_mass"]
    columns.append("effective_keys")
    rows = cell.rows
    means = rows.groupby("label", sort=False)[columns].mean().sort_values("relative_error", kind="stable")
    worst = rows.groupby("label")["oracle_error"].max()
    clamped = rows.groupby("label")["clamped_rows"].sum(min_count=1)
    body = []
    for label, mean in means.iterrows():
        first, null, *rest = (_value(mean[column]) for column in columns)
        rest += [_value(clamped[label]), _value(worst[label])]
        body.append([Shown(str(label), str(label)), first, null, _value(1.0), *rest])
    head = ("Variant", "Relative error", "Null: mean of v", "Null: zero", "Cosine similarity", "Total variation")
    layers = rows["layer"].nunique()
    over = f", mean over {words.counted(layers, 'layer')}" if layers > 1 else ""
    note = "An approximation that does not stay well below both nulls has lost what attention adds."
    head = (*head, "Missed mass", "Effective keys", "Rows clamped", "Error against own oracle (worst)")
    return trimmed(Table(f"Distance from exact attention{_where(cell)}{over}", head, body, note=note))


def layers(cell: select.Cell) -> Table | None:
    """The relative error of each variant in each layer, the nulls below; None where there is one layer or none."""
    rows = cell.rows
    if rows["layer"].nunique() < 2:
        return None
    errors = rows.pivot(index="label", columns="layer", values="relative_error")
    errors = errors.loc[errors.mean(axis=1).sort_values(kind="stable").index]
    body = [_values(str(label), line) for label, line in zip(errors.index, errors.to_numpy(), strict=True)]
    null = rows.groupby("layer")["mean_value_error"].median().reindex(errors.columns)
    named = [("null: mean of v", null.tolist()), ("null: zero", [1.0] * len(null))]
    body += [_values(name, values, "null") for name, values in named if not pd.isna(values).all()]
    head = ("Variant", *(f"Layer {int(layer)}" for layer in errors.columns))
    return Table(f"Relative error by layer{_where(cell)}", head, body)


def name_cell(row: dict[str, Any]) -> Shown:
    return Shown(row["label"], row["label"], "base" if row["is_baseline"] else "")


def served(rows: Frame) -> dict[str, set[str]]:
    """The backends that ran each variant, at any length."""
    found: dict[str, set[str]] = {}
    for label, backend in zip(rows["label"].tolist(), rows["backend_used"].tolist(), strict=True):
        found.setdefault(label, set()).update([backend] if words.there(backend) else [])
    return found


def backend_cell(row: dict[str, Any], ran: dict[str, set[str]]) -> Shown:
    """What ran the variant here, and what did at other lengths, for its exponents mix them."""
    used = row["backend_used"]
    if not words.there(used):
        return Shown(words.NONE)
    others = sorted(ran[row["label"]] - {used})
    return Shown(f"{used} (elsewhere {words.listed(others)})" if others else used)


def pairs_cells(row: dict[str, Any], queries: int) -> list[Shown]:
    """The kept share of the pairs, and how many are computed for each that is kept; dashes where there are none."""
    kept, computed = row["pairs"], row["pairs_computed"]
    keys = row["kv_len"] if words.there(row["kv_len"]) else row["seq_len"]
    if not words.there(kept) or not kept > 0:
        return [Shown(words.NONE)] * 2
    share = kept / possible_pairs(queries, int(keys), bool(row["causal"]))
    shown = Shown(ALL if share == 1 else words.percent(share), share)
    if not words.there(computed):
        return [shown, Shown(words.NONE)]
    return [shown, Shown(ONCE if computed == kept else words.number(computed / kept), computed / kept)]


def time_cell(row: dict[str, Any]) -> Shown:
    value, low, high = row["latency_ms"], row["latency_ms_low"], row["latency_ms_high"]
    return Shown(words.duration(value, low, high), _number(value))


def speedup_cell(row: dict[str, Any]) -> Shown:
    value, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
    if row["is_baseline"]:
        return Shown("baseline", 1.0, "base")
    mark = words.verdict(low, high) if words.there(value) else ""
    return Shown(f"{words.ratio(value, low, high)} {MARKS.get(mark, '')}".rstrip(), _number(value), mark)


def _worth(row: dict[str, Any], own: select.Columns) -> Shown:
    """The length from which the variant is shown to be faster at every length up to the longest."""
    if row["is_baseline"] or np.isnan(own["speedup"]).all():
        return Shown(words.NONE)
    start = select.worth_from(own)
    return Shown("not shown", float("inf")) if start is None else Shown(str(start), start)


def growth_cell(own: select.Columns, column: str) -> Shown:
    found = select.growth(own, column)
    return Shown(words.power(*found), found.value) if found else Shown(words.NONE)


def rate_cell(value: Any) -> Shown:
    return Shown(words.rate(value), _number(value))


def size_cell(value: Any) -> Shown:
    return Shown(words.size(value), _number(value))


def _value(value: Any) -> Shown:
    return Shown(words.number(value), _number(value))


def _values(label: str, values: Iterable[Any], mark: str = "") -> list[Shown]:
    return [Shown(label, label, mark), *map(_value, values)]


def _number(value: Any) -> float | None:
    return float(value) if words.there(value) and np.isfinite(float(value)) else None


def trimmed(table: Table) -> Table:
    """The table without the columns in which nothing was measured, or nothing but what goes without saying."""

    def empty(name: str) -> tuple[str, ...]:
        return words.NONE, "baseline", *((ALL, ONCE) if name in PAIRS else ())

    said = [any(row[i].text not in empty(name) for row in table.rows) for i, name in enumerate(table.head)]
    kept = [i for i, shown in enumerate(said) if shown or not i]
    rows = [[row[i] for i in kept] for row in table.rows]
    text_columns = sum(i < table.text_columns for i in kept)
    return Table(table.caption, tuple(table.head[i] for i in kept), rows, text_columns, table.note)


def absent(cell: select.Cell, top: Frame) -> str:
    """Who was measured, but not at this length: it must not just vanish from the table."""
    others = [label for label in dict.fromkeys(cell.rows["label"]) if label not in set(top["label"])]
    return f"Measured at other lengths only: {words.listed(others)}." if others else ""


def length_of(top: Frame) -> str:
    return f"{int(top['seq_len'].iloc[0])}"


def _where(cell: select.Cell) -> str:
    told = words.inputs_words(cell.inputs, cell.causal, cell.length)
    return f": {told}" if told else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
