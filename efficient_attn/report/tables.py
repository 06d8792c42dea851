"""Cells and tables of reports: formatted text with sort values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .. import units
from ..patterns.pair_counts import count_possible_pairs
from . import approximation_errors, formatting, select
from .answers import crossovers
from .gather import Frame


class ReportCell(NamedTuple):
    """A table cell: text, sort value, and a mark for its style (faster, slower, unclear, base, null).

    subtext: shown below the text. narrow_lines: shown below it on narrow screens only, which may cut off columns.
    """

    text: str
    sort: float | str | None = None
    mark: str = ""
    subtext: str = ""
    narrow_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportTable:
    """A table of both pages. The first column names the row; all but ``text_columns`` are right-aligned. folded:
    collapsed. wrapped: headings of further text columns. mode: if all rows share one."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[ReportCell]]
    text_columns: int = 1
    note: str = ""
    folded: bool = False
    wrapped: tuple[str, ...] = ()
    mode: str | None = None

    def is_text(self, column: int) -> bool:
        """Whether a column is text and aligned to the left."""
        return column < self.text_columns or self.head[column] in self.wrapped


# columns that tables of costs use
COST_COLUMNS = [
    *("label", "is_baseline", "latency_ms", "latency_ms_low", "latency_ms_high", "speedup", "speedup_low"),
    *("speedup_high", "tokens_per_s", "peak_memory_bytes", "state_bytes", "seq_len", "kv_len", "causal"),
    *("pairs", "pairs_computed", "backend_used", "batch", "kv_heads", "bytes_moved", "bandwidth_share", "read_from"),
    *("memory_budget_bytes", "longest_context", "variant", "gate_len", *approximation_errors.ERROR_COLUMNS),
]
ERROR_HEADING, BACKEND_HEADING = "Error", "Backend"
ERROR_EXPLANATION = (
    "'Error' is the relative error of the same mechanism: the norm of its difference from exact attention over the "
    "norm of exact attention. An output of zeros has an error of 1."
)
PAIRS_HEADINGS = ("Pairs kept", "Computed for each")
PAIRS_EXPLANATION = (
    "'Pairs kept' is the share of query-key pairs that a mechanism attends to, of those that causality allows; "
    "'computed for each' is the number of pairs that its backend computes for each of these."
)
UNCLEAR_TEXT = "unclear"  # in place of an imprecise exponent
# of columns in several sections
COLUMN_EXPLANATIONS = [((ERROR_HEADING,), ERROR_EXPLANATION), (PAIRS_HEADINGS, PAIRS_EXPLANATION)]
ALL_PAIRS_TEXT, COMPUTED_ONCE_TEXT = "all", "1"  # columns with only these are dropped
DEFAULT_TEXTS = {
    **dict.fromkeys(PAIRS_HEADINGS, (ALL_PAIRS_TEXT, COMPUTED_ONCE_TEXT)),
    ERROR_HEADING: (approximation_errors.NOT_MEASURED_TEXT, approximation_errors.EXACT_TEXT),
}
MARKS = {"faster": "\u25b2", "slower": "\u25bc", "unclear": "\u2248"}


