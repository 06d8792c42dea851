"""Figures over length: speedup, and peak memory or the size of the decoding state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ... import units
from .. import select
from ..drawing.figures import PlotContext
from ..drawing.length_plots import SPEEDUP, LengthPlot, make_length_plots
from ..drawing.panel_data import Panel
from ..drawing.style import LineStyles
from ..sections import decode_cost, speed
from .selection import PlotRows
from .table_columns import (
    PaperFigure,
    TableCell,
    TableColumn,
    describe_errors,
    list_decisions,
    list_errors,
    make_error_column,
    make_estimate_cell,
)

MAX_LINES = 8  # that a reader can distinguish
SUPERSCRIPTS = str.maketrans("0123456789.-", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u02d9\u207b")


def rank_by_speedup(plot_rows: PlotRows) -> list[str]:
    """Labels by speed at the longest length, fastest first."""
    return [decision.label for decision in plot_rows.decisions]


def _draw_over_length(kind: LengthPlot, plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> Panel:
    rows = plot_rows.rows[plot_rows.rows["label"].isin(labels) | plot_rows.rows["is_baseline"]]
    setting = select.SettingRows({name: plot_rows.config[name] for name in select.SETTING_COLUMNS}, rows)
    kind = kind._replace(max_lines=MAX_LINES + 1)  # with the baseline
    (panel,) = make_length_plots(setting, (kind,), PlotContext(line_styles))
    assert isinstance(panel, Panel)
    return replace(panel, lines=tuple(replace(line, note=_raise_exponent(line.note)) for line in panel.lines))


def _raise_exponent(note: str) -> str:
    """``N^0.97`` with a superscript."""
    return re.sub(r"N\^([\d.-]+)", lambda match: "N" + match[1].translate(SUPERSCRIPTS), note)


def make_speed_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    """Speedups over the baseline, from paired ratios."""
    decisions = list_decisions(plot_rows, labels)
    lengths = sorted({n for decision in decisions for n in decision.speedups})
    columns = (
        TableColumn(
            units.short_length(n), {d.label: make_estimate_cell(d.speedups.get(n), units.ratio) for d in decisions}, n
        )
        for n in lengths
    )
    return PaperFigure(
        _draw_over_length(SPEEDUP, plot_rows, labels, line_styles),
        tuple(columns),
        f"Speedup over {plot_rows.baseline} by length, with 95% intervals",
        describe_errors(decisions),
        list_errors(decisions),
        make_error_column(plot_rows, [d.label for d in decisions], decisions),
    )


def _choose_memory_kind(plot_rows: PlotRows) -> LengthPlot:
    """State size for decoding, peak memory otherwise."""
    return decode_cost.STATE_PLOT if plot_rows.config["mode"] == "decode" else speed.MEMORY_PLOT


def rank_by_memory(plot_rows: PlotRows) -> list[str]:
    """Labels by their longest measured length, longest first, then by memory there, least first."""
    column = _choose_memory_kind(plot_rows).column
    measured_rows = plot_rows.rows[(plot_rows.rows[column] > 0) & ~plot_rows.rows["is_baseline"].astype(bool)]
    last = measured_rows.sort_values("seq_len", kind="stable").groupby("label", sort=False).tail(1)
    return last.sort_values(["seq_len", column, "label"], ascending=[False, True, True])["label"].tolist()


def make_memory_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    """Peak memory, or the size of the decoding state, with its growth."""
    kind, arrays_by_label = _choose_memory_kind(plot_rows), select.split_variants(plot_rows.rows)
    sizes = {
        label: dict(zip(*select.sort_series(arrays_by_label[label], kind.column), strict=True))
        for label in [*sorted(plot_rows.baseline_labels), *labels]
    }
    sizes = {label: by_length for label, by_length in sizes.items() if by_length}
    columns = [
        TableColumn(
            units.short_length(n), {label: TableCell(units.size(sizes[label].get(n))) for label in sizes}, int(n)
        )
        for n in sorted({n for by_length in sizes.values() for n in by_length})
    ]
    growth = {label: select.fit_growth(arrays_by_label[label], kind.column) for label in sizes}
    exponents = {
        label: units.exponent_interval(x.value) for label, x in growth.items() if x and select.is_precise_growth(x)
    }
    if exponents:
        columns.append(TableColumn("Growth", {label: TableCell(f"N^{text}") for label, text in exponents.items()}))
    decisions = list_decisions(plot_rows, labels)
    decodes = plot_rows.config["mode"] == "decode"
    value = "Size of the decoding state" if decodes else "Peak memory of a call with its output"
    return PaperFigure(
        _draw_over_length(kind, plot_rows, labels, line_styles),
        tuple(columns),
        f"{value} by length",
        (*(["N^a is the fitted growth."] if exponents else []), *describe_errors(decisions)),
        list_errors(decisions),
        make_error_column(plot_rows, sizes, decisions),
    )
