"""Plots over lengths: which of them a setting's rows allow, and which are drawn first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

from ... import units
from ...units import Unit
from .. import select, words
from ..gather import Column, Frame
from .axes import log_limits, y_ticks
from .clipping import choose_limits, tell_clipped
from .figures import Line, Panel, Picture
from .style import Look

MOST_LINES = 14  # more than these in one panel, and each family gets a panel of its own beside the baseline


class Kind(NamedTuple):
    """A plot over lengths: what it shows of each row."""

    name: str
    column: str
    unit: Unit
    title: str
    ylabel: str
    said: str  # what the caption says of it, after the title
    level: float | None = None  # where the baseline lies, if values are relative to it
    late: int = 0  # what is less is drawn first, where not all can be
    most: int = MOST_LINES  # in one panel, if families can be told apart


GROWN = "; N^a is the fitted growth"
MEDIAN = f"Median over rounds, with its 95% interval{GROWN}"
_PAIRED = "Time of {baseline} over each variant's, paired by round, with its 95% interval; above 1x is faster"
SPEEDUP = Kind("speedup", "speedup", "ratio", "Speedup", "speedup over {baseline}", _PAIRED, level=1.0, most=6)


@dataclass(frozen=True)
class Scene:
    """What all plots of one setting share: their looks, what their files' names end in, and what they hold for."""

    looks: Mapping[str, Look]
    suffix: str = ""
    place: str = ""


@dataclass(frozen=True)
class Planned:
    """A plot that can be drawn. Its values are gathered by ``make`` only, for of many plots few are drawn.

    mode: of all that it shows, where that is one.
    """

    name: str
    kind: str
    title: str
    lines: int
    make: Callable[[], Picture]
    late: int = 0  # its kind's
    flat: bool = False  # over one length only: points above each other
    mode: str | None = None


def plan_over_length(setting: select.Setting, kinds: tuple[Kind, ...], scene: Scene) -> Iterator[Planned]:
    """Plots of these kinds, one a mode and direction; the directions of a mode share their limits."""
    for kind in kinds:
        shown = [replace(piece, rows=_keep_drawn(piece.rows, kind)) for piece in setting.slices]
        for mode in dict.fromkeys(piece.mode for piece in shown):
            alike = [piece for piece in shown if piece.mode == mode and len(piece.rows)]
            common = cache(partial(_share_limits, [piece.rows for piece in alike], kind))
            for piece in alike:
                yield from _plan_by_family(setting, piece, kind, scene, common)


def _keep_drawn(rows: Frame, kind: Kind) -> Frame:
    """The rows that have something to show; the baseline's own speedup is 1 everywhere."""
    drawn = rows[kind.column].to_numpy() > 0
    if kind.level is not None:
        drawn = drawn & ~rows["is_baseline"].to_numpy(dtype=bool)
    return rows if drawn.all() else rows[drawn]


def _share_limits(parts: Sequence[Frame], kind: Kind) -> tuple[float, float]:
    """y limits for all that these rows show, but for one line that would squeeze all others."""
    names, found = (kind.column, *_list_ends(kind)), {}
    for rows in parts:
        for label, *values in zip(rows["label"].tolist(), *(rows[name].tolist() for name in names), strict=True):
            found.setdefault(label, []).extend(value for value in values if value > 0)
    return choose_limits(found, kind.level)


