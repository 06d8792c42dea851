"""The five figures of a paper, each with the table that says the same: speed, memory, fronts, crossovers and losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ... import units
from ...results.stats import Estimate
from .. import losses, select, words
from ..answers.crossovers import tell as tell_passing
from ..answers.decisions import Decision, choose_lengths
from ..answers.fronts import find_front, list_points
from ..drawing import plots
from ..drawing.figures import Panel
from ..drawing.style import Look
from ..sections import decoding, fidelity, speed, tradeoffs
from ..sections.tradeoffs import Cost
from .choosing import Place
from .passings import draw_passings

MOST_LINES, MOST_DOTS = 8, 24  # that can be told apart: along lengths, and above each other


class Cell(NamedTuple):
    """What a table says, and the interval of it."""

    said: str
    between: str = ""


@dataclass(frozen=True)
class Exhibit:
    """A figure and its table. names: each line's name, by its label. head, body: the first column are labels."""

    panel: Panel
    caption: str
    head: tuple[str, ...]
    body: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Figure:
    """count: how many mechanisms of a place it can show. rank: their labels, those that are kept first. make: of a
    place with these labels only."""

    count: Callable[[Place], int]
    rank: Callable[[Place], list[str]]
    make: Callable[[Place, Sequence[str], Mapping[str, Look]], Exhibit]
    most: int = MOST_LINES
    judged: bool = False  # shows rows of fidelity, not times


def choose_figure(name: str, against: Cost = "time") -> Figure:
    if name == "front":
        return Figure(partial(_count_front, against), _rank_board, partial(_make_front, against), MOST_DOTS)
    return FIGURES[name]


# -- what boards say ------------------------------------------------------------------------------------------------


def _count_board(place: Place) -> int:
    return len(place.board.decisions) if place.board else 0


def _rank_board(place: Place) -> list[str]:
    """The fastest at the longest length first."""
    return [decision.label for decision in place.board.decisions] if place.board else []


def _list_decisions(place: Place, labels: Sequence[str]) -> list[Decision]:
    return [decision for decision in place.board.decisions if decision.label in labels] if place.board else []


def _find_lengths(place: Place) -> tuple[int, ...]:
    return place.board.lengths if place.board else ()


def _show_loss(decision: Decision) -> Cell:
    """The error with its interval over layers, or that it is exact, or was not measured."""
    if decision.error is None:
        return Cell(losses.NOT_MEASURED)
    if decision.error < losses.ROUNDING:
        return Cell(losses.EXACT)
    return Cell(units.number(decision.error), _between(decision.error_ends))


def _tell_losses(decisions: Sequence[Decision]) -> str:
    """What each of them loses, for a figure of times alone is half an answer."""
    known = [(one.label, _show_loss(one)) for one in decisions]
    said = [f"{label} {cell.said}" for label, cell in known if cell.said != losses.NOT_MEASURED]
    rest = [label for label, cell in known if cell.said == losses.NOT_MEASURED]
    on = words.join(dict.fromkeys(one.error_on for one in decisions if one.error_on))
    text = f" Error against exact attention{f' ({on})' if on else ''}: {words.join(said)}." if said else ""
    return text + (f" Errors that nobody measured: {words.join(rest)}." if rest else "")


def _between(ends: tuple[float, float] | None) -> str:
    return f"{units.number(ends[0])}{units.TO}{units.number(ends[1])}" if ends else ""


def _show_ratio(found: Estimate | None) -> Cell:
    if found is None:
        return Cell(units.NONE)
    ends = (found.low, found.high) if found.low is not None and found.high is not None else None
    return Cell(units.ratio(found.value), _between(ends))


def _show_lengths(place: Place) -> list[str]:
    lengths = _find_lengths(place)
    return [f"{'After' if place.key['mode'] == 'decode' else 'At'} {units.short_length(n)}" for n in lengths]


# -- speed and memory -----------------------------------------------------------------------------------------------


