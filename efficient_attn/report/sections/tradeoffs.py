"""What is lost against what it costs: a front a place and cost, with what is beaten in grey."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Literal, NamedTuple

from ... import units
from .. import select, words
from ..answers.decisions import Board
from ..answers.fronts import Placed, find_front, list_points
from ..drawing import plots
from ..drawing.axes import log_limits, y_ticks
from ..drawing.figures import Line, Panel
from ..drawing.style import FAINT, Look
from ..losses import ROUNDING
from .blocks import Block, Chapter, Material

TITLE, ANCHOR = "Loss against time, memory and state", "front"
MOST_BOARDS = 4
INTRO = (
    "Each point is a mechanism: to the left it costs less, below it loses less; bars are 95% intervals, of the loss "
    "over layers. The line joins what nothing beats in both. Grey is what another surely beats: no interval leaves it"
    " open. What only seems beaten, because an interval overlaps, keeps its colour and is named as not to be told "
    "apart."
)
FLOOR = 0.5  # of the smallest loss that is no rounding: there stands what is exact


Cost = Literal["time", "memory", "state"]


class _Axis(NamedTuple):
    cost: Cost
    title: str
    late: int


AXES = (_Axis("time", "time", 0), _Axis("memory", "peak memory", 2), _Axis("state", "decode state", 2))


def make_chapter(boards: Sequence[Board], material: Material) -> Chapter:
    """Fronts of the boards with most mechanisms; nothing of those in which fewer than two lose something."""
    blocks: dict[str, Block] = {}
    ordered = sorted(boards, key=lambda board: -len(list_points(board, board.lengths[-1], "time")))
    apart = [name for name in select.SETTING if len({str(board.place[name]) for board in boards}) > 1]
    for number, board in enumerate(ordered[:MOST_BOARDS], 1):
        title = words.setting_words(dict(board.place), material.cpus)
        place = words.place_words(dict(board.place), material.cpus)
        trial = "trial, " if board.run_ids & material.trials else ""
        scene = plots.Scene(material.looks, str(number) if apart else "", f"{trial}{place}")
        planned = [plan for axis in AXES for plan in _plan(board, axis, scene)]
        if planned:
            blocks.setdefault(title, Block(title, place=scene.place)).panels += planned
    return Chapter(TITLE, INTRO, list(blocks.values()), ANCHOR, "speed")


def _plan(board: Board, axis: _Axis, scene: plots.Scene) -> Iterator[plots.Planned]:
    """A plot where at least two mechanisms lose more than rounding; states are decoding's."""
    if (axis.cost == "state") != (board.place["mode"] == "decode") and axis.cost != "time":
        return
    length = board.lengths[-1]
    placed = find_front(list_points(board, length, axis.cost))
    if sum(each.point.loss.value >= ROUNDING for each in placed) < 2:
        return
    title, name = _name(board, axis)
    make = partial(draw_front, board, axis.cost, placed, scene)
    yield plots.Planned(
        words.slug(name, scene.suffix), "front", title, len(placed), make, axis.late, mode=board.place["mode"]
    )


def _name(board: Board, axis: _Axis) -> tuple[str, str]:
    """The plot's title, and what its file's name begins with."""
    mode, causal = board.place["mode"], board.place["causal"]
    where = words.slice_words(mode, None if mode == "decode" else causal)
    title = f"Loss against {axis.title}: {where}, {units.short_length(board.lengths[-1])}"
    return title, words.slug("front", axis.cost, mode, words.direction(causal))


def draw_front(board: Board, cost: Cost, placed: Sequence[Placed], scene: plots.Scene) -> Panel:
    """A board's mechanisms as points, at its longest length; through those that nothing beats in both goes a line."""
    axis = next(axis for axis in AXES if axis.cost == cost)
    title, name = _name(board, axis)
    least = min(each.point.loss.value for each in placed if each.point.loss.value >= ROUNDING)
    floor = least * FLOOR
    lines = tuple(_make_line(each, floor, scene) for each in placed)
    nulls = [decision.null for decision in board.decisions if decision.null is not None]
    front = sorted((line.x[0], line.y[0]) for line, each in zip(lines, placed, strict=True) if each.standing == "front")
    costs = [x for line in lines for part in (line.x, line.left or (), line.right or ()) for x in part]
    return Panel(
        name=words.slug(name, scene.suffix),
        kind="front",
        title=title,
        place=scene.place,
        caption=f"{title}.{_tell(placed)}" + (" The level is what predicting the mean of v loses." if nulls else ""),
        xlabel=f"{axis.title} over {board.baseline}'s",
        ylabel="error against exact attention",
        unit="error",
        lines=lines,
        ticks=_mark(costs),
        level=median(nulls) if nulls else None,
        drawn="points",
        front=tuple(_keep_falling(front)),
        alt=f"{title}, for {words.join(line.label for line in lines)}.",
    )


def _make_line(each: Placed, floor: float, scene: plots.Scene) -> Line:
    """A point with its intervals; what is exact stands at the floor, and says so."""
    point, look = each.point, scene.looks.get(each.point.label, Look(FAINT, "o", "-", False))
    exact = point.loss.value < ROUNDING
    look = Look(FAINT, look.marker, look.line, True) if each.standing == "dominated" else look
    line = Line(point.label, look, [point.cost.value], [floor if exact else point.loss.value])
    line = replace(line, note="exact" if exact else "")
    if not exact and point.loss.low is not None and point.loss.high is not None:
        line = replace(line, low=[max(point.loss.low, floor)], high=[point.loss.high])
    if point.cost.low is not None and point.cost.high is not None:
        line = replace(line, left=[point.cost.low], right=[point.cost.high])
    return line


def _keep_falling(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Of points by their cost those that lose less than all before, so that the line is a stair down."""
    least = float("inf")
    for x, y in points:
        if y < least:
            least = y
            yield x, y


def _mark(costs: Sequence[float]) -> dict[float, str]:
    """Marks of the axis: round ones between its ends, and 1, where the baseline stands."""
    limits = log_limits(costs, 1.0)
    return dict.fromkeys(limits, "") | y_ticks("ratio", *limits) | {1.0: units.ratio(1.0)}


def _tell(placed: Sequence[Placed]) -> str:
    """Who is beaten and by whom, and what cannot be told."""
    said = ""
    beaten = [each for each in placed if each.standing == "dominated"]
    if beaten:
        said += f" Beaten in both: {words.join(f'{each.point.label} (by {each.beaten_by[0]})' for each in beaten)}."
    untold = [each for each in placed if each.standing == "untold"]
    if untold:
        pairs = (f"{each.point.label} from {each.beaten_by[0]}" for each in untold)
        said += f" Cannot be told apart: {words.join(pairs)}."
    return said
