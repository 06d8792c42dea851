"""What a mechanism takes at a length: as measured there, or between two measured lengths, which never look alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ... import units
from ...results.stats import Estimate
from ...spec import label_of
from .. import losses
from ..gather import Frame

How = Literal["measured", "interpolated"]
# all that two timings must share before one may be called faster
PLACE = ["machine", "device", "dtype", "batch", "heads", "head_dim", "threads", "inputs", "cache", "compiled"]
PLACE += ["baseline", "baseline_kv_heads", "mode", "causal"]
COUNTED = ("peak_memory_bytes", "state_bytes")
TIMED = [f"{name}{end}" for name in ("latency_ms", "speedup") for end in ("", "_low", "_high")]
OWN = [
    "variant",
    "backend",
    "kv_heads",
    "seq_len",
    "run_id",
    "case_key",
    "is_baseline",
    *losses.COLUMNS,
    *COUNTED,
    *TIMED,
]
WIDEST_GAP = 16  # times the shorter of two lengths: over more nothing is said
TIMES, COUNTS = 1.03, 1.0  # by how much an interpolated one may be off however straight its curve is
UNKNOWN_BEND = 0.15  # of the way between two points, in logarithms, where no third one shows how the curve bends


@dataclass(frozen=True)
class Source:
    """A row that speaks for a figure."""

    run_id: str
    case_key: str
    length: int


@dataclass(frozen=True)
class Point:
    """What was measured at a length, in all rows of one mechanism there."""

    length: int
    speedup: Estimate | None
    latency: Estimate | None
    memory: float | None
    state: float | None
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Taken:
    """What a mechanism takes at a length. speedup: over the baseline, None where that was not timed there. between: the
    measured lengths beside it, of what is interpolated."""

    how: How
    speedup: Estimate | None
    latency: Estimate
    memory: Estimate | None
    state: Estimate | None
    between: tuple[int, int] | None
    sources: tuple[Source, ...]


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
            return Taken("measured", here.speedup, here.latency, memory, state, None, here.sources)
        below = [point for point in known if point.length < length]
        above = [point for point in known if point.length > length]
        if not below or not above:
            return f"timed at {', '.join(units.short_length(point.length) for point in known)} only"
        low, high = below[-1], above[0]
        if high.length > WIDEST_GAP * low.length:
            return f"not timed between {units.short_length(low.length)} and {units.short_length(high.length)}"
        beside = [*below[-2:], *above[:2]]
        latency = interpolate([(p.length, p.latency) for p in beside], length, TIMES)
        assert latency is not None
        paired = low.speedup is not None and high.speedup is not None
        return Taken(
            "interpolated",
            interpolate([(p.length, p.speedup) for p in beside], length, TIMES) if paired else None,
            latency,
            interpolate([(p.length, _exactly(p.memory)) for p in beside], length, COUNTS),
            interpolate([(p.length, _exactly(p.state)) for p in beside], length, COUNTS),
            (low.length, high.length),
            (*low.sources, *high.sources),
        )


def interpolate(points: Sequence[tuple[int, Estimate | None]], length: int, least: float) -> Estimate | None:
    """A value between the two points beside a length, a straight line in logarithms; None where one is not known.

    Its interval holds those of both ends, carried along the line, and where the lines through the points further out
    come to: a curve that bends one way lies between them and the chord. least: by which factor it may be off in any
    case: times differ, bytes are counted.
    """
    known = {at: found for at, found in points if found is not None and found.value > 0}
    below, above = [at for at in known if at < length], [at for at in known if at > length]
    if not below or not above:
        return None
    x, left, right = math.log(length), max(below), min(above)

    def line(a: int, b: int, ends: tuple[float, float]) -> float:
        slope = (ends[1] - ends[0]) / (math.log(b) - math.log(a))
        return ends[0] + slope * (x - math.log(a))

    def log(at: int, end: str = "value") -> float:
        found = known[at]
        value = getattr(found, end)
        return math.log(value if value is not None and value > 0 else found.value)

    middle = line(left, right, (log(left), log(right)))
    outer = [pair for pair in (sorted(below)[-2:], sorted(above)[:2]) if len(pair) == 2]
    bends = [line(a, b, (log(a), log(b))) - middle for a, b in outer]
    if not bends:
        rise = abs(log(right) - log(left))
        bends = [UNKNOWN_BEND * rise, -UNKNOWN_BEND * rise]
    noise = [line(left, right, (log(left, end), log(right, end))) - middle for end in ("low", "high")]
    low = middle + min(noise[0], 0.0) + min(*bends, -math.log(least))
    high = middle + max(noise[1], 0.0) + max(*bends, math.log(least))
    return Estimate(math.exp(middle), math.exp(low), math.exp(high))


def _exactly(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value)


# -- from rows -----------------------------------------------------------------------------------------------------


def split_places(rows: Frame) -> list[tuple[dict[str, Any], list[Curve]]]:
    """The curves of each place. rows: with their labels and losses (`select.add_labels`, `losses.add_losses`)."""
    timed = rows[(rows["status"] == "ok") & (rows["task"] == "speed") & rows["mode"].notna() & rows["seq_len"].notna()]
    timed = timed[timed["latency_ms"].notna() & (timed["fill"].isna() | (timed["fill"] == "full"))]
    places: dict[tuple[Any, ...], dict[tuple[str, Any], list[dict[str, Any]]]] = {}
    every: list[dict[str, Any]] = timed[[*dict.fromkeys((*PLACE, *OWN))]].to_dict("records")
    for one in every:
        row: dict[str, Any] = {name: value if units.there(value) else None for name, value in one.items()}
        mechanisms = places.setdefault(tuple(row[name] for name in PLACE), {})
        mechanisms.setdefault((label_of(row["variant"], row["backend"]), row["kv_heads"]), []).append(row)
    return [
        (dict(zip(PLACE, values, strict=True)), [_make_curve(*name, own) for name, own in mechanisms.items()])
        for values, mechanisms in places.items()
    ]


def _make_curve(name: str, kv_heads: Any, rows: Sequence[Mapping[str, Any]]) -> Curve:
    lengths: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        lengths.setdefault(int(row["seq_len"]), []).append(row)
    points = tuple(_make_point(length, lengths[length]) for length in sorted(lengths))
    return Curve(name, None if kv_heads is None else int(kv_heads), rows[-1], points)


def _make_point(length: int, rows: Sequence[Mapping[str, Any]]) -> Point:
    base = any(row["is_baseline"] for row in rows)
    speedup = Estimate(1.0, 1.0, 1.0) if base else _join(rows, "speedup")
    sources = tuple(Source(str(row["run_id"]), str(row["case_key"]), length) for row in rows)
    memory, state = (max((row[c] for row in rows if row[c] is not None), default=None) for c in COUNTED)
    return Point(length, speedup, _join(rows, "latency_ms"), memory, state, sources)


def _join(rows: Sequence[Mapping[str, Any]], column: str) -> Estimate | None:
    """Several rows' values as one: their geometric mean, and an interval that holds all of theirs."""
    known = [tuple(row[f"{column}{end}"] for end in ("", "_low", "_high")) for row in rows]
    known = [ends for ends in known if units.there(ends[0]) and ends[0] > 0]
    if not known:
        return None
    value = math.exp(sum(math.log(ends[0]) for ends in known) / len(known))
    lows, highs = ([e[i] for e in known if units.there(e[i])] or [value] for i in (1, 2))
    return Estimate(value, min(*lows, value), max(*highs, value))
