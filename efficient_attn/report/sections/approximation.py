"""Approximation error against exact attention, compared with trivial predictors, on average and by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from ... import units
from ...results.section import Section
from ...results.stats import Estimate
from .. import formatting, select
from ..approximation_errors import ROUNDING_ERROR, compute_error_interval
from ..drawing.figures import PlotContext
from ..drawing.panel_data import Line, Panel, make_dot_plot, make_point
from ..drawing.style import NULL_STYLE, LineStyles
from ..gather import Frame
from ..tables import ReportCell, ReportTable, drop_empty_columns, show_value
from .section_blocks import Chapter, SectionBlock, SectionData, make_blocks

INTRO = (
    "The relative error is the norm of the difference from exact softmax attention over the norm of the exact output, "
    "on the same queries, keys and values. Two trivial predictors give it a scale: the mean of v, and zero, whose "
    "error is 1 by definition. 'Spread over heads' is the standard deviation of the errors of the heads; 'gradient "
    "cosine' is the cosine similarity of the gradients of q, k and v with those of exact attention, for one random "
    "gradient of the output."
)


def make_chapter(section: Section, section_data: SectionData) -> Chapter:
    """The chapter on errors of approximation."""
    rows = select.filter_fidelity(select.filter_task(section_data.rows, section.task))
    return Chapter(section.title, INTRO, make_blocks(rows, section_data, _fill_block))


def _fill_block(block: SectionBlock, setting: select.SettingRows, context: PlotContext) -> None:
    for piece in select.slice_fidelity(setting.rows):
        slice_text = _describe_slice(piece)
        suffix = f": {slice_text}" if slice_text else ""
        tables = [make(piece.rows, suffix) for make in (_make_table, _make_weight_table, _make_layer_table)]
        block.tables += [table for table in tables if table]
        names = piece.inputs, formatting.format_direction(piece.causal), piece.length
        panel = make_dot_panel(piece, context.line_styles)
        block.pictures += context.name_parts(panel, "loss", "loss", *names)
        panel = _make_layer_panel(piece, context.line_styles)
        block.pictures += context.name_parts(panel, "error", "error", *names)


def _describe_slice(piece: select.Slice) -> str:
    return formatting.format_inputs(piece.inputs, piece.causal, piece.length)


ERROR_COLUMN_HEADINGS = {  # heading: column, of which the mean over layers is shown
    "Relative error": "relative_error",
    "Null: mean of v": "mean_value_error",
    "Null: zero": "zero_error",
    "Spread over heads": "fidelity.spread_over_heads",
    "Cosine similarity": "cosine_similarity",
    "Gradient cosine": "fidelity.gradient_cosine",
}
WEIGHT_COLUMN_HEADINGS = {
    "Total variation": "total_variation",
    "Missed mass": "missed_mass",
    "Effective keys": "effective_keys",
    "Exact mass on 4 first keys": "fidelity.sink_mass",
    "Own mass on 4 first keys": "fidelity.own_sink_mass",
}


def _make_table(rows: Frame, suffix: str) -> ReportTable:
    """Errors of each variant averaged over layers, with those of trivial predictors."""
    by_label = rows.groupby("label")
    worst, clamped = by_label["oracle_error"].max(), by_label["clamped_rows"].sum(min_count=1)
    body = _average_by_variant(rows.assign(zero_error=1.0), ERROR_COLUMN_HEADINGS)
    for line in body:
        line += [show_value(clamped[line[0].text]), show_value(worst[line[0].text])]
    note = "An approximation is useful only if its error is well below those of both trivial predictors (null)."
    head = ("Variant", "Budget", *ERROR_COLUMN_HEADINGS, "Rows clamped", "Error against its reference (worst)")
    caption = f"Distance from exact attention{suffix}{_describe_averaging(rows)}"
    return drop_empty_columns(ReportTable(caption, head, body, note=note))


def _make_weight_table(rows: Frame, suffix: str) -> ReportTable | None:
    """Comparison of attention weights with those of exact attention; None if not measured."""
    caption, head = f"Weights{suffix}{_describe_averaging(rows)}", ("Variant", "Budget", *WEIGHT_COLUMN_HEADINGS)
    body = _average_by_variant(rows, WEIGHT_COLUMN_HEADINGS)
    table = drop_empty_columns(ReportTable(caption, head, body, note=_describe_weight_rows(rows)))
    return table if set(table.head) & set(WEIGHT_COLUMN_HEADINGS) else None


def _average_by_variant(rows: Frame, columns: Mapping[str, str]) -> list[list[ReportCell]]:
    """A row per variant with its budget and means; by budget, smallest error first."""
    names = dict.fromkeys(["label", "relative_error", *columns.values()])
    selected = rows.reindex(columns=list(names))  # older runs lack some columns
    means = selected.groupby("label", sort=False).mean().sort_values("relative_error", kind="stable")
    budgets = select.find_budgets(rows)
    lines = []
    for label, line in zip(means.index, means[list(columns.values())].to_numpy(), strict=True):
        budget_rank, budget = budgets[label]
        lines.append([ReportCell(label), ReportCell(budget, budget_rank), *map(show_value, line)])
    return sorted(lines, key=lambda line: budgets[line[0].text])


def _describe_averaging(rows: Frame) -> str:
    layers = rows["layer"].nunique()
    return f", mean over {formatting.format_count(layers, 'layer')}" if layers > 1 else ""


def _describe_weight_rows(rows: Frame) -> str:
    """Number of query rows on which weights were measured, if not all."""
    known_rows = rows.reindex(columns=["label", "seq_len", "fidelity.weight_rows"]).dropna()
    partial_rows = known_rows[known_rows["fidelity.weight_rows"] < known_rows["seq_len"]]
    if partial_rows.empty:
        return ""
    count, labels = int(partial_rows["fidelity.weight_rows"].min()), list(dict.fromkeys(partial_rows["label"]))
    labels_text = "" if len(labels) == rows["label"].nunique() else f" ({formatting.join_words(labels)})"
    return (
        f"Total variation and missed mass are measured on {count:,} query rows in drawn blocks{labels_text}; all other "
        "columns on all rows."
    )


def _make_layer_table(rows: Frame, suffix: str) -> ReportTable | None:
    """Relative error by layer, followed by the trivial predictors; None for fewer than two layers."""
    if rows["layer"].nunique() < 2:
        return None
    errors = rows.pivot(index="label", columns="layer", values="relative_error")
    errors = errors.loc[errors.mean(axis=1).sort_values(kind="stable").index]
    body = [
        [ReportCell(label), *map(show_value, line)] for label, line in zip(errors.index, errors.to_numpy(), strict=True)
    ]
    null = rows.groupby("layer")["mean_value_error"].median().reindex(errors.columns)
    for name, values in (("null: mean of v", null), ("null: zero", [1.0] * len(null))):
        if not pd.isna(values).all():
            body.append([ReportCell(name, mark="null"), *map(show_value, values)])
    head = ("Variant", *(f"Layer {int(layer)}" for layer in errors.columns))
    return ReportTable(f"Relative error by layer{suffix}", head, body)


def make_dot_panel(piece: select.Slice, line_styles: LineStyles) -> Panel | None:
    """Dot plot of mean errors with intervals over layers, smallest below; trivial predictors as bands."""
    errors = piece.rows.groupby("label")["relative_error"].apply(list)
    means = sorted(((sum(by_layer) / len(by_layer), str(label), by_layer) for label, by_layer in errors.items()))
    if not means or means[-1][0] < ROUNDING_ERROR:
        return None
    lines = []
    for y, (mean, label, by_layer) in enumerate(means):
        low, high = compute_error_interval(by_layer)
        error = Estimate(mean, low, high) if low > 0 and math.isfinite(high) else Estimate(mean)
        note = "" if mean < ROUNDING_ERROR else units.number(mean)
        lines.append(make_point(label, line_styles[label], error, Estimate(float(y)), note))
    bands, slice_text = _find_null_bands(piece.rows), _describe_slice(piece)
    return make_dot_plot(
        lines,
        "error",
        title=f"Relative error: {slice_text}" if slice_text else "Relative error",
        caption=f"Error against exact attention ({slice_text}), mean and 95% interval over layers. Bands: errors of "
        "predicting the mean of v and zero, over layers.",
        xlabel="relative error",
        bands=bands,
        band_texts=("mean of v", "zero")[-len(bands) :],
        exact_below=ROUNDING_ERROR,
    )


def _find_null_bands(rows: Frame) -> tuple[tuple[float, float], ...]:
    """Error of predicting the mean of v, as range over layers, and of predicting zero, 1 by definition."""
    means = [float(value) for value in rows["mean_value_error"].tolist() if units.is_present(value) and value > 0]
    return (*([(min(means), max(means))] if means else []), (1.0, 1.0))


def _make_layer_panel(piece: select.Slice, line_styles: LineStyles) -> Panel | None:
    """Panel of relative error by layer with trivial predictors, small errors first; None if all variants are exact."""
    drawn = piece.rows[piece.rows["relative_error"] >= 0].sort_values("layer", kind="stable")
    if not (drawn["relative_error"] >= ROUNDING_ERROR).any():
        return None
    places = {layer: float(i) for i, layer in enumerate(sorted(drawn["layer"].fillna(-1).unique()))}
    drawn = drawn.assign(place=drawn["layer"].fillna(-1).map(places))
    by_label, slice_text = drawn.groupby("label", sort=False), _describe_slice(piece)
    ranked = by_label["relative_error"].mean().sort_values(kind="stable").index
    return Panel(
        title=f"Error: {slice_text}" if slice_text else "Error",
        caption=f"Relative error against exact attention ({slice_text}); dashed: two trivial predictors.",
        xlabel="layer",
        ylabel="relative error",
        unit="error",
        lines=(*(_make_line(x, by_label.get_group(x), line_styles) for x in ranked), *_make_null_lines(drawn)),
        ticks={place: "all" if layer < 0 else str(int(layer)) for layer, place in places.items()},
        log_x=False,
        exact_below=ROUNDING_ERROR,
    )


def _make_line(label: str, rows: Frame, line_styles: LineStyles) -> Line:
    errors = rows["relative_error"]
    note = "" if errors.max() < ROUNDING_ERROR else units.number(errors.mean())
    return Line(label, line_styles[label], rows["place"].tolist(), errors.tolist(), note=note)


def _make_null_lines(rows: Frame) -> list[Line]:
    """The dashed lines: predicting zero, and the mean of v where it was measured."""
    places = sorted(rows["place"].unique())
    lines = [Line("null: zero", NULL_STYLE, (places[0] - 0.3, places[-1] + 0.3), (1.0, 1.0), note="1")]
    mean = rows[rows["mean_value_error"] > 0].groupby("place")["mean_value_error"].median()
    if len(mean):
        x, y = mean.index.tolist(), mean.tolist()
        x, y = (x, y) if len(x) > 1 else ([x[0] - 0.3, x[0] + 0.3], y * 2)
        lines.append(Line("null: mean of v", NULL_STYLE, x, y, note=units.number(mean.mean())))
    return lines
