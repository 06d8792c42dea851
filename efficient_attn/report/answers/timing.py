"""What a mechanism takes at a length: as measured there, or between two measured lengths, which never look alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ... import units
from ...results.differences import MOSTLY
from ...results.stats import Estimate
from ...spec import label_of
from .. import losses
from ..gather import Frame
from .pooling import QUANTILE, Pool, Timing, error_of, pool

How = Literal["measured", "interpolated"]
# all that two timings must share before one may be called faster
PLACE = ["machine", "device", "dtype", "batch", "heads", "head_dim", "threads", "inputs", "cache", "compiled"]
PLACE += ["cuda_graph", "mode", "causal"]
COUNTED = ("peak_memory_bytes", "state_bytes")
TIMED = [f"{name}{end}" for name in ("latency_ms", "speedup") for end in ("", "_low", "_high")]
OWN = ["variant", "backend", "kv_heads", "seq_len", "run_id", "part", "case_key", "is_baseline", "rounds"]
OWN += ["contaminated", *losses.COLUMNS, *COUNTED, *TIMED]
LONE = 0.05  # the error of a time that came without an interval
WIDEST_GAP = 64  # times the shorter of two lengths: over more nothing is said
# how far a curve may bend away from the line between two points, of its own logarithm, for each unit of log(length)
# squared: 19 of 20 published times that were left out lay within (suites/trials/recommending.py counts it)
TIME_BEND, SPEEDUP_BEND = 0.25, 0.4
STEPS = 1.25  # by how much bytes between two lengths may be off, which grow in steps, unless points further out agree
AGREED = 0.01  # of the bytes: who is no farther from a line lies on it


@dataclass(frozen=True)
class Source:
    """A row that speaks for a figure."""

    run_id: str
    case_key: str
    length: int


@dataclass(frozen=True)
class Point:
    """What was measured at a length, in all rows of one mechanism there. own: the standard error of the time's
    logarithm beside others of that length, without the machine's hour, which all share."""

    length: int
    speedup: Estimate | None
    latency: Estimate | None
    memory: float | None
    state: float | None
    sources: tuple[Source, ...]
    own: float = 0.0


@dataclass(frozen=True)
class Taken:
    """What a mechanism takes at a length. speedup: over the baseline, None where that was not timed there. between: the
    measured lengths beside it, of what is interpolated. apart: half the 95% interval of the time's logarithm, beside
    others that are known from the same lengths."""

    how: How
    speedup: Estimate | None
    latency: Estimate
    memory: Estimate | None
    state: Estimate | None
    between: tuple[int, int] | None
    sources: tuple[Source, ...]
    apart: float


@dataclass(frozen=True)
class Curve:
    """One mechanism at one place, over lengths. row: one of its rows, for what it loses."""

    label: str
    kv_heads: int | None
    row: Mapping[str, Any]
    points: tuple[Point, ...]

    def take(self, length: int) -> Taken | str:
        """What it takes at a length, or why that is not known."""
        known = [point for point in self.points if point.latency is not None]
        here = next((point for point in known if point.length == length), None)
        if here is not None and here.latency is not None:
            memory, state = (None if x is None else Estimate(x) for x in (here.memory, here.state))
            apart = QUANTILE * here.own
            return Taken("measured", here.speedup, here.latency, memory, state, None, here.sources, apart)
        below = [point for point in known if point.length < length]
        above = [point for point in known if point.length > length]
        if not below or not above:
            return f"timed at {', '.join(units.short_length(point.length) for point in known)} only"
        low, high = below[-1], above[0]
        if high.length > WIDEST_GAP * low.length:
            return f"not timed between {units.short_length(low.length)} and {units.short_length(high.length)}"
        latency = interpolate((low.length, low.latency), (high.length, high.latency), length, TIME_BEND)
        assert latency is not None
        return Taken(
            "interpolated",
            interpolate((low.length, low.speedup), (high.length, high.speedup), length, SPEEDUP_BEND),
            latency,
            interpolate_bytes([(p.length, p.memory) for p in (*below[-2:], *above[:2])], length),
            interpolate_bytes([(p.length, p.state) for p in (*below[-2:], *above[:2])], length),
            (low.length, high.length),
            (*low.sources, *high.sources),
            math.hypot(QUANTILE * max(low.own, high.own), TIME_BEND * _gap(low.length, high.length, length)),
        )


