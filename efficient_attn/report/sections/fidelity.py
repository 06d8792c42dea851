"""What is lost against exact attention: errors beside predictors that know nothing, and layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from ... import units
from ...results.section import Section
from .. import select, words
from ..drawing import plots
from ..drawing.axes import log_limits, y_ticks
from ..drawing.figures import Line, Panel
from ..drawing.style import NULL
from ..gather import Column, Frame
from ..losses import ROUNDING, find_ends
from ..tables import Shown, Table, show_number, trim
from .blocks import Block, Chapter, Material, make_blocks

INTRO = (
    "The relative error is the norm of the difference from exact softmax attention over the norm of the exact output, "
    "on the same queries, keys and values. Two predictors that know nothing give it a scale: the mean of v, and zero, "
    "whose error is 1 by definition. The spread: the standard deviation of the heads' own errors; the gradient cosine "
    "is that between the gradients of q, k and v and exact attention's, for one drawn gradient of the output."
)


def make_chapter(section: Section, material: Material) -> Chapter:
    rows = select.keep_faithful(select.keep_task(material.rows, section.task))
    return Chapter(section.title, INTRO, make_blocks(rows, material, _fill))


def _fill(block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    for piece in select.slice_fidelity(setting.rows):
        found = [_make_table(piece), _make_weight_table(piece), _make_layer_table(piece)]
        block.tables += [table for table in found if table]
        panels = (make_dots(piece, scene), _make_panel(piece, scene))
        block.panels += [plots.plan_drawn(panel) for panel in panels if panel]


def _where(piece: select.Slice) -> str:
    return words.inputs_words(piece.inputs, piece.causal, piece.length)


# -- tables --------------------------------------------------------------------------------------------------------


ERRORS = {  # a heading, and the column of which the mean over layers stands below it
    "Relative error": "relative_error",
    "Null: mean of v": "mean_value_error",
    "Null: zero": "zero_error",
    "Spread over heads": "fidelity.spread_over_heads",
    "Cosine similarity": "cosine_similarity",
    "Gradient cosine": "fidelity.gradient_cosine",
}
WEIGHTS = {
    "Total variation": "total_variation",
    "Missed mass": "missed_mass",
    "Effective keys": "effective_keys",
    "Exact mass on 4 first keys": "fidelity.sink_mass",
    "Own mass on 4 first keys": "fidelity.own_sink_mass",
}


def _make_table(piece: select.Slice) -> Table:
    """How far each variant is from exact attention, averaged over layers, beside predictors that know nothing."""
    rows = piece.rows.assign(zero_error=1.0)
    worst = rows.groupby("label")["oracle_error"].max()
    clamped = rows.groupby("label")["clamped_rows"].sum(min_count=1)
    body = _average(rows, ERRORS)
    for line in body:
        line += [show_number(clamped[line[0].text]), show_number(worst[line[0].text])]
    note = "An approximation that does not stay well below both nulls has lost what attention adds."
    head = ("Variant", "Budget", *ERRORS, "Rows clamped", "Error against own oracle (worst)")
    return trim(Table(f"Distance from exact attention{_after_colon(piece)}{_over(rows)}", head, body, note=note))


def _make_weight_table(piece: select.Slice) -> Table | None:
    """Where the weights go that exact attention gives, and where a variant's own; None where that was not measured."""
    table = trim(Table("", ("Variant", "Budget", *WEIGHTS), _average(piece.rows, WEIGHTS), note=_tell_rows(piece)))
    caption = f"Weights{_after_colon(piece)}{_over(piece.rows)}"
    return replace(table, caption=caption) if set(table.head) & set(WEIGHTS) else None


