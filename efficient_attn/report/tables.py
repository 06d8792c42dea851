"""Cells and tables of reports: formatted text with sort values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .. import units
from ..patterns.pair_counts import count_possible_pairs
from ..units import Unit
from . import approximation_errors, formatting, select
from .answers import crossovers
from .gather import Frame


class ReportCell(NamedTuple):
    """A table cell: text, sort value if it is a number, and a mark for its style (faster, slower, unclear, base, null).

    subtext: shown below the text. narrow_lines: shown below it on narrow screens only, which may cut off columns.
    """

    text: str
    sort: float | None = None
    mark: str = ""
    subtext: str = ""
    narrow_lines: tuple[str, ...] = ()


CostColumns: TypeAlias = Mapping[str, Callable[[dict[str, Any], select.ColumnArrays], ReportCell]]


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
COST_COLUMNS = ["label", "variant", "is_baseline", "seq_len", "kv_len", "causal", "batch", "kv_heads"]
COST_COLUMNS += ["backend_used", "choices"]
COST_COLUMNS += ["latency_ms", "latency_ms_low", "latency_ms_high", "speedup", "speedup_low", "speedup_high"]
COST_COLUMNS += ["tokens_per_s", "pairs", "pairs_computed", "gate_len", "reason", *approximation_errors.ERROR_COLUMNS]
COST_COLUMNS += ["peak_memory_bytes", "workspace_bytes", "state_bytes", "memory_budget_bytes", "longest_context"]
COST_COLUMNS += ["bytes_moved", "bandwidth_share", "read_from", "launches", "launch_bound"]
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
LAUNCHES_HEADING = "Launches"
LAUNCHES_EXPLANATION = (
    "'Launches' is the number of kernels, copies and fills that a call has the GPU run; 'launch-bound': they run for "
    "less than half of the call's time, in which the GPU otherwise waits for the host."
)
UNCLEAR_TEXT = "unclear"  # in place of an imprecise exponent
# of columns in several sections
COLUMN_EXPLANATIONS: list[tuple[Sequence[str], str]] = [
    ((ERROR_HEADING,), ERROR_EXPLANATION),
    (PAIRS_HEADINGS, PAIRS_EXPLANATION),
    ((LAUNCHES_HEADING,), LAUNCHES_EXPLANATION),
]
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


def make_cost_table(
    setting: select.SettingRows, piece: select.Slice, top: Frame, caption: str, columns: CostColumns, note: str = ""
) -> ReportTable:
    """Costs of each variant of a slice in its rows ``top``, all of one length.

    columns: heading and cell of the columns between the speedup and the pairs. note: first sentence of the note.
    """
    arrays_by_label, row_values = select.split_variants(piece.rows), list_row_values(top)
    backends_by_label: dict[str, set[str]] = {}
    for row in list_row_values(piece.rows):
        backends_by_label.setdefault(row["label"], set()).add(describe_backend(row))
    body = []
    for row in row_values:
        label, queries = row["label"], 1 if piece.mode == "decode" else int(row["seq_len"])
        cells = [show_label(label, is_baseline=row["is_baseline"]), show_speedup(row)]
        cells += [show(row, arrays_by_label[label]) for show in columns.values()]
        cells += [_show_launches(row), *_show_pairs(row, queries), _show_backend(row, backends_by_label[label])]
        body.append(cells)
    others = LAUNCHES_HEADING, *PAIRS_HEADINGS, BACKEND_HEADING
    head = ("Variant", f"Speedup over {setting.baseline}", *columns, *others)
    notes = [
        note,
        describe_error_source(row_values),
        describe_verification_lengths(row_values),
        *(f"{row['label']}: {row['reason']}." for row in row_values if units.is_present(row["reason"])),
    ]
    if absent := [label for label in arrays_by_label if label not in set(top["label"])]:
        notes.append(f"Measured at other lengths only: {formatting.join_words(absent)}.")
    note = " ".join(filter(None, notes))
    return drop_empty_columns(ReportTable(caption, head, body, note=note, wrapped=(BACKEND_HEADING,), mode=piece.mode))


def show_label(label: str, *, is_baseline: bool = False) -> ReportCell:
    """The cell of a mechanism's label."""
    return ReportCell(label, mark="base" if is_baseline else "")


def describe_backend(row: dict[str, Any]) -> str:
    """The backend of a row and the operations that C++ or Triton computed in it; a dash if unknown."""
    if not units.is_present(row["backend_used"]):
        return units.EMPTY
    choices = row["choices"].split() if units.is_present(row["choices"]) else []
    parts = [row["backend_used"]]
    for implementation, language in (("cpp", "C++"), ("triton", "Triton")):
        pairs = (choice.partition("=") for choice in choices)
        if names := [name for name, _, chosen in pairs if implementation in chosen.split(",")]:
            parts.append(f"{formatting.join_words(names)} in {language}")
    return ", ".join(parts)