def list_row_values(rows: Frame) -> list[dict[str, Any]]:
    """``COST_COLUMNS`` of each row, None if missing; built by columns, which is faster than pandas."""
    nothing = [None] * len(rows)
    columns = [rows[name].tolist() if name in rows else nothing for name in COST_COLUMNS]
    return [dict(zip(COST_COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]


def find_backends(rows: Frame) -> dict[str, set[str]]:
    """The backends that ran each variant, at any length."""
    backends_by_label: dict[str, set[str]] = {}
    for label, backend in zip(rows["label"].tolist(), rows["backend_used"].tolist(), strict=True):
        backends_by_label.setdefault(label, set()).update([backend] if units.is_present(backend) else [])
    return backends_by_label


def show_name(row: dict[str, Any]) -> ReportCell:
    """The cell of a mechanism's label."""
    return ReportCell(row["label"], row["label"], "base" if row["is_baseline"] else "")


def show_backend(row: dict[str, Any], backends_by_label: dict[str, set[str]]) -> ReportCell:
    """The backend here, and those at other lengths, as exponents mix them."""
    used = row["backend_used"]
    if not units.is_present(used):
        return ReportCell(units.EMPTY)
    other_backends = sorted(backends_by_label[row["label"]] - {used})
    return ReportCell(f"{used} (elsewhere {formatting.join_words(other_backends)})" if other_backends else used)


def show_pairs(row: dict[str, Any], queries: int) -> list[ReportCell]:
    """Share of pairs attended, and computed pairs per attended pair; dashes if unknown."""
    pairs, computed = row["pairs"], row["pairs_computed"]
    keys = row["kv_len"] if units.is_present(row["kv_len"]) else row["seq_len"]
    if not units.is_present(pairs) or not pairs > 0:
        return [ReportCell(units.EMPTY)] * 2
    share = pairs / count_possible_pairs(queries, int(keys), bool(row["causal"]))
    share_cell = ReportCell(ALL_PAIRS_TEXT if share == 1 else units.percent(share), share)
    if not units.is_present(computed):
        return [share_cell, ReportCell(units.EMPTY)]
    return [
        share_cell,
        ReportCell(COMPUTED_ONCE_TEXT if computed == pairs else units.number(computed / pairs), computed / pairs),
    ]


def show_time(row: dict[str, Any]) -> ReportCell:
    """The cell of a time with its interval."""
    value, low, high = row["latency_ms"], row["latency_ms_low"], row["latency_ms_high"]
    return ReportCell(units.duration(value, low, high), make_sort_value(value))


def show_speedup(row: dict[str, Any]) -> ReportCell:
    """The cell of a speedup with its interval, and its verdict as style."""
    value, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
    if row["is_baseline"]:
        return ReportCell("baseline", 1.0, "base")
    mark = formatting.classify_speedup(low, high) if units.is_present(value) else ""
    return ReportCell(f"{units.ratio(value, low, high)} {MARKS.get(mark, '')}".rstrip(), make_sort_value(value), mark)


def show_error(row: dict[str, Any]) -> ReportCell:
    """Relative error of the same spec against exact attention."""
    if not units.is_present(row["error"]):
        return (
            ReportCell(approximation_errors.EXACT_TEXT, 0.0)
            if approximation_errors.is_exact(row)
            else ReportCell(approximation_errors.NOT_MEASURED_TEXT)
        )
    return show_number(row["error"])


def show_growth(arrays: select.ColumnArrays, column: str) -> ReportCell:
    """The exponent, or ``UNCLEAR_TEXT`` if its interval is too wide."""
    growth = select.fit_growth(arrays, column)
    if growth is None:
        return ReportCell(units.EMPTY)
    return (
        ReportCell(units.exponent_interval(*growth), growth.value)
        if select.is_precise_growth(growth)
        else ReportCell(UNCLEAR_TEXT)
    )


def show_crossover(row: dict[str, Any], arrays: select.ColumnArrays) -> ReportCell:
    """The length from which on the variant is significantly faster at all measured lengths."""
    crossover = None if row["is_baseline"] else crossovers.find_crossover(arrays)
    return (
        ReportCell(units.EMPTY)
        if crossover is None
        else ReportCell(crossovers.format_crossover(crossover), crossover.sort_key)
    )


def show_rate(value: Any) -> ReportCell:
    """The cell of a rate."""
    return ReportCell(units.rate(value), make_sort_value(value))


def show_size(value: Any) -> ReportCell:
    """The cell of a number of bytes."""
    return ReportCell(units.size(value), make_sort_value(value))


def show_number(value: Any) -> ReportCell:
    """The cell of a number."""
    return ReportCell(units.number(value), make_sort_value(value))


def make_sort_value(value: Any) -> float | None:
    """Sort value of a cell; None for missing or infinite values."""
    return float(value) if units.is_present(value) and np.isfinite(float(value)) else None


def drop_empty_columns(table: ReportTable) -> ReportTable:
    """Drop columns without values, or with default texts only."""

    def list_default_texts(name: str) -> tuple[str, ...]:
        return units.EMPTY, "baseline", *DEFAULT_TEXTS.get(name, ())

    has_content = [
        any(row[i].text not in list_default_texts(name) for row in table.rows) for i, name in enumerate(table.head)
    ]
    indices = [i for i, is_shown in enumerate(has_content) if is_shown or not i]
    rows = [[row[i] for i in indices] for row in table.rows]
    text_columns = sum(i < table.text_columns for i in indices)
    return replace(table, head=tuple(table.head[i] for i in indices), rows=rows, text_columns=text_columns)


def join_sentences(*sentences: str) -> str:
    """Join nonempty sentences to a note."""
    return " ".join(filter(None, sentences))


def describe_error_source(row_values: Sequence[dict[str, Any]]) -> str:
    """Inputs with which a table's errors were measured, or that they were not."""
    inputs = approximation_errors.describe_error_inputs(row_values, with_method=True)
    return f"Errors were measured on {inputs}." if inputs else "Errors against exact attention were not measured."


def describe_verification_lengths(row_values: Sequence[dict[str, Any]]) -> str:
    """Variants that were verified at another length than timed."""
    lengths: dict[int, list[str]] = {}
    for row in row_values:
        if units.is_present(row["gate_len"]) and row["gate_len"] != row["seq_len"]:
            lengths.setdefault(int(row["gate_len"]), []).append(row["label"])
    text = "; ".join(f"{formatting.join_words(names)} at {length}" for length, names in sorted(lengths.items()))
    return f"Compared with their oracles at another length than the timed one: {text}." if text else ""


def list_absent_variants(rows: Frame, top: Frame) -> str:
    """Variants that were measured at other lengths only, which the table omits."""
    absent = [label for label in dict.fromkeys(rows["label"]) if label not in set(top["label"])]
    return f"Measured at other lengths only: {formatting.join_words(absent)}." if absent else ""


def format_table_length(top: Frame) -> str:
    """The length of the table's rows."""
    return f"{int(top['seq_len'].iloc[0])}"