def _average(rows: Frame, columns: Mapping[str, str]) -> list[list[Shown]]:
    """A line for each variant, its budget and its means; of a budget, the least error first."""
    known = rows.reindex(columns=["label", "relative_error", *columns.values()])  # older rows have fewer columns
    known = known.loc[:, ~known.columns.duplicated()]
    means = known.groupby("label", sort=False).mean().sort_values("relative_error", kind="stable")
    budgets = select.find_budgets(rows)
    found = []
    for label, line in zip(means.index, means[list(columns.values())].to_numpy(), strict=True):
        place, budget = budgets[label]
        found.append([Shown(label, label), Shown(budget, place), *map(show_number, line)])
    return sorted(found, key=lambda line: budgets[line[0].text])


def _over(rows: Frame) -> str:
    layers = rows["layer"].nunique()
    return f", mean over {words.count(layers, 'layer')}" if layers > 1 else ""


def _tell_rows(piece: select.Slice) -> str:
    """On which query rows weights were looked at, where these are not all."""
    known = piece.rows.reindex(columns=["label", "seq_len", "fidelity.weight_rows"]).dropna()
    some = known[known["fidelity.weight_rows"] < known["seq_len"]]
    if some.empty:
        return ""
    count, labels = int(some["fidelity.weight_rows"].min()), list(dict.fromkeys(some["label"]))
    of = "" if len(labels) == piece.rows["label"].nunique() else f" ({words.join(labels)})"
    return f"Total variation and missed mass are of {count:,} query rows in drawn blocks{of}, all else of all rows."


def _make_layer_table(piece: select.Slice) -> Table | None:
    """The relative error of each variant in each layer, the nulls below; None where there is one layer or none."""
    rows = piece.rows
    if rows["layer"].nunique() < 2:
        return None
    errors = rows.pivot(index="label", columns="layer", values="relative_error")
    errors = errors.loc[errors.mean(axis=1).sort_values(kind="stable").index]
    body = [_show_line(str(label), line) for label, line in zip(errors.index, errors.to_numpy(), strict=True)]
    null = rows.groupby("layer")["mean_value_error"].median().reindex(errors.columns)
    named = [("null: mean of v", null.tolist()), ("null: zero", [1.0] * len(null))]
    body += [_show_line(name, values, "null") for name, values in named if not pd.isna(values).all()]
    head = ("Variant", *(f"Layer {int(layer)}" for layer in errors.columns))
    return Table(f"Relative error by layer{_after_colon(piece)}", head, body)


def _show_line(label: str, values: Iterable[Any], mark: str = "") -> list[Shown]:
    return [Shown(label, label, mark), *map(show_number, values)]


def _after_colon(piece: select.Slice) -> str:
    return f": {where}" if (where := _where(piece)) else ""


# -- the plots -----------------------------------------------------------------------------------------------------


MOST_DOTS = 30  # lines of a plot whose names can still be read


def make_dots(piece: select.Slice, scene: plots.Scene) -> Panel | None:
    """Mean errors as dots with their intervals over layers, the least below, and what knows nothing as bands."""
    errors = piece.rows.groupby("label")["relative_error"].apply(list)
    means = sorted(((sum(own) / len(own), str(label), own) for label, own in errors.items()), reverse=True)
    exact = [label for mean, label, _ in means if mean < ROUNDING]
    kept = list(reversed([found for found in means if found[0] >= ROUNDING][:MOST_DOTS]))
    if not kept:
        return None
    lines = tuple(_make_dot(float(i), *found, scene) for i, found in enumerate(kept))
    values = [x for line in lines for part in (line.x, line.left or (), line.right or ()) for x in part]
    bands = _find_null_bands(piece.rows)
    where, limits = _where(piece), log_limits([*values, *(end for band in bands for end in band)])
    left = len(means) - len(exact) - len(kept)
    also = f" Exact up to rounding, so not drawn: {words.join(exact)}." if exact else ""
    also += f" Not drawn: {words.count(left, 'variant')} with smaller errors; they are in the table." if left else ""
    return Panel(
        name=words.slug("loss", piece.inputs, words.direction(piece.causal), piece.length, scene.suffix),
        kind="loss",
        title=f"Losses: {where}" if where else "Losses",
        place=scene.place,
        caption=f"Error against exact attention ({where}), mean and 95% interval over layers. Bands: what predicting "
        f"the mean of v and zero loses, over layers.{also}",
        xlabel="relative error",
        ylabel="",
        unit="error",
        lines=lines,
        ticks={limits[0]: "", limits[1]: "", **y_ticks("error", *limits)},
        log_y=False,
        drawn="points",
        bands=bands,
        bounds=(-0.6, len(lines) - 0.4),
        alt=f"Error against exact attention for {words.join(line.label for line in lines)}.",
    )


