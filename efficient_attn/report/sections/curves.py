"""Plots of what is learned: over steps, against what it costs, by length, and by how far back answers lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ... import units
from ...results.section import Kind
from ...results.stats import Estimate
from .. import words
from ..drawing import plots
from ..drawing.figures import Line, Panel
from .learned import Learned, Test

AT, NEAR = "train.at_", "train.near_"  # columns that end in a number
QUARTERS = 4  # of the steps have a mark each
AIR = 0.03  # of what an axis spans, beside its ends


@dataclass(frozen=True)
class _Axes:
    """What all lines of a panel share. said: what the caption says of it, after the title."""

    kind: str
    title: str
    said: str
    xlabel: str
    ylabel: str
    ticks: dict[float, str]
    log_x: bool = False
    drawn: Kind = "line"


@dataclass(frozen=True)
class _Cost:
    """What a score is paid with. fewest: how many differing ones are a plot."""

    column: str
    kind: str
    title: str
    said: str
    xlabel: str
    write: Callable[[float], str]
    fewest: int = 1


COSTS = (
    _Cost(
        "train.step_ms",
        "worth",
        "Learned in what time",
        "the mean time of a step as it was measured while training, not in turns",
        "time of a training step",
        units.duration,
    ),
    _Cost(
        "state_bytes",
        "state",
        "Learned with what state",
        "the bytes that a decoder keeps of one sequence as long as those of training",
        "state of all layers",
        units.size,
        fewest=2,
    ),
)


def list_numbers(test: Test, prefix: str) -> list[int]:
    """The numbers in which the columns end that a test's rows have, all of them, in order."""
    names = [str(name) for one in test.tried[:1] for name in one.rows.columns if str(name).startswith(prefix)]
    ends = (name.removeprefix(prefix) for name in names if test.known(name))
    return sorted(int(end) for end in ends if end.isdecimal())


def plan_curves(test: Test, scene: plots.Scene) -> Iterator[plots.Planned]:
    """What of a test is a plot: what tells most of it before the rest."""
    over = [one for one in test.tried if _curve(one)]
    if over:
        yield from _plan(test, over, "learning", f"Learning: {test.name}", scene, 0, _draw_curves)
    for cost in COSTS:
        known = [one for one in test.tried if one.mean(cost.column)]
        if len({one.mean(cost.column) for one in known}) >= cost.fewest:
            draw = partial(_draw_cost, cost)
            yield from _plan(test, known, cost.kind, f"{cost.title}: {test.name}", scene, 1, draw)
    if list_numbers(test, AT):
        yield from _plan(test, test.tried, "lengths", f"By length: {test.name}", scene, 2, _draw_lengths)
    if len(list_numbers(test, NEAR)) > 1:
        yield from _plan(test, test.tried, "distances", f"By distance: {test.name}", scene, 2, _draw_distances)


def _plan(
    test: Test, found: Sequence[Learned], kind: str, title: str, scene: plots.Scene, late: int, draw: Any
) -> Iterator[plots.Planned]:
    """A plot, or several where one would hold too many lines."""
    groups = [found[i : i + plots.MOST_LINES] for i in range(0, len(found), plots.MOST_LINES)]
    for number, group in enumerate(groups, 1):
        some = f"{number} of {len(groups)}" if len(groups) > 1 else ""
        name = words.slug(kind, test.name, some, scene.suffix)
        said = ", ".join(filter(None, (title, some)))
        yield plots.Planned(name, kind, said, len(group), partial(draw, test, group, name, said, scene), late)


# -- over steps ----------------------------------------------------------------------------------------------------


def _curve(one: Learned) -> tuple[tuple[float, float], ...] | None:
    """Of the first seed at the best rate, where the run kept it."""
    found: Any = one.chosen["curve"].iloc[0] if "curve" in one.chosen else None
    return found if isinstance(found, tuple) else None


def _draw_curves(test: Test, found: Sequence[Learned], name: str, title: str, scene: plots.Scene) -> Panel:
    lines = []
    rates = [f"{one.chosen['train.learning_rate'].iloc[0]:g}" for one in found]
    alike = len(set(rates)) == 1
    for one, rate in zip(found, rates, strict=True):
        x, y = zip(*(_curve(one) or ()), strict=True)
        lines.append(Line(one.label, scene.looks[one.label], x, y, note="" if alike else f"rate {rate}"))
    last = max(max(line.x) for line in lines)
    seeds = sorted({int(one.chosen["seed"].iloc[0]) for one in found})
    best = f"which is {rates[0]} for all" if alike else "which stands beside its name"
    said = f"one run each, with seed {words.join(map(str, seeds))} at its best learning rate, {best}"
    uneven = len({max(line.x) for line in lines}) > 1
    said += "; a line that ends early was solved, or had fewer steps" if uneven else ""
    ticks = {last * i / QUARTERS: units.whole(round(last * i / QUARTERS)) for i in range(QUARTERS + 1)}
    ylabel = f"{test.metric} on validation"
    return _panel(test, lines, _Axes("learning", title, said, "steps of training", ylabel, ticks), name, scene)