def _draw_over_length(kind: plots.Kind, place: Place, labels: Sequence[str], looks: Mapping[str, Look]) -> Panel:
    rows = place.rows[place.rows["label"].isin(labels) | place.rows["is_baseline"]]
    setting = select.Setting({name: place.key[name] for name in select.SETTING}, rows)
    most = MOST_LINES + 1  # with the baseline
    (planned,) = plots.plan_over_length(setting, (kind._replace(most=most),), plots.Scene(looks, place=place.tell()))
    panel = planned.make()
    assert isinstance(panel, Panel)
    return panel


def _make_speed(place: Place, labels: Sequence[str], looks: Mapping[str, Look]) -> Exhibit:
    decisions = _list_decisions(place, labels)
    panel = _draw_over_length(plots.SPEEDUP, place, labels, looks)
    body = [
        (Cell(one.label), *(_show_ratio(one.speedups.get(n)) for n in _find_lengths(place)), _show_loss(one))
        for one in decisions
    ]
    head = ("Mechanism", *_show_lengths(place), "Error")
    return Exhibit(panel, panel.caption + _tell_losses(decisions), head, tuple(body))


def _choose_memory(place: Place) -> plots.Kind:
    """Of steps what is kept between them, of all other calls their peak."""
    return decoding.STATE if place.key["mode"] == "decode" else speed.MEMORY


def _rank_memory(place: Place) -> list[str]:
    """Those measured as far as most come first, the least at the end of their lengths; then the baseline's neighbours
    in their order."""
    column = _choose_memory(place).column
    known = place.rows[(place.rows[column] > 0) & ~place.rows["is_baseline"].astype(bool)]
    last = known.sort_values("seq_len", kind="stable").groupby("label", sort=False).tail(1)
    ranked = sorted(zip(*(last[n].tolist() for n in ("seq_len", column, "label")), strict=True), key=_rank_last)
    return [label for _, _, label in ranked]


def _rank_last(line: tuple[float, float, str]) -> tuple[float, float, str]:
    length, value, label = line
    return -length, value, label


def _make_memory(place: Place, labels: Sequence[str], looks: Mapping[str, Look]) -> Exhibit:
    kind = _choose_memory(place)
    panel = _draw_over_length(kind, place, labels, looks)
    groups = select.split_variants(place.rows)
    own = {str(label) for label in place.rows.loc[place.rows["is_baseline"].astype(bool), "label"]}
    found = {one.label: one for one in place.board.decisions} if place.board else {}
    used = {label: dict(zip(*select.order_series(groups[label], kind.column), strict=True)) for label in groups}
    lengths = choose_lengths({int(n) for label in labels for n in used[label]})
    body = []
    for label in [*sorted(label for label in own if used[label]), *labels]:
        at = used[label]
        loss = Cell(losses.EXACT) if label in own and label == "full" else Cell(losses.NOT_MEASURED)
        loss = _show_loss(found[label]) if label in found else loss
        body.append((Cell(label), *(Cell(units.size(at.get(float(n)))) for n in lengths), loss))
    head = ("Mechanism", *(units.short_length(n) for n in lengths), "Error")
    return Exhibit(panel, panel.caption + _tell_losses([found[n] for n in labels if n in found]), head, tuple(body))


# -- fronts, crossovers, losses -------------------------------------------------------------------------------------


def _count_front(against: Cost, place: Place) -> int:
    if place.board is None:
        return 0
    points = list_points(place.board, place.board.lengths[-1], against)
    count = sum(point.loss.value >= losses.ROUNDING for point in points)
    return count if count > 1 else 0