def _make_dot(place: float, mean: float, label: str, errors: Sequence[float], scene: plots.Scene) -> Line:
    low, high = find_ends(errors)
    line = Line(label, scene.looks[label], [mean], [place], note=units.number(mean))
    return replace(line, left=[low], right=[high]) if low > 0 and math.isfinite(high) else line


def _find_null_bands(rows: Frame) -> tuple[tuple[float, float], ...]:
    """The range over layers of what predicting the mean of v loses; and what zero loses, which is 1 by definition."""
    means = [float(value) for value in rows["mean_value_error"].tolist() if units.there(value) and value > 0]
    return (*([(min(means), max(means))] if means else []), (1.0, 1.0))


def _make_panel(piece: select.Slice, scene: plots.Scene) -> Panel | None:
    """Error against exact attention by layer, between the two predictors that know nothing; None if all are exact."""
    rows = piece.rows
    top = rows.groupby("label")["relative_error"].transform("max")
    exact = list(dict.fromkeys(rows.loc[top < ROUNDING, "label"]))
    drawn = rows[(top >= ROUNDING) & (rows["relative_error"] > 0)].sort_values("layer", kind="stable")
    if drawn.empty:
        return None
    places = {layer: i for i, layer in enumerate(sorted(drawn["layer"].fillna(-1).unique()))}
    drawn = drawn.assign(place=drawn["layer"].fillna(-1).map(places).astype(float))
    lines = tuple(_make_line(part, scene) for _, part in drawn.groupby("label", sort=False)) + _make_nulls(drawn)
    where = _where(piece)
    also = f" Exact up to rounding, so not drawn: {words.join(exact)}." if exact else ""
    return Panel(
        name=words.slug("error", piece.inputs, words.direction(piece.causal), piece.length, scene.suffix),
        kind="error",
        title=f"Error: {where}" if where else "Error",
        place=scene.place,
        caption=f"Relative error against exact attention ({where}); dashed: two predictors that know nothing.{also}",
        xlabel="layer",
        ylabel="relative error",
        unit="error",
        lines=lines,
        ticks={float(i): "all" if layer < 0 else str(int(layer)) for layer, i in places.items()},
        log_x=False,
        alt=f"Relative error by layer for {words.join(line.label for line in lines)}.",
    )


def _make_line(rows: Frame, scene: plots.Scene) -> Line:
    label, mean = rows["label"].iloc[0], rows["relative_error"].mean()
    x, y = _floats(rows["place"]), _floats(rows["relative_error"])
    return Line(label, scene.looks[label], x, y, note=units.number(mean))


def _make_nulls(rows: Frame) -> tuple[Line, ...]:
    """The dashed lines: predicting zero, and the mean of v where it was measured."""
    places = sorted(rows["place"].unique())
    span = (places[0] - 0.3, places[-1] + 0.3)
    lines = [Line("null: zero", NULL, span, (1.0, 1.0), note="1")]
    mean = rows[rows["mean_value_error"] > 0].groupby("place")["mean_value_error"].median()
    if len(mean):
        note = units.number(mean.mean())
        at = _floats(mean.index) if len(mean) > 1 else (mean.index[0] - 0.3, mean.index[0] + 0.3)
        value = _floats(mean) if len(mean) > 1 else (mean.iloc[0],) * 2
        lines.append(Line("null: mean of v", NULL, at, value, note=note))
    return tuple(lines)


def _floats(values: Column) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
