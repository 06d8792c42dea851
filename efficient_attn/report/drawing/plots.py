"""Which plots a setting's rows allow, as panels: time, memory and speedup by length, decoding, and what is lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from .. import select, words
from ..gather import Column, Frame
from .figures import Line, Panel, limits
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


_GROWN = "; N^a is the fitted growth"
_MEDIAN = "Median over rounds, with its 95% interval" + _GROWN
TIME = Kind("time", "latency_ms", "time", "Time", "time a call", _MEDIAN)
_PEAK = "Output included, inputs not" + _GROWN
MEMORY = Kind("memory", "peak_memory_bytes", "bytes", "Peak memory", "peak memory", _PEAK)
_PAIRED = "Time of {baseline} over each variant's, paired by round, with its 95% interval; above 1x is faster"
SPEEDUP = Kind("speedup", "speedup", "ratio", "Speedup", "speedup over {baseline}", _PAIRED)
STATE = Kind("state", "state_bytes", "bytes", "State", "state", "What is kept between steps" + _GROWN)
STEP = TIME._replace(name="decode", title="Time a step", ylabel="time a step")


@dataclass(frozen=True)
class Scene:
    """What all plots of one setting share: their looks, and what their files' names end in."""

    looks: Mapping[str, Look]
    suffix: str = ""


@dataclass(frozen=True)
class Planned:
    """A plot that can be drawn. Its values are gathered by ``make`` only, for of many plots few are drawn."""

    name: str
    kind: str
    title: str
    lines: int
    make: Callable[[], Panel]
    flat: bool = False  # over one length only: points above each other


def over_length(setting: select.Setting, kinds: tuple[Kind, ...], scene: Scene) -> Iterator[Planned]:
    """Plots of these kinds, one a mode and direction; the directions of a mode share their limits."""
    for kind in kinds:
        shown = [replace(cell, rows=_drawn(cell.rows, kind)) for cell in setting.cells]
        for mode in dict.fromkeys(cell.mode for cell in shown):
            alike = [cell for cell in shown if cell.mode == mode and len(cell.rows)]
            common = cache(partial(_shared, [cell.rows for cell in alike], kind))
            for cell in alike:
                yield from _by_family(setting, cell, kind, scene, common)


def _drawn(rows: Frame, kind: Kind) -> Frame:
    """The rows that have something to show; the baseline's own speedup is 1 everywhere."""
    drawn = rows[kind.column].to_numpy() > 0
    if kind is SPEEDUP:
        drawn = drawn & ~rows["is_baseline"].to_numpy(dtype=bool)
    return rows if drawn.all() else rows[drawn]


def _shared(parts: Sequence[Frame], kind: Kind) -> tuple[float, float]:
    """y limits for all that these rows show."""
    values = np.concatenate([rows[name].to_numpy() for rows in parts for name in (kind.column, *_ends(kind))])
    return limits(values.tolist(), 1.0 if kind is SPEEDUP else None)


def _by_family(
    setting: select.Setting, cell: select.Cell, kind: Kind, scene: Scene, common: Callable[[], tuple[float, float]]
) -> Iterator[Planned]:
    """The cell as one plot; where it would hold too many lines, plots of a family each, the baseline in all."""

    def plan(chosen: Column, count: int, family: str = "") -> Planned:
        where = words.cell_words(cell.mode, None if cell.mode == "decode" else cell.causal)
        title = ", ".join(filter(None, (f"{kind.title}: {where}", family)))
        name = _slug(kind.name, cell.mode, words.direction(cell.causal), family, scene.suffix)

        def make() -> Panel:
            lines = select.variants(rows[chosen]).items()
            drawn = tuple(_length_line(label, own, kind, scene) for label, own in lines)
            return _panel(name, title, setting, kind, drawn, common(), decoding=cell.mode == "decode")

        return Planned(name, kind.name, title, count, make, flat=len(set(rows["seq_len"])) == 1)

    rows = cell.rows
    if (count := len(set(rows["label"]))) <= MOST_LINES:
        yield plan(slice(None), count)
        return
    others = rows[~rows["is_baseline"]]
    for family, part in others.groupby("family", dropna=False, sort=False):
        name = str(family) if words.there(family) else "other"
        labels = list(dict.fromkeys(part["label"]))
        groups = [labels[i : i + MOST_LINES - 1] for i in range(0, len(labels), MOST_LINES - 1)]
        for number, group in enumerate(groups, 1):
            told = f"{name} {number} of {len(groups)}" if len(groups) > 1 else name
            yield plan(rows["is_baseline"] | rows["label"].isin(group), len(group) + 1, told)