def _make_front(against: Cost, place: Place, labels: Sequence[str], looks: Mapping[str, Look]) -> Exhibit:
    assert place.board is not None
    board = replace(place.board, decisions=tuple(_list_decisions(place, labels)))
    length = board.lengths[-1]
    placed = find_front(list_points(board, length, against))
    panel = tradeoffs.draw_front(board, against, placed, plots.Scene(looks, place=place.tell()))
    exact = {one.point.label for one in placed if one.point.loss.value < losses.ROUNDING}
    said = {"front": "on the front", "dominated": "beaten by ", "untold": "not told from "}
    body = tuple(
        (
            Cell(one.point.label),
            _show_ratio(one.point.cost),
            Cell(losses.EXACT) if one.point.label in exact else _show_error(one.point.loss),
            Cell(said[one.standing] + (one.beaten_by[0] if one.beaten_by else "")),
        )
        for one in sorted(placed, key=lambda one: one.point.cost.value)
    )
    on = words.join(dict.fromkeys(one.error_on for one in board.decisions if one.error_on))
    head = ("Mechanism", f"{against.capitalize()} over {board.baseline}'s", "Error", "Standing")
    return Exhibit(panel, f"{panel.caption} Errors on {on}." if on else panel.caption, head, body)


def _show_error(found: Estimate) -> Cell:
    ends = (found.low, found.high) if found.low is not None and found.high is not None else None
    return Cell(units.number(found.value), _between(ends))


def _make_crossover(place: Place, labels: Sequence[str], looks: Mapping[str, Look]) -> Exhibit:
    decisions = [one for one in _list_decisions(place, labels) if one.passing is not None]
    panel = draw_passings(place, decisions, looks)
    body = []
    for one in decisions:
        assert one.passing is not None
        at, ends = one.passing.at, (one.passing.low, one.passing.high)
        inside = one.passing.kind == "from" and at is not None
        between = "" if None in ends else f"{ends[0]:.0f}{units.TO}{ends[1]:.0f}"
        passed = Cell(f"{at:.0f}", between) if inside else Cell(units.NONE)
        length, last = one.last or (0, None)
        longest = _show_ratio(last)
        longest = longest._replace(said=f"{longest.said} at {units.short_length(length)}") if last else longest
        body.append((Cell(one.label), Cell(tell_passing(one.passing)), passed, longest, _show_loss(one)))
    head = ("Mechanism", "Faster from", "Interpolated", "Speedup at the longest", "Error")
    return Exhibit(panel, panel.caption + _tell_losses(decisions), head, tuple(body))


def _count_loss(place: Place) -> int:
    return int((place.rows.groupby("label")["relative_error"].mean() >= losses.ROUNDING).sum())


def _rank_loss(place: Place) -> list[str]:
    """The least error first; what is exact up to rounding is not drawn."""
    means = place.rows.groupby("label")["relative_error"].mean().sort_values(kind="stable")
    return [str(label) for label, mean in means.items() if mean >= losses.ROUNDING]


def _make_loss(place: Place, labels: Sequence[str], looks: Mapping[str, Look]) -> Exhibit:
    means = place.rows.groupby("label")["relative_error"].transform("mean")
    rows = place.rows[place.rows["label"].isin(labels) | (means < losses.ROUNDING)]  # these are named, not drawn
    get = place.key.get
    piece = select.Slice(None, get("causal"), rows, get("inputs"), get("seq_len"))
    panel = fidelity.make_dots(piece, plots.Scene(looks, place=place.tell()))
    assert panel is not None
    errors = rows.groupby("label")["relative_error"].apply(list)
    body = []
    for label in labels:
        mean, (low, high) = sum(errors[label]) / len(errors[label]), losses.find_ends(errors[label])
        body.append((Cell(label), _show_error(Estimate(mean, low, high) if low == low else Estimate(mean))))
    nulls = [float(x) for x in rows["mean_value_error"].tolist() if units.there(x)]
    body.append((Cell("mean of v (knows nothing)"), Cell(units.number(sum(nulls) / len(nulls) if nulls else None))))
    return Exhibit(panel, panel.caption, ("Mechanism", "Error against exact attention"), tuple(body))


FIGURES: Mapping[str, Figure] = {
    "speed": Figure(_count_board, _rank_board, _make_speed),
    "memory": Figure(lambda place: len(_rank_memory(place)), _rank_memory, _make_memory),
    "crossover": Figure(_count_board, _rank_board, _make_crossover, MOST_DOTS),
    "loss": Figure(_count_loss, _rank_loss, _make_loss, MOST_DOTS, judged=True),
}