_At: TypeAlias = tuple[int, Estimate | None]


def _gap(low: int, high: int, length: int) -> float:
    """How far a length is from both measured ones: the product of its distances in logarithms."""
    return math.log(length / low) * math.log(high / length)


def interpolate(left: _At, right: _At, length: int, bend: float) -> Estimate | None:
    """A value between two measured lengths, on a straight line in logarithms; None where one is not known.

    Its interval holds those of both ends, carried along the line, and what the curve may bend in between, which grows
    with the square of the gap: next to a measured length it is hardly wider than that one's own.
    """
    (a, low), (b, high) = left, right
    if low is None or high is None or min(low.value, high.value) <= 0:
        return None
    share = math.log(length / a) / math.log(b / a)
    off = bend * _gap(a, b, length)

    def carry(end: str) -> float:
        ends = (getattr(found, end) for found in (low, high))
        first, last = (math.log(e if e else found.value) for e, found in zip(ends, (low, high), strict=True))
        return (1 - share) * first + share * last

    middle = carry("value")
    return Estimate(
        math.exp(middle),
        math.exp(middle - math.hypot(middle - carry("low"), off)),
        math.exp(middle + math.hypot(carry("high") - middle, off)),
    )


def interpolate_bytes(points: Sequence[tuple[int, float | None]], length: int) -> Estimate | None:
    """Bytes between two measured lengths, which grow with the length itself: on a straight line, and within what the
    two ends have. Where the lines through the points further out agree they are taken to lie on it."""
    known = [(at, float(value)) for at, value in points if value is not None]
    below, above = [p for p in known if p[0] < length], [p for p in known if p[0] > length]
    if not below or not above:
        return None

    def line(first: tuple[int, float], last: tuple[int, float]) -> float:
        return first[1] + (last[1] - first[1]) * (length - first[0]) / (last[0] - first[0])

    ends = (below[-1], above[0])
    middle, least, most = line(*ends), *sorted(value for _, value in ends)
    outer = [line(*pair) for pair in (below[-2:], above[:2]) if len(pair) == 2]
    sure = bool(outer) and all(abs(other - middle) <= AGREED * middle for other in outer)
    off = 1.0 if sure else STEPS
    return Estimate(middle, max(least, middle / off), min(most, middle * off))


# -- from rows -----------------------------------------------------------------------------------------------------

_Row = dict[str, Any]
_Name = tuple[str, int | None]  # a label, and the key-value heads


def split_places(rows: Frame) -> list[tuple[dict[str, Any], list[Curve]]]:
    """The curves of each place, which has as ``baseline`` what speedups are over. rows: with their labels and losses
    (`select.add_labels`, `losses.add_losses`)."""
    timed = rows[(rows["status"] == "ok") & (rows["task"] == "speed") & rows["mode"].notna() & rows["seq_len"].notna()]
    timed = timed[timed["latency_ms"].notna() & (timed["fill"].isna() | (timed["fill"] == "full"))]
    places: dict[tuple[Any, ...], list[_Row]] = {}
    every: list[dict[str, Any]] = timed[[*dict.fromkeys((*PLACE, *OWN))]].to_dict("records")
    for one in every:
        row: _Row = {name: value if units.there(value) else None for name, value in one.items()}
        if (row["contaminated"] or 0) <= MOSTLY * (row["rounds"] or 1):
            places.setdefault(tuple(row[name] for name in PLACE), []).append(row)
    return [_split_place(dict(zip(PLACE, values, strict=True)), own) for values, own in places.items()]