def _show_backend(row: dict[str, Any], backends: set[str]) -> ReportCell:
    """The backend of a row, and those of its variant at other lengths, because exponents mix them."""
    used = describe_backend(row)
    others = sorted(backends - {used, units.EMPTY})
    return ReportCell(f"{used} (elsewhere {'; '.join(others)})" if others and used != units.EMPTY else used)


def _show_launches(row: dict[str, Any]) -> ReportCell:
    """What a call has a GPU run, and whether it waits for the host."""
    if not units.is_present(row["launches"]):
        return ReportCell(units.EMPTY)
    bound = ", launch-bound" if row["launch_bound"] is True else ""
    return ReportCell(f"{int(row['launches']):,}{bound}", row["launches"])


def _show_pairs(row: dict[str, Any], queries: int) -> tuple[ReportCell, ReportCell]:
    """Share of pairs attended, and computed pairs per attended pair; dashes if unknown."""
    pairs, computed = row["pairs"], row["pairs_computed"]
    keys = row["kv_len"] if units.is_present(row["kv_len"]) else row["seq_len"]
    if not units.is_present(pairs) or not pairs > 0:
        return ReportCell(units.EMPTY), ReportCell(units.EMPTY)
    share = pairs / count_possible_pairs(queries, int(keys), bool(row["causal"]))
    share_cell = ReportCell(ALL_PAIRS_TEXT, 1.0) if share == 1 else show_value(share, "share")
    if computed == pairs:
        return share_cell, ReportCell(COMPUTED_ONCE_TEXT, 1.0)
    return share_cell, show_value(computed / pairs if units.is_present(computed) else None)


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
    if units.is_present(row["error"]):
        return show_value(row["error"])
    if approximation_errors.is_exact(row):
        return ReportCell(approximation_errors.EXACT_TEXT, 0.0)
    return ReportCell(approximation_errors.NOT_MEASURED_TEXT)


def show_growth(arrays: select.ColumnArrays, column: str) -> ReportCell:
    """The exponent, or ``UNCLEAR_TEXT`` if its interval is too wide."""
    growth = select.fit_growth(arrays, column)
    if growth is None:
        return ReportCell(units.EMPTY)
    if not select.is_precise_growth(growth):
        return ReportCell(UNCLEAR_TEXT)
    return ReportCell(units.exponent_interval(*growth), growth.value)


def show_crossover(row: dict[str, Any], arrays: select.ColumnArrays) -> ReportCell:
    """The length from which on the variant is significantly faster at all measured lengths."""
    crossover = None if row["is_baseline"] else crossovers.find_crossover(arrays)
    if crossover is None:
        return ReportCell(units.EMPTY)
    return ReportCell(crossovers.format_crossover(crossover), crossover.sort_key)


def show_rate(value: Any) -> ReportCell:
    """The cell of a number of tokens per second."""
    return ReportCell(units.rate(value), make_sort_value(value))


def show_value(value: Any, unit: Unit = "number") -> ReportCell:
    """The cell of a number, formatted in its unit, or of a text."""
    return ReportCell(units.format_value(value, unit), None if isinstance(value, str) else make_sort_value(value))


def make_sort_value(value: Any) -> float | None:
    """Sort value of a cell; None for missing or infinite values."""
    return float(value) if units.is_present(value) and np.isfinite(float(value)) else None


def drop_empty_columns(table: ReportTable) -> ReportTable:
    """Drop columns without values, or with default texts only."""

    def is_shown(column: int, name: str) -> bool:
        default_texts = {units.EMPTY, "baseline", *DEFAULT_TEXTS.get(name, ())}
        return not column or any(row[column].text not in default_texts for row in table.rows)

    indices = [column for column, name in enumerate(table.head) if is_shown(column, name)]
    rows = [[row[i] for i in indices] for row in table.rows]
    text_columns = sum(i < table.text_columns for i in indices)
    return replace(table, head=tuple(table.head[i] for i in indices), rows=rows, text_columns=text_columns)


def describe_error_source(row_values: Sequence[dict[str, Any]]) -> str:
    """Conditions under which a table's errors were measured, or that they were not."""
    conditions = approximation_errors.describe_error_inputs(row_values, with_method=True)
    return f"Relative errors: {conditions}." if conditions else "Errors against exact attention were not measured."


def describe_verification_lengths(row_values: Sequence[dict[str, Any]]) -> str:
    """Variants that were verified at another length than timed."""
    lengths: dict[int, list[str]] = {}
    for row in row_values:
        if units.is_present(row["gate_len"]) and row["gate_len"] != row["seq_len"]:
            lengths.setdefault(int(row["gate_len"]), []).append(row["label"])
    text = "; ".join(f"{formatting.join_words(names)} at {length}" for length, names in sorted(lengths.items()))
    return f"Compared with their oracles at another length than the timed one: {text}." if text else ""


def format_table_length(top: Frame) -> str:
    """The length of the table's rows."""
    return f"{int(top['seq_len'].iloc[0])}"