def _plan_by_family(
    setting: select.Setting, piece: select.Slice, kind: Kind, scene: Scene, common: Callable[[], tuple[float, float]]
) -> Iterator[Planned]:
    """The slice as one plot; where it would hold too many lines, plots of a family each, the baseline in all."""

    def plan(chosen: Column, count: int, family: str = "") -> Planned:
        where = words.slice_words(piece.mode, None if piece.mode == "decode" else piece.causal)
        title = ", ".join(filter(None, (f"{kind.title}: {where}", family)))
        name = words.slug(kind.name, piece.mode, words.direction(piece.causal), family, scene.suffix)

        def make() -> Panel:
            lines = select.split_variants(rows[chosen]).items()
            drawn = tuple(_make_line(label, own, kind, scene) for label, own in lines)
            over = "context length" if piece.mode == "decode" else "sequence length"
            panel = _make_panel(name, title, scene.place, setting, kind, drawn, common(), over, lengths)
            return turn_flat(panel, lengths[0], common()) if flat else panel

        return Planned(name, kind.name, title, count, make, kind.late, flat=flat, mode=piece.mode)

    rows = piece.rows
    lengths = sorted(set(rows["seq_len"].tolist()))
    flat = len(lengths) == 1
    most = kind.most if rows["family"].nunique() > 1 and not flat else MOST_LINES
    if (count := len(set(rows["label"]))) <= most:
        yield plan(slice(None), count)
        return
    others = rows[~rows["is_baseline"]]
    for family, part in others.groupby("family", dropna=False, sort=False):
        name = str(family) if units.there(family) else "other"
        labels = list(dict.fromkeys(part["label"]))
        groups = [labels[i : i + MOST_LINES - 1] for i in range(0, len(labels), MOST_LINES - 1)]
        for number, group in enumerate(groups, 1):
            title = f"{name} {number} of {len(groups)}" if len(groups) > 1 else name
            yield plan(rows["is_baseline"] | rows["label"].isin(group), len(group) + 1, title)


def _make_panel(
    name: str,
    title: str,
    place: str,
    setting: select.Setting,
    kind: Kind,
    lines: tuple[Line, ...],
    bounds: tuple[float, float],
    over: str,
    lengths: Sequence[float],
) -> Panel:
    return Panel(
        name=name,
        kind=kind.name,
        title=title,
        place=place,
        caption=f"{title}. {kind.said.format(baseline=setting.baseline)}.{tell_clipped(lines, bounds, kind.unit)}",
        xlabel=over,
        ylabel=kind.ylabel.format(baseline=setting.baseline),
        unit=kind.unit,
        lines=lines,
        ticks={x: units.short_length(x) for x in lengths},
        level=kind.level,
        bounds=bounds,
        alt=f"{title}, by length, for {words.join(line.label for line in lines)}.",
    )


def turn_flat(panel: Panel, length: float, bounds: tuple[float, float]) -> Panel:
    """A panel of one length as dots with intervals, a line each: values lie along x, the least below."""
    ranked = sorted(panel.lines, key=lambda line: line.y[0])
    turned = tuple(
        replace(line, x=line.y, y=[float(i)], low=None, high=None, left=line.low, right=line.high, note=f"{x}")
        for i, (line, x) in enumerate((line, units.write(line.y[0], panel.unit)) for line in ranked)
    )
    inside = [min(max(line.x[0], bounds[0]), bounds[1]) for line in turned]
    marks = y_ticks(panel.unit, *log_limits(inside, panel.level))
    return replace(
        panel,
        title=f"{panel.title}, {units.short_length(length)}",
        xlabel=panel.ylabel,
        ylabel="",
        lines=turned,
        ticks={inside[0]: "", inside[-1]: "", **marks},
        log_y=False,
        drawn="points",
        level=None,
        level_x=panel.level,
        bounds=(-0.6, len(turned) - 0.4),
    )


def _make_line(label: str, own: select.Columns, kind: Kind, scene: Scene) -> Line:
    x, y, *interval = select.order_series(own, kind.column, *_list_ends(kind))
    grown = select.fit_growth(own, kind.column) if kind.level is None else None
    power = f"N^{units.power(grown.value)}" if grown and select.is_clear(grown) else ""
    note = units.ratio(y[-1]) if kind.level is not None else power
    line = Line(label, scene.looks[label], x, y, note=note)
    known = len(interval) == 2 and all(value > 0 for end in interval for value in end)
    return replace(line, low=interval[0], high=interval[1]) if known else line


def _list_ends(kind: Kind) -> list[str]:
    """The columns of the interval around what a plot shows; memory has none."""
    return [name for name in (f"{kind.column}_low", f"{kind.column}_high") if name in select.CURVES]


def plan_drawn(panel: Panel) -> Planned:
    """A panel whose values are at hand already."""
    return Planned(panel.name, panel.kind, panel.title, len(panel.lines), lambda: panel)


def rank(panel: Planned) -> int:
    """What is drawn first where not all can be: costs and errors, then how they compare, then memory; then all that
    shows one length, which the tables do as well."""
    return panel.late + 3 * panel.flat
