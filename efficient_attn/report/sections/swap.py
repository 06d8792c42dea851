"""Quality and cost of trained models with each mechanism in place of their own attention.

Each row is a segment of text. Intervals are over segments, paired with the unmodified model on the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import units
from ...results.section import Section
from ...results.stats import Estimate, estimate_geometric_mean
from ...units import Unit
from .. import formatting, select
from ..drawing.figures import PlotContext
from ..gather import Frame
from ..tables import ReportCell, ReportTable, drop_empty_columns, show_label, show_value
from .model_pareto import make_layer_heatmap, make_pareto_plots
from .section_blocks import Chapter, SectionBlock, SectionData, make_blocks

INTRO = (
    "The attention of a trained model is replaced without further training. Loss is in nats per token of real text; "
    "'perplexity' is the ratio to that of the unmodified model on the same tokens. KL is the divergence of next-token "
    "probabilities from those of the unmodified model. 'Time of a pass' is the speedup over the unmodified model, with "
    "all layers included; 'attention' is its share of the time of a pass, the upper bound of any saving. Random "
    "mechanisms are means over their draws, where rows have several. Brackets: 95% intervals over segments, paired."
)
DIVERGENCE_COLUMNS = "swap.divergence", "swap.hidden_error"  # of decoders and encoders, from the unmodified model
MIN_DIVERGENCE = 1e-12  # lower bound, because rounding may give values without a logarithm


def make_chapter(section: Section, section_data: SectionData) -> Chapter:
    """The chapter on mechanisms swapped into a trained model."""
    rows = section_data.rows
    rows = rows[(rows["task"] == section.task) & (rows["status"] == "ok")]
    return Chapter(section.title, INTRO, make_blocks(rows, section_data, _fill_block))


def _fill_block(block: SectionBlock, setting: select.SettingRows, context: PlotContext) -> None:
    for (inputs, length), piece in setting.rows.groupby(["inputs", "seq_len"], sort=True):
        setting_text = formatting.format_inputs(inputs, piece["causal"].iloc[0], length)
        single = piece["layer"].notna()
        if single.any():
            _fill_layers(block, piece[single], setting_text, (inputs, length), context)
        piece = piece[~single]
        if not (lines := summarise_segments(piece)):
            continue
        block.tables.append(_make_table(lines, setting_text, piece["swap.segment"].nunique()))
        share = next((line["swap.attention_share"] for line in lines if line["is_baseline"]), None)
        if share:
            block.sentences.append(
                f"In {setting_text}, attention takes {units.percent(share)} of a forward pass of the unmodified model: "
                "no mechanism can save more than that."
            )
        block.pictures += make_pareto_plots(lines, ("swap", inputs, length), setting_text, context)


def summarise_segments(rows: Frame) -> list[dict[str, Any]]:
    """Summarize each variant over its segments; by budget, smallest divergence first."""
    baseline_rows = rows[rows["is_baseline"]].set_index("swap.segment")
    budgets, lines = select.find_budgets(rows), []
    for label, part in rows.groupby("label", sort=False):
        part = part.set_index("swap.segment").sort_index()
        line: dict[str, Any] = {"label": label, "is_baseline": bool(part["is_baseline"].any())}
        line["budget"] = budgets[str(label)]
        for column in MEAN_COLUMNS:
            values = _list_values(part, column)
            line[column] = sum(values) / len(values) if values else None
        losses = _list_values(part, "swap.loss")
        divergences = _list_values(part, DIVERGENCE_COLUMNS[0]) or _list_values(part, DIVERGENCE_COLUMNS[1])
        line["divergence"] = _estimate_mean([max(x, MIN_DIVERGENCE) for x in divergences])
        line["loss"] = _estimate_mean(losses) if losses and min(losses) > 0 else None
        common_segments = part.index.intersection(baseline_rows.index)
        paired, original = part.loc[common_segments], baseline_rows.loc[common_segments]
        differences = (paired["swap.loss"] - original["swap.loss"]).tolist() if len(losses) == len(part) else []
        line["perplexity"] = _estimate_mean([math.exp(x) for x in differences])
        line["speedup"] = _estimate_mean((original["latency_ms"] / paired["latency_ms"]).tolist())
        lines.append(line)
    return sorted(lines, key=lambda line: (line["budget"], _get_divergence(line)))


def _list_values(rows: Frame, column: str) -> list[float]:
    return rows.reindex(columns=[column])[column].dropna().astype(float).tolist()


def _estimate_mean(values: Sequence[float]) -> Estimate | None:
    return estimate_geometric_mean(values) if values else None


def _get_divergence(line: dict[str, Any]) -> float:
    return next((float(line[column]) for column in DIVERGENCE_COLUMNS if line[column] is not None), math.inf)


def _make_table(lines: Sequence[dict[str, Any]], setting_text: str, segments: int) -> ReportTable:
    head = ("Variant", "Budget", *(heading for heading, *_ in TABLE_COLUMNS))
    body = []
    for line in lines:
        budget_rank, budget = line["budget"]
        cells = [show_label(line["label"], is_baseline=line["is_baseline"]), ReportCell(budget, budget_rank)]
        body.append([*cells, *(_show_cell(line, name, form) for _, name, form in TABLE_COLUMNS)])
    over = f"mean over {formatting.format_count(segments, 'segment')}"
    return drop_empty_columns(ReportTable(f"Swapped into {setting_text}, {over}", head, body))


def _show_cell(line: Mapping[str, Any], name: str, form: Unit | Callable[..., str]) -> ReportCell:
    """The cell of a mean in a unit, or of an estimate in a format with an interval."""
    if not callable(form):
        return show_value(line[name], form)
    estimate: Estimate | None = line[name]
    if estimate is None:
        return ReportCell(units.EMPTY)
    if line["is_baseline"] and name != "loss":
        return ReportCell("baseline", 1.0, "base")
    return ReportCell(form(*estimate), estimate.value)


def _format_interval(value: float, low: float | None, high: float | None) -> str:
    return units.number(value) if low is None else f"{units.number(value)} ({units.number(low)}-{units.number(high)})"


# heading, name in a summary, and the unit of a mean or the format of an estimate
TABLE_COLUMNS: tuple[tuple[str, str, Unit | Callable[..., str]], ...] = (
    ("Loss", "loss", _format_interval),
    ("Range over draws", "swap.loss_range", "number"),
    ("Perplexity, over its own", "perplexity", units.ratio),
    ("KL a token", "swap.divergence", "number"),
    ("99% below", "swap.divergence_p99", "number"),
    ("Same first choice", "swap.agreement", "share"),
    ("Loss, first 512", "swap.loss_early", "number"),
    ("Loss, later", "swap.loss_later", "number"),
    ("Error of hidden rows", "swap.hidden_error", "number"),
    ("Cosine of embeddings", "swap.embedding_cosine", "number"),
    ("Rank correlation", "swap.similarity_rank", "number"),
    ("Time of a pass", "speedup", units.ratio),
    ("Attention", "swap.attention_share", "share"),
    ("A step", "swap.step_ms", "time"),
    ("States", "state_bytes", "bytes"),
    ("Peak memory", "peak_memory_bytes", "bytes"),
)
MEAN_COLUMNS = tuple(name for _, name, form in TABLE_COLUMNS if not callable(form))


def _fill_layers(
    block: SectionBlock, rows: Frame, setting_text: str, names: Sequence[object], context: PlotContext
) -> None:
    """Table and heatmap of divergence with a single layer swapped, one row per layer."""
    rows = rows[~rows["is_baseline"]]
    column = "swap.divergence" if "swap.divergence" in rows and rows["swap.divergence"].notna().any() else "loss"
    means = rows.groupby(["layer", "label"], sort=False)[column].mean().unstack("label").sort_index()
    body = []
    for layer, line in means.iterrows():
        body.append([ReportCell(f"layer {int(layer)}", float(layer)), *map(show_value, line.tolist())])
    measure = "KL a token" if column == "swap.divergence" else "Error of hidden rows"
    segments = formatting.format_count(rows["swap.segment"].nunique(), "segment")
    title = f"{measure} with one layer swapped, {setting_text}, mean over {segments}"
    block.tables.append(ReportTable(title, ("Layer", *means.columns), body))
    heatmap = make_layer_heatmap(means, measure, setting_text)
    block.pictures += context.name_parts(heatmap, "layers", "layers", *names)