def _panel(
    name: str,
    title: str,
    setting: select.Setting,
    kind: Kind,
    lines: tuple[Line, ...],
    bounds: tuple[float, float],
    *,
    decoding: bool,
) -> Panel:
    return Panel(
        name=name,
        kind=kind.name,
        title=title,
        caption=f"{title}. {kind.said.format(baseline=setting.baseline)}.",
        xlabel="context length" if decoding else "sequence length",
        ylabel=kind.ylabel.format(baseline=setting.baseline),
        unit=kind.unit,
        lines=lines,
        ticks={x: words.short_length(x) for x in sorted({x for line in lines for x in line.x})},
        level=1.0 if kind is SPEEDUP else None,
        bounds=bounds,
        alt=f"{title}, by length, for {words.listed(line.label for line in lines)}.",
    )


def _length_line(label: str, own: select.Columns, kind: Kind, scene: Scene) -> Line:
    x, y, *interval = select.series(own, kind.column, *_ends(kind))
    grown = None if kind is SPEEDUP else select.growth(own, kind.column)
    note = words.ratio(y[-1]) if kind is SPEEDUP else f"N^{grown.value:.2f}" if grown else ""
    line = Line(label, scene.looks[label], x, y, note=note)
    known = len(interval) == 2 and all(value > 0 for end in interval for value in end)
    return replace(line, low=interval[0], high=interval[1]) if known else line


def _ends(kind: Kind) -> list[str]:
    """The columns of the interval around what a plot shows; memory has none."""
    return [name for name in (f"{kind.column}_low", f"{kind.column}_high") if name in select.CURVES]


def rank(panel: Planned) -> int:
    """What is drawn first where not all can be: costs and errors, then how they compare, then memory; then all that
    shows one length, which the tables do as well."""
    return {SPEEDUP.name: 1, MEMORY.name: 2, STATE.name: 2}.get(panel.kind, 0) + 3 * panel.flat


def fidelity(cell: select.Cell, scene: Scene) -> Planned | None:
    """The plot of a cell's errors; None if all of them are rounding."""
    panel = _errors(cell, scene)
    return panel and Planned(panel.name, panel.kind, panel.title, len(panel.lines), lambda: panel)


def _errors(cell: select.Cell, scene: Scene) -> Panel | None:
    """Error against exact attention by layer, between the two predictors that know nothing; None if all are exact."""
    rows = cell.rows
    top = rows.groupby("label")["relative_error"].transform("max")
    exact = list(dict.fromkeys(rows.loc[top < ROUNDING, "label"]))
    drawn = rows[(top >= ROUNDING) & (rows["relative_error"] > 0)].sort_values("layer", kind="stable")
    if drawn.empty:
        return None
    places = {layer: i for i, layer in enumerate(sorted(drawn["layer"].fillna(-1).unique()))}
    drawn = drawn.assign(place=drawn["layer"].fillna(-1).map(places).astype(float))
    lines = tuple(_layer_line(part, scene) for _, part in drawn.groupby("label", sort=False)) + _nulls(drawn)
    where = words.inputs_words(cell.inputs, cell.causal, cell.length)
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


def _layer_line(rows: Frame, scene: Scene) -> Line:
    label, mean = rows["label"].iloc[0], rows["relative_error"].mean()
    x, y = _floats(rows["place"]), _floats(rows["relative_error"])
    return Line(label, scene.looks[label], x, y, note=words.number(mean))


def _nulls(rows: Frame) -> tuple[Line, ...]:
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


def _floats(values: Column) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _slug(*parts: object) -> str:
    """A file's name, which is an id in the page as well."""
    text = "-".join(str(part) for part in parts if part is not None and str(part))
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