# -- against costs -------------------------------------------------------------------------------------------------


def _draw_cost(cost: _Cost, test: Test, found: Sequence[Learned], name: str, title: str, scene: plots.Scene) -> Panel:
    lines = []
    for one in found:
        paid, score = one.mean(cost.column) or Estimate(math.nan), one.score or Estimate(math.nan)
        line = _with_ends(Line(one.label, scene.looks[one.label], [paid.value], [score.value]), score)
        if paid.low is not None and paid.high is not None and paid.low > 0:
            line = replace(line, left=[paid.low], right=[paid.high])
        lines.append(line)
    said = f"the score against {cost.said}"
    said += "; bars: 95% intervals over seeds" if any(line.low for line in lines) else ""
    ends = [end for line in lines for side in (line.x, line.left, line.right) if side for end in side]
    marks = sorted({line.x[0] for line in lines} | {min(ends), max(ends)})
    ticks = {mark: cost.write(mark) for mark in marks}
    axes = _Axes(cost.kind, title, said, cost.xlabel, test.metric, ticks, log_x=True, drawn="points")
    return _panel(test, lines, axes, name, scene)


def _with_ends(line: Line, found: Estimate) -> Line:
    if found.low is None or found.high is None:
        return line
    return replace(line, low=[*(line.low or ()), found.low], high=[*(line.high or ()), found.high])


# -- by length and distance ----------------------------------------------------------------------------------------


def _draw_lengths(test: Test, found: Sequence[Learned], name: str, title: str, scene: plots.Scene) -> Panel:
    columns = {n: f"{AT}{n}" for n in list_numbers(test, AT)} | {test.length: "train.score"}
    said = f"trained at length {test.length} and tested at each; mean over seeds"
    axes = _Axes("lengths", title, said, "length of the tests", test.metric, {}, log_x=True)
    return _draw_columns(test, found, columns, axes, name, scene)


def _draw_distances(test: Test, found: Sequence[Learned], name: str, title: str, scene: plots.Scene) -> Panel:
    columns = {n: f"{NEAR}{n}" for n in list_numbers(test, NEAR)}
    said = (
        "right answers by how far back they lie: at most so many positions, and more than half as many; mean over seeds"
    )
    axes = _Axes("distances", title, said, "positions back, at most", "right answers", {}, log_x=True)
    return _draw_columns(test, found, columns, axes, name, scene)


def _draw_columns(
    test: Test, found: Sequence[Learned], columns: dict[int, str], axes: _Axes, name: str, scene: plots.Scene
) -> Panel:
    """A line a mechanism through the means of columns, each at its number."""
    lines = []
    for one in found:
        most = None if test.bits and axes.kind != "distances" else 1.0
        means = {n: mean for n in sorted(columns) if (mean := one.mean(columns[n], most))}
        if not means:
            continue
        line = Line(one.label, scene.looks[one.label], [float(n) for n in means], [m.value for m in means.values()])
        for mean in means.values():
            line = _with_ends(line, mean)
        lines.append(line if line.low and len(line.low) == len(means) else replace(line, low=None, high=None))
    if any(line.low for line in lines):
        axes = replace(axes, said=f"{axes.said}; bands: 95% intervals over seeds")
    ticks = {float(n): units.short_length(n) for n in sorted(columns)}
    return _panel(test, lines, replace(axes, ticks=ticks), name, scene)


def _panel(test: Test, lines: Sequence[Line], axes: _Axes, name: str, scene: plots.Scene) -> Panel:
    chance = None if test.bits else next(iter(test.known("train.chance")), None)
    span = max(axes.ticks) - min(axes.ticks)
    return Panel(
        name=name,
        kind=axes.kind,
        title=axes.title[:60],
        place=scene.place,
        caption=f"{axes.title}: {axes.said}." + ("" if chance is None else " The black line is chance."),
        xlabel=axes.xlabel,
        ylabel=axes.ylabel,
        unit="number" if test.bits and axes.kind != "distances" else "share",
        lines=tuple(lines),
        ticks=axes.ticks,
        log_x=axes.log_x,
        margin=AIR * span,
        log_y=False,
        drawn=axes.drawn,
        level=chance,
        bounds=None if test.bits and axes.kind != "distances" else _limit_shares(lines, chance),
        alt=f"{axes.title}, for {words.join(line.label for line in lines)}.",
    )


def _limit_shares(lines: Sequence[Line], chance: float | None) -> tuple[float, float]:
    """From nothing to the most that is shown."""
    values = [v for line in lines for part in (line.y, line.high) if part for v in part]
    top = max([*values, chance or 0.0], default=1.0) or 1.0
    return -AIR * top, (1 + 2 * AIR) * top
