"""What all tables share: cells as people read them, with the number behind each for sorting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import units
from ..patterns.counting import possible_pairs
from . import select, words
from .gather import Frame


class Shown(NamedTuple):
    """A table's cell: its text, the value it sorts by, and a mark (faster, slower, unclear, base) for its look."""

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
    *("pairs", "pairs_computed", "backend_used", "batch", "kv_heads", "bytes_moved", "bandwidth_share", "read_from"),
    *("memory_budget_bytes", "longest_context"),
]
PAIRS = ("Pairs kept", "Computed for each")
PAIRS_SAID = (
    "'Pairs kept' is the share of all query-key pairs, of all that causality leaves where it is causal, over which a "
    "mechanism attends; 'computed for each' is how many its backend computes for each pair kept."
)
ALL, ONCE = "all", "1"  # of the pairs, and for each: where nothing is sparse, no table need show it
MARKS = {"faster": "\u25b2", "slower": "\u25bc", "unclear": "\u2248"}


def list_shown(rows: Frame) -> list[dict[str, Any]]:
    """What the tables show of each row; column by column, which is faster than pandas' own."""
    return [dict(zip(SHOWN, row, strict=True)) for row in zip(*(rows[name].tolist() for name in SHOWN), strict=True)]


def find_backends(rows: Frame) -> dict[str, set[str]]:
    """The backends that ran each variant, at any length."""
    found: dict[str, set[str]] = {}
    for label, backend in zip(rows["label"].tolist(), rows["backend_used"].tolist(), strict=True):
        found.setdefault(label, set()).update([backend] if units.there(backend) else [])
    return found


def show_name(row: dict[str, Any]) -> Shown:
    return Shown(row["label"], row["label"], "base" if row["is_baseline"] else "")


def show_backend(row: dict[str, Any], ran: dict[str, set[str]]) -> Shown:
    """What ran the variant here, and what did at other lengths, for its exponents mix them."""
    used = row["backend_used"]
    if not units.there(used):
        return Shown(units.NONE)
    others = sorted(ran[row["label"]] - {used})
    return Shown(f"{used} (elsewhere {words.join(others)})" if others else used)


def show_pairs(row: dict[str, Any], queries: int) -> list[Shown]:
    """The kept share of the pairs, and how many are computed for each that is kept; dashes where there are none."""
    kept, computed = row["pairs"], row["pairs_computed"]
    keys = row["kv_len"] if units.there(row["kv_len"]) else row["seq_len"]
    if not units.there(kept) or not kept > 0:
        return [Shown(units.NONE)] * 2
    share = kept / possible_pairs(queries, int(keys), bool(row["causal"]))
    shown = Shown(ALL if share == 1 else units.percent(share), share)
    if not units.there(computed):
        return [shown, Shown(units.NONE)]
    return [shown, Shown(ONCE if computed == kept else units.number(computed / kept), computed / kept)]


def show_time(row: dict[str, Any]) -> Shown:
    value, low, high = row["latency_ms"], row["latency_ms_low"], row["latency_ms_high"]
    return Shown(units.duration(value, low, high), sort_value(value))


def show_speedup(row: dict[str, Any]) -> Shown:
    value, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
    if row["is_baseline"]:
        return Shown("baseline", 1.0, "base")
    mark = words.verdict(low, high) if units.there(value) else ""
    return Shown(f"{units.ratio(value, low, high)} {MARKS.get(mark, '')}".rstrip(), sort_value(value), mark)


def show_growth(own: select.Columns, column: str) -> Shown:
    found = select.fit_growth(own, column)
    return Shown(units.power(*found), found.value) if found else Shown(units.NONE)


def show_rate(value: Any) -> Shown:
    return Shown(units.rate(value), sort_value(value))


def show_size(value: Any) -> Shown:
    return Shown(units.size(value), sort_value(value))


def show_number(value: Any) -> Shown:
    return Shown(units.number(value), sort_value(value))


def sort_value(value: Any) -> float | None:
    """What a table's cell sorts by; None for what is empty or endless."""
    return float(value) if units.there(value) and np.isfinite(float(value)) else None


def trim(table: Table) -> Table:
    """The table without the columns in which nothing was measured, or nothing but what goes without saying."""

    def empty(name: str) -> tuple[str, ...]:
        return units.NONE, "baseline", *((ALL, ONCE) if name in PAIRS else ())

    said = [any(row[i].text not in empty(name) for row in table.rows) for i, name in enumerate(table.head)]
    kept = [i for i, shown in enumerate(said) if shown or not i]
    rows = [[row[i] for i in kept] for row in table.rows]
    text_columns = sum(i < table.text_columns for i in kept)
    return Table(table.caption, tuple(table.head[i] for i in kept), rows, text_columns, table.note)


def name_absent(rows: Frame, top: Frame) -> str:
    """Who was measured, but not at this length: it must not just vanish from the table."""
    others = [label for label in dict.fromkeys(rows["label"]) if label not in set(top["label"])]
    return f"Measured at other lengths only: {words.join(others)}." if others else ""


def length_of(top: Frame) -> str:
    return f"{int(top['seq_len'].iloc[0])}"
