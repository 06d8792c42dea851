"""What all tables share: cells as people read them, with the number behind each for sorting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .. import units
from ..patterns.counting import possible_pairs
from . import losses, select, words
from .answers import crossovers
from .gather import Frame


class Shown(NamedTuple):
    """A table's cell: its text, the value it sorts by, and a mark (faster, slower, unclear, base) for its look.

    small: what stands below it. phone: lines that only narrow screens show there, for columns that they do not reach.
    """

    text: str
    sort: float | str | None = None
    mark: str = ""
    small: str = ""
    phone: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """What both pages print. The first column names its row; all but ``text_columns`` stand to the right. folded: for
    those who open it. wrapped: further columns of text, by their heads. mode: of all its rows, where they share one."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[Shown]]
    text_columns: int = 1
    note: str = ""
    folded: bool = False
    wrapped: tuple[str, ...] = ()
    mode: str | None = None

    def is_text(self, column: int) -> bool:
        return column < self.text_columns or self.head[column] in self.wrapped


# of a row, what the tables of costs show
SHOWN = [
    *("label", "is_baseline", "latency_ms", "latency_ms_low", "latency_ms_high", "speedup", "speedup_low"),
    *("speedup_high", "tokens_per_s", "peak_memory_bytes", "state_bytes", "seq_len", "kv_len", "causal"),
    *("pairs", "pairs_computed", "backend_used", "batch", "kv_heads", "bytes_moved", "bandwidth_share", "read_from"),
    *("memory_budget_bytes", "longest_context", "variant", "gate_len", *losses.COLUMNS),
]
ERROR, BACKEND = "Error", "Backend"
ERROR_SAID = (
    "'Error' is what the same mechanism loses: the norm of its difference from exact attention over the norm of exact "
    "attention, so that an output of zeros has 1."
)
PAIRS = ("Pairs kept", "Computed for each")
PAIRS_SAID = (
    "'Pairs kept' is the share of all query-key pairs, of all that causality leaves where it is causal, over which a "
    "mechanism attends; 'computed for each' is how many its backend computes for each pair kept."
)
UNCLEAR = "unclear"  # what stands in place of an exponent
SAID = [((ERROR,), ERROR_SAID), (PAIRS, PAIRS_SAID)]  # of the columns that several sections have
ALL, ONCE = "all", "1"  # of the pairs, and for each: where nothing is sparse, no table need show it
GOES_WITHOUT_SAYING = {**dict.fromkeys(PAIRS, (ALL, ONCE)), ERROR: (losses.NOT_MEASURED, losses.EXACT)}
MARKS = {"faster": "\u25b2", "slower": "\u25bc", "unclear": "\u2248"}


def list_shown(rows: Frame) -> list[dict[str, Any]]:
    """What the tables show of each row, None for what is not there; by columns, which is faster than pandas' own."""
    nothing = [None] * len(rows)
    columns = [rows[name].tolist() if name in rows else nothing for name in SHOWN]
    return [dict(zip(SHOWN, row, strict=True)) for row in zip(*columns, strict=True)]


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


def show_error(row: dict[str, Any]) -> Shown:
    """What the same spec loses against exact attention."""
    if not units.there(row["error"]):
        return Shown(losses.EXACT, 0.0) if losses.is_exact(row) else Shown(losses.NOT_MEASURED)
    return show_number(row["error"])


def show_growth(own: select.Columns, column: str) -> Shown:
    """The exponent; a word where its interval is too wide for one."""
    found = select.fit_growth(own, column)
    if found is None:
        return Shown(units.NONE)
    return Shown(units.power(*found), found.value) if select.is_clear(found) else Shown(UNCLEAR)


def show_passing(row: dict[str, Any], own: select.Columns) -> Shown:
    """From which length on the variant is shown to be faster at every length, as far as lengths were measured."""
    found = None if row["is_baseline"] else crossovers.find_passing(own)
    return Shown(units.NONE) if found is None else Shown(crossovers.tell(found), found.rank)


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
        return units.NONE, "baseline", *GOES_WITHOUT_SAYING.get(name, ())

    said = [any(row[i].text not in empty(name) for row in table.rows) for i, name in enumerate(table.head)]
    kept = [i for i, shown in enumerate(said) if shown or not i]
    rows = [[row[i] for i in kept] for row in table.rows]
    text_columns = sum(i < table.text_columns for i in kept)
    return replace(table, head=tuple(table.head[i] for i in kept), rows=rows, text_columns=text_columns)


def note(*sentences: str) -> str:
    """What stands below a table."""
    return " ".join(filter(None, sentences))


def tell_errors(found: Sequence[dict[str, Any]]) -> str:
    """On what the errors of a table were measured, or that none was."""
    where = losses.tell_places(found, whole=True)
    return f"Errors were measured on {where}." if where else "Errors against exact attention were not measured."


def tell_gate(found: Sequence[dict[str, Any]]) -> str:
    """Which variants were compared with their oracles at another length than they were timed at."""
    lengths: dict[int, list[str]] = {}
    for row in found:
        if units.there(row["gate_len"]) and row["gate_len"] != row["seq_len"]:
            lengths.setdefault(int(row["gate_len"]), []).append(row["label"])
    told = "; ".join(f"{words.join(names)} at {length}" for length, names in sorted(lengths.items()))
    return f"Compared with their oracles at another length than the timed one: {told}." if told else ""


def name_absent(rows: Frame, top: Frame) -> str:
    """Who was measured, but not at this length: it must not just vanish from the table."""
    others = [label for label in dict.fromkeys(rows["label"]) if label not in set(top["label"])]
    return f"Measured at other lengths only: {words.join(others)}." if others else ""


def length_of(top: Frame) -> str:
    return f"{int(top['seq_len'].iloc[0])}"
