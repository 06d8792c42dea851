"""Decision tables: one per configuration, with speedup, crossover, error, memory and state of each mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ... import units
from .. import approximation_errors, formatting, tables
from ..answers import crossovers
from ..answers.decision_table import Decision, DecisionTable
from ..answers.requirements import MODES
from ..tables import ReportCell, ReportTable
from .section_blocks import Chapter, SectionBlock, SectionData, get_device

TITLE, ANCHOR = "What to use", "decide"
MAX_OPEN_TABLES, MAX_TABLES, MOST_LINES = 5, 24, 50
INTRO = (
    "A speedup is the paired ratio of the baseline's time over the mechanism's, with its 95% interval in brackets: "
    "\u25b2 the interval lies above 1, \u25bc below 1, \u2248 it contains 1. 'Faster from' is the length from which on "
    "all intervals lie above 1, among lengths at which both were measured: '<=256' from the shortest of them; 'at 8K' "
    "at the only one; '512\u20131K' slower at 512, faster from 1K on; 'by 4K' from 4K on, not significantly slower "
    "before; 'none up to 4K' slower even at 4K; 'unclear' if intervals contain 1. Lengths after 'about' are "
    "interpolated between measured lengths, in logarithms: where the speedup and the ends of its interval cross 1. "
    "The relative error is the norm of the mechanism's difference from exact attention over the norm of exact "
    "attention. Memory is the peak of a call, its output included, over the baseline's; the state is what decoding "
    "stores between steps."
)


def make_chapter(decision_tables: Sequence[DecisionTable], section_data: SectionData) -> Chapter:
    """Sort tables by mode and number of mechanisms and lengths; the first are expanded, the last may be omitted."""
    ordered = sorted(decision_tables, key=_make_sort_key)
    several = len({decision_table.baseline for decision_table in decision_tables}) > 1
    blocks: dict[str, SectionBlock] = {}
    open_kinds: set[tuple[str, bool]] = set()
    for decision_table in ordered[:MAX_TABLES]:
        config = decision_table.config
        title = formatting.format_setting(dict(config), section_data.cpus)
        block = blocks.setdefault(title, SectionBlock(title, device=get_device(config)))
        kind = config["mode"], config["causal"]
        table = _make_table(decision_table, f"against {decision_table.baseline}" if several else "")
        block.tables.append(replace(table, folded=kind in open_kinds or len(open_kinds) >= MAX_OPEN_TABLES))
        open_kinds.add(kind)
    omitted = len(ordered) - MAX_TABLES
    if omitted > 0:
        more = formatting.format_count(omitted, "more configuration")
        list(blocks.values())[-1].note = f"{more} not shown here: all rows are in rows.csv."
    return Chapter(TITLE, INTRO, list(blocks.values()), ANCHOR, "speed")


def _make_sort_key(decision_table: DecisionTable) -> tuple[int, ...]:
    mode = decision_table.config["mode"]
    mode_rank = MODES.index(mode) if mode in MODES else len(MODES)
    return mode_rank, -len(decision_table.decisions), -len(decision_table.lengths), -decision_table.lengths[-1]


def _make_table(decision_table: DecisionTable, setting_text: str) -> ReportTable:
    mode, causal = decision_table.config["mode"], decision_table.config["causal"]
    slice_text = formatting.format_slice(mode, None if mode == "decode" else causal)
    caption = f"{TITLE}: {', '.join(filter(None, (slice_text, setting_text)))}"
    speedups = [f"{'After' if mode == 'decode' else 'At'} {units.short_length(n)}" for n in decision_table.lengths]
    head = ("Mechanism", "Faster from", *speedups, "Relative error", "Memory", "State")
    body = [_make_row(decision, decision_table) for decision in decision_table.decisions[:MOST_LINES]]
    wrapped, note = ("Faster from", "Relative error"), _make_note(decision_table)
    return tables.drop_empty_columns(ReportTable(caption, head, body, note=note, wrapped=wrapped, mode=mode))


def _make_row(decision: Decision, decision_table: DecisionTable) -> list[ReportCell]:
    cells = [ReportCell(decision.label), _show_crossover(decision)]
    cells += [_show_speedup(decision, length) for length in decision_table.lengths]
    error_text = approximation_errors.NOT_MEASURED_TEXT if decision.error is None else decision.error_text
    memory, memory_length = units.ratio(decision.memory_ratio), decision.memory_length
    if memory_length not in (None, decision_table.lengths[-1]):
        memory += f" at {units.short_length(memory_length)}"
    cells.append(ReportCell(error_text, decision.error and decision.error.value))
    return [*cells, ReportCell(memory, decision.memory_ratio), _show_state(decision)]


def _show_crossover(decision: Decision) -> ReportCell:
    """The crossover. Narrow screens show the speedup at the longest length and the error below it."""
    if decision.crossover is None:
        return ReportCell(units.EMPTY)
    text, between = crossovers.format_crossover(decision.crossover), crossovers.format_interpolation(decision.crossover)
    length, speedup = decision.longest_speedup or (0, None)
    narrow_lines = (f"{units.ratio(*speedup)} at {units.short_length(length)}", decision.error_text) if speedup else ()
    return ReportCell(text, decision.crossover.sort_key, subtext=between, narrow_lines=narrow_lines)


def _show_speedup(decision: Decision, length: int) -> ReportCell:
    speedup = decision.speedups.get(length)
    if speedup is None:
        return ReportCell(units.EMPTY)
    row = {"is_baseline": False, "speedup": speedup.value, "speedup_low": speedup.low, "speedup_high": speedup.high}
    return tables.show_speedup(row)


def _show_state(decision: Decision) -> ReportCell:
    """State size if measured at this shape, and its share of the baseline's."""
    if decision.state_length is None:
        return ReportCell(units.EMPTY)
    size = units.size(decision.state_bytes) if decision.state_bytes is not None else ""
    share = f"{units.percent(decision.state_share)} of the baseline's" if decision.state_share is not None else ""
    text, *others = [*filter(None, (size, share)), f"at {units.short_length(decision.state_length)}"]
    return ReportCell(text, decision.state_bytes or decision.state_share, subtext=", ".join(others))


