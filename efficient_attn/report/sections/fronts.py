"""What is lost in a trained model against what it costs there: fronts of time, state and memory; and layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ... import units
from ...results.stats import Estimate
from .. import words
from ..drawing import plots
from ..drawing.figures import Line, Panel
from ..drawing.maps import Grid, Map
from ..gather import Frame

EXACT = 1e-6  # nats: a divergence that is rounding
DECADES = 5  # of losses that a map's shades tell apart; what is less is white


class Cost(NamedTuple):
    """An axis of costs. gains: whether more of it is better. find: of a line of the section's table."""

    name: str
    title: str
    label: str
    said: str
    gains: bool
    find: Callable[[Mapping[str, Any]], Estimate | None]


def _of(column: str) -> Callable[[Mapping[str, Any]], Estimate | None]:
    return lambda line: Estimate(float(line[column])) if line[column] else None


COSTS = (
    Cost(
        "swap",
        "time",
        "time of the model as it is over time swapped",
        "how much faster a whole pass is",
        True,
        lambda line: line["speedup"],
    ),
    Cost("state", "state", "decode states of all layers", "the decode states of all layers", False, _of("state_bytes")),
    Cost(
        "memory",
        "memory",
        "peak memory of a pass, weights not counted",
        "the peak memory of a pass",
        False,
        _of("peak_memory_bytes"),
    ),
)


def plan_fronts(
    lines: Sequence[Mapping[str, Any]], name: str, where: str, scene: plots.Scene
) -> Iterator[plots.Planned]:
    """A plot for each cost that several lines have, of what is lost against it."""
    for cost in COSTS:
        drawn = [line for line in lines if line["apart"] is not None and cost.find(line) is not None]
        if len(drawn) > 1 and any(line["apart"].value > EXACT for line in drawn):
            own = name if cost.gains else f"{name}-{cost.name}"
            yield plots.Planned(own, "swap", where, len(drawn), partial(_draw_front, drawn, cost, own, where, scene))


def _draw_front(lines: Sequence[Mapping[str, Any]], cost: Cost, name: str, where: str, scene: plots.Scene) -> Panel:
    """A point a variant with both intervals, and through those that no other beats in both the front."""
    drawn = [(line, cost.find(line) or Estimate(math.nan)) for line in lines if line["apart"].value > EXACT]
    exact = [line for line in lines if line["apart"].value <= EXACT]
    points = tuple(_point(line, found, scene) for line, found in drawn)
    marks = sorted({found.value for _, found in drawn})
    reach = max(abs(end - found.value) for _, found in drawn for end in (found.low, found.high, found.value) if end)
    also = _tell_exact(exact, cost)
    decoder = any(line["swap.divergence"] is not None for line in lines)
    write = units.ratio if cost.gains else units.size
    return Panel(
        name=name,
        kind="swap",
        title=f"Loss against {cost.title}: {where}"[:60],
        place=scene.place,
        caption=f"What is lost against {cost.said}, over {where}; bars: 95% intervals over segments. The line joins "
        f"what nothing beats in both.{also}",
        xlabel=cost.label,
        ylabel="KL from the model as it is, nats" if decoder else "error of hidden rows",
        unit="error",
        lines=points,
        ticks={mark: write(mark) for mark in marks},
        log_x=not cost.gains,
        margin=max(0.05, reach),
        drawn="points",
        front=tuple(find_front([(found.value, line["apart"].value) for line, found in drawn], gains=cost.gains)),
        alt=f"Loss against {cost.title} over {where} for {words.join(line.label for line in points)}.",
    )


def _point(line: Mapping[str, Any], cost: Estimate, scene: plots.Scene) -> Line:
    lost: Estimate = line["apart"]
    found = Line(line["label"], scene.looks[line["label"]], [cost.value], [lost.value])
    if lost.low is not None and lost.high is not None:
        found = replace(found, low=[lost.low], high=[lost.high])
    if cost.low is not None and cost.high is not None:
        found = replace(found, left=[cost.low], right=[cost.high])
    return found


def _tell_exact(lines: Sequence[Mapping[str, Any]], cost: Cost) -> str:
    write = units.ratio if cost.gains else units.size
    said = [f"{line['label']} ({write(found.value)})" for line in lines if (found := cost.find(line)) is not None]
    return f" Exact up to rounding, so not drawn: {words.join(said)}." if said else ""


def find_front(points: Sequence[tuple[float, float]], *, gains: bool) -> list[tuple[float, float]]:
    """Of points (cost, loss) those for which no other has both less loss and a better cost, the best cost first."""
    best: list[tuple[float, float]] = []
    for cost, loss in sorted(points, key=lambda p: (-p[0] if gains else p[0], p[1])):
        if not best or loss < best[-1][1]:
            best.append((cost, loss))
    return best


# -- layers --------------------------------------------------------------------------------------------------------


def plan_layers(means: Frame, name: str, what: str, where: str, scene: plots.Scene) -> plots.Planned:
    """A map of losses where one layer alone has a mechanism. means: a row a layer, a column a variant."""
    count = means.shape[1]
    return plots.Planned(name, "layers", where, count, partial(_draw_layers, means, name, what, where, scene))


def _draw_layers(means: Frame, name: str, what: str, where: str, scene: plots.Scene) -> Map:
    worst = float(means.max().max())

    def grid(label: str) -> Grid:
        values = [float(x) if units.there(x) else None for x in means[label].tolist()]
        shares = [None if x is None else shade(x, worst) for x in values]
        return Grid(label, [[x] for x in shares], [[units.number(x)] for x in values])

    labels = [str(label) for label in means.columns]
    return Map(
        name=name,
        kind="layers",
        title=f"One layer swapped: {where}"[:60],
        caption=f"{what} where one layer alone has the mechanism, {where}. Shades are logarithms of it.",
        place=scene.place,
        alt=f"{what} by layer over {where} for {words.join(labels)}.",
        grids=tuple(map(grid, labels)),
        across=("",),
        down=tuple(str(int(layer)) for layer in means.index),
        xlabel=what,
        ylabel="layer",
    )


def shade(value: float, worst: float) -> float:
    """From 0, some powers of ten below the worst, to 1."""
    if value <= 0 or worst <= 0:
        return 0.0
    return min(max(1 + math.log10(value / worst) / DECADES, 0.0), 1.0)
