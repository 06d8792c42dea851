"""Which plots a setting's rows allow, as panels: time, memory and speedup by length, decoding, and what is lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import pandas as pd

from . import select, words
from .figures import Line, Panel, bounds
from .style import NULL, Look

MOST_LINES = 14  # more than these in one panel, and each family gets a panel of its own beside the baseline
ROUNDING = 1e-4  # errors below are rounding: such variants are named, not drawn


class Kind(NamedTuple):
    """A plot over lengths: what it shows of each row."""

    name: str
    column: str
    unit: str
    title: str
    ylabel: str
    said: str  # what the caption says of it, after the title


TIME = Kind("time", "latency_ms", "time", "Time", "time a call", "Median over rounds, with its 95% interval; N^a is the fitted growth")
MEMORY = Kind("memory", "peak_memory_bytes", "bytes", "Peak memory", "peak memory", "Output included, inputs not; N^a is the fitted growth")
_PAIRED = "Time of {baseline} over each variant's, paired by round, with its 95% interval; above 1x is faster"
SPEEDUP = Kind("speedup", "speedup", "ratio", "Speedup", "speedup over {baseline}", _PAIRED)
STATE = Kind("state", "state_bytes", "bytes", "State", "state", "What is kept between steps; N^a is the fitted growth")
STEP = TIME._replace(name="decode", title="Time a step", ylabel="time a step")


@dataclass(frozen=True)
class Scene:
    """What all plots of one setting share: their looks, and what their files' names end in."""

    looks: Mapping[str, Look]
    suffix: str = ""


def over_length(setting: select.Setting, kinds: tuple[Kind, ...], scene: Scene) -> Iterator[Panel]:
    """Panels of these kinds, one a mode and direction; the directions of a mode share their limits."""
    for kind in kinds:
        shown = setting.rows[setting.rows[kind.column] > 0]
        if kind.column == "speedup":
            shown = shown[~shown["is_baseline"]]
        for _, mode in shown.groupby("mode", sort=False):
            panels = [p for cell in select.cells(mode) for p in _by_family(setting, cell, kind, scene)]
            lines = [line for panel in panels for line in panel.lines]
            yield from (replace(p, bounds=bounds(lines, p.level)) for p in panels)


def _by_family(setting: select.Setting, cell: select.Cell, kind: Kind, scene: Scene) -> Iterator[Panel]:
    """The cell as one panel, or a panel a family where one would hold too many lines."""
    rows = cell.rows
    if rows["label"].nunique() <= MOST_LINES or rows["family"].nunique(dropna=False) < 2:
        yield _panel(setting, cell, kind, scene)
        return
    for family, part in rows.groupby("family", dropna=False, sort=False):
        name = "other" if pd.isna(family) else str(family)
        joined = pd.concat([rows[rows["is_baseline"]], part[~part["is_baseline"]]])
        if joined["is_baseline"].all() and len(part) < len(rows):
            continue  # the baseline's own family shows nothing that the other panels lack
        yield _panel(setting, replace(cell, rows=joined), kind, scene, family=name)


def _panel(setting: select.Setting, cell: select.Cell, kind: Kind, scene: Scene, family: str = "") -> Panel:
    where = words.cell_words(cell.mode, None if cell.mode == "decode" else cell.causal)
    title = ", ".join(filter(None, (f"{kind.title}: {where}", family)))
    lines = _lines(cell.rows, lambda rows: _length_line(rows, kind, scene))
    return Panel(
        name=_slug(kind.name, cell.mode, words.direction(cell.causal), family, scene.suffix),
        kind=kind.name,
        title=title,
        caption=f"{title}. {kind.said.format(baseline=setting.baseline)}.",
        xlabel="context length" if cell.mode == "decode" else "sequence length",
        ylabel=kind.ylabel.format(baseline=setting.baseline),
        unit=kind.unit,
        lines=lines,
        ticks={float(n): words.short_length(n) for n in select.lengths(cell.rows)},
        level=1.0 if kind is SPEEDUP else None,
        alt=f"{title}, by length, for {words.listed(line.label for line in lines)}.",
    )