def _split_place(place: dict[str, Any], rows: Sequence[_Row]) -> tuple[dict[str, Any], list[Curve]]:
    bases = Counter(name_mechanism(base) for base, _ in _split_cells(rows) if base)
    base = bases.most_common(1)[0][0] if bases else None
    lengths: dict[int, list[_Row]] = {}
    points: dict[_Name, list[Point]] = {}
    last: dict[_Name, _Row] = {}
    for row in rows:
        lengths.setdefault(int(row["seq_len"]), []).append(row)
    for length in sorted(lengths):
        found, own = pool(list(_list_timings(lengths[length]))), {}
        for row in lengths[length]:
            own.setdefault(name_mechanism(row), []).append(row)
        for name, several in own.items():
            points.setdefault(name, []).append(_make_point(length, several, found, name, base))
            last[name] = several[-1]
    curves = [Curve(*name, last[name], tuple(own)) for name, own in points.items()]
    return place | {"baseline": base and base[0], "baseline_kv_heads": base and base[1]}, curves


def name_mechanism(row: Mapping[str, Any]) -> _Name:
    """How to ask for the mechanism, whether or not the row's own text says how many key-value heads it has."""
    heads, label = row["kv_heads"], label_of(row["variant"], row["backend"])
    if heads is None:
        return label, None
    if label.partition(":")[0] == "gqa" and "kv_heads=" not in label:
        label = label.replace("gqa", f"gqa:kv_heads={int(heads)}", 1)
    return label, int(heads)


def _list_timings(rows: Sequence[_Row]) -> Iterator[Timing]:
    """What the rows of one length say: of those that were paired, the ratio to their cell's baseline."""
    for base, own in _split_cells(rows):
        cell = own[0]["run_id"], own[0]["part"]
        for row in own:
            ratio = None if base is None or row is base else row["speedup"]
            if ratio is not None and ratio > 0 and base is not None:
                told, ends = math.log(base["latency_ms"] / ratio), (row["speedup_low"], row["speedup_high"])
            else:
                told, ends = math.log(row["latency_ms"]), (row["latency_ms_low"], row["latency_ms_high"])
            error = 0.0 if row is base and len(own) > 1 else error_of(*ends)
            yield Timing(name_mechanism(row), cell, told, LONE if error is None else error)


def _split_cells(rows: Sequence[_Row]) -> Iterator[tuple[_Row | None, list[_Row]]]:
    """What was timed side by side, with what it was paired with: the row paired with itself, where one says so."""
    cells: dict[tuple[Any, ...], list[_Row]] = {}
    for row in rows:
        cells.setdefault((row["run_id"], row["part"], row["seq_len"]), []).append(row)
    for own in cells.values():
        itself = [row for row in own if row["speedup"] == row["speedup_low"] == row["speedup_high"] == 1]
        yield next(iter(itself or [row for row in own if row["is_baseline"]]), None), own


def _hold(time: Estimate, rows: Sequence[_Row]) -> Estimate:
    """A time with an interval that holds what each row measured, in whichever hour that was."""
    known = [float(row["latency_ms"]) for row in rows]
    ends = [*known, *(end for end in (time.low, time.high) if end is not None)]
    return Estimate(time.value, min(ends), max(ends))


def _make_point(length: int, rows: Sequence[_Row], found: Pool, name: _Name, base: _Name | None) -> Point:
    speedup = Estimate(1.0, 1.0, 1.0) if name == base else found.speedup(base, name)
    sources = tuple(Source(str(row["run_id"]), str(row["case_key"]), length) for row in rows)
    memory, state = (max((row[c] for row in rows if row[c] is not None), default=None) for c in COUNTED)
    return Point(length, speedup, _hold(found.time(name), rows), memory, state, sources, found.own(name))