def _make_note(decision_table: DecisionTable) -> str:
    """Reference of the ratios, and the inputs with which errors were measured."""
    sentences = [f"Speedups and memory are over {decision_table.baseline}'s."]
    conditions = "; ".join(dict.fromkeys(d.error_on for d in decision_table.decisions if d.error_on))
    sentences.append(f"Relative errors: {conditions}." if conditions else "Relative errors were not measured.")
    omitted = len(decision_table.decisions) - MOST_LINES
    if omitted > 0:
        sentences.append(f"{omitted} more with smaller speedups are in the tables of all lengths below.")
    return " ".join(sentences)


def make_speedup_heatmap(decision_table: DecisionTable, caption: str) -> ReportTable | None:
    """All speedups of a decision table, shaded by size; None for a single length."""
    lengths = sorted({n for decision in decision_table.decisions for n in decision.speedups})
    if len(lengths) < 2:
        return None
    decisions, omitted = decision_table.decisions[:MAX_HEATMAP_ROWS], len(decision_table.decisions) - MAX_HEATMAP_ROWS
    body = [[ReportCell(d.label), *(_show_shaded(d.speedups, n) for n in lengths)] for d in decisions]
    note = SHADES_NOTE + (f" {omitted} more with smaller speedups are in rows.csv." if omitted > 0 else "")
    head = ("Mechanism", *map(units.short_length, lengths))
    return ReportTable(caption, head, body, note=note, mode=decision_table.config["mode"])


SHADES_NOTE = "Shaded: the interval lies above or below 1, in steps of 1.5, 4 and 16 times. Not shaded: it contains 1."
MAX_HEATMAP_ROWS = 100
_SHADE_STEPS = (1.5, 4.0, 16.0)


def _show_shaded(speedups: Mapping[int, Any], length: int) -> ReportCell:
    speedup = speedups.get(length)
    if speedup is None:
        return ReportCell(units.EMPTY)
    kind = formatting.classify_speedup(speedup.low, speedup.high)
    factor = max(speedup.value, 1 / speedup.value)
    mark = f"{kind}-{sum(factor >= step for step in _SHADE_STEPS)}" if kind in ("faster", "slower") else ""
    return ReportCell(units.ratio(speedup.value), speedup.value, mark)