def _lines(rows: pd.DataFrame, make: Callable[[pd.DataFrame], Line]) -> tuple[Line, ...]:
    return tuple(make(part) for _, part in rows.groupby("label", sort=False))


def _length_line(rows: pd.DataFrame, kind: Kind, scene: Scene) -> Line:
    label, found = rows["label"].iloc[0], select.series(rows, kind.column)
    grown = None if kind is SPEEDUP else select.growth(rows, kind.column)
    note = words.ratio(found[kind.column].iloc[-1]) if kind is SPEEDUP else f"N^{grown.value:.2f}" if grown else ""
    line = Line(label, scene.looks[label], _floats(found["seq_len"]), _floats(found[kind.column]), note=note)
    ends = [f"{kind.column}_low", f"{kind.column}_high"]
    if set(ends) <= set(found) and found[ends].gt(0).all(axis=None):
        return replace(line, low=_floats(found[ends[0]]), high=_floats(found[ends[1]]))
    return line


def fidelity(cell: select.Cell, scene: Scene) -> Panel | None:
    """Error against exact attention by layer, between the two predictors that know nothing; None if all are exact."""
    rows = select.latest(cell.rows)
    top = rows.groupby("label")["relative_error"].transform("max")
    exact = list(dict.fromkeys(rows.loc[top < ROUNDING, "label"]))
    drawn = rows[(top >= ROUNDING) & (rows["relative_error"] > 0)].sort_values("layer", kind="stable")
    if drawn.empty:
        return None
    places = {layer: i for i, layer in enumerate(sorted(drawn["layer"].fillna(-1).unique()))}
    drawn = drawn.assign(place=drawn["layer"].fillna(-1).map(places).astype(float))
    lines = _lines(drawn, lambda part: _layer_line(part, scene)) + _nulls(drawn)
    where = ", ".join(filter(None, (cell.inputs, words.direction(cell.causal), f"N = {cell.length}" if cell.length else "")))
    told = f" Exact up to rounding, so not drawn: {words.listed(exact)}." if exact else ""
    return Panel(
        name=_slug("error", cell.inputs, words.direction(cell.causal), cell.length, scene.suffix),
        kind="error",
        title=f"Error: {where}" if where else "Error",
        caption=f"Relative error against exact attention ({where}); dashed: two predictors that know nothing.{told}",
        xlabel="layer",
        ylabel="relative error",
        unit="error",
        lines=lines,
        ticks={float(i): "all" if layer < 0 else str(int(layer)) for layer, i in places.items()},
        log_x=False,
        alt=f"Relative error by layer for {words.listed(line.label for line in lines)}.",
    )


def _layer_line(rows: pd.DataFrame, scene: Scene) -> Line:
    label, mean = rows["label"].iloc[0], rows["relative_error"].mean()
    return Line(label, scene.looks[label], _floats(rows["place"]), _floats(rows["relative_error"]), note=words.number(mean))


def _nulls(rows: pd.DataFrame) -> tuple[Line, ...]:
    """The dashed lines: predicting zero, and the mean of v where it was measured."""
    places = sorted(rows["place"].unique())
    span = (places[0] - 0.3, places[-1] + 0.3)
    lines = [Line("null: zero", NULL, span, (1.0, 1.0), note="1")]
    mean = rows[rows["mean_value_error"] > 0].groupby("place")["mean_value_error"].median()
    if len(mean):
        note = words.number(mean.mean())
        at = _floats(mean.index) if len(mean) > 1 else (mean.index[0] - 0.3, mean.index[0] + 0.3)
        value = _floats(mean) if len(mean) > 1 else (mean.iloc[0],) * 2
        lines.append(Line("null: mean of v", NULL, at, value, note=note))
    return tuple(lines)


def _floats(values: pd.Series | pd.Index) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _slug(*parts: object) -> str:
    """A file's name, which is an id in the page as well."""
    text = "-".join(str(part) for part in parts if part is not None and str(part))
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
