"""What a mechanism takes at a length: as measured there, or between two measured lengths, which never look alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ... import units
from ...errors import renamed
from ...results.differences import MOST_ROUNDS
from ...results.stats import Estimate
from ...spec import label_of
from .. import approximation_errors
from ..gather import Frame
from .pooled_times import Z_95, PooledTimes, Timing, estimate_log_error, pool_times

EstimateBasis = Literal["measured", "interpolated"]
# all that two timings must share before one may be called faster
CONFIG_COLUMNS = ["machine", "device", "dtype", "batch", "heads", "head_dim", "threads", "inputs", "cache", "compiled"]
CONFIG_COLUMNS += ["cuda_graph", "mode", "causal"]
BYTE_COLUMNS = ("peak_memory_bytes", "state_bytes")
TIME_COLUMNS = [f"{name}{end}" for name in ("latency_ms", "speedup") for end in ("", "_low", "_high")]
ROW_COLUMNS = ["variant", "backend", "kv_heads", "seq_len", "run_id", "part", "case_key", "is_baseline", "rounds"]
ROW_COLUMNS += ["contaminated", *approximation_errors.ERROR_COLUMNS, *BYTE_COLUMNS, *TIME_COLUMNS]
DEFAULT_ERROR = 0.05  # the error of a time that came without an interval
MAX_LENGTH_RATIO = 64  # times the shorter of two lengths: over more nothing is said
# how far a curve may bend away from the line between two points, of its own logarithm, for each unit of log(length)
# squared: 19 of 20 published times that were left out lay within (suites/trials/recommending.py counts it)
TIME_BEND, SPEEDUP_BEND = 0.25, 0.4
BYTES_SLACK = (
    1.25  # by how much bytes between two lengths may be off, which grow in steps, unless points further out agree
)
BYTES_TOLERANCE = 0.01  # of the bytes: who is no farther from a line lies on it


@dataclass(frozen=True)
class RowReference:
    """A row that speaks for a figure."""

    run_id: str
    case_key: str
    length: int


@dataclass(frozen=True)
class CostPoint:
    """What was measured at a length, in all rows of one mechanism there. own: the standard error of the time's
    logarithm beside others of that length, without the machine's hour, which all share."""

    length: int
    speedup: Estimate | None
    latency: Estimate | None
    memory: float | None
    state: float | None
    sources: tuple[RowReference, ...]
    standard_error: float = 0.0


@dataclass(frozen=True)
class CostAtLength:
    """What a mechanism takes at a length. speedup: over the baseline, None where that was not timed there. between: the
    measured lengths beside it, of what is interpolated. apart: half the 95% interval of the time's logarithm, beside
    others that are known from the same lengths."""

    basis: EstimateBasis
    speedup: Estimate | None
    latency: Estimate
    memory: Estimate | None
    state: Estimate | None
    between: tuple[int, int] | None
    sources: tuple[RowReference, ...]
    half_width: float

    how = renamed("how", "basis")
    apart = renamed("apart", "half_width")


@dataclass(frozen=True)
class CostCurve:
    """One mechanism at one place, over lengths. row: one of its rows, for what it loses."""

    label: str
    kv_heads: int | None
    row: Mapping[str, Any]
    points: tuple[CostPoint, ...]

    def estimate(self, length: int) -> CostAtLength | str:
        """What it takes at a length, or why that is not known."""
        timed_points = [point for point in self.points if point.latency is not None]
        measured_point = next((point for point in timed_points if point.length == length), None)
        if measured_point is not None and measured_point.latency is not None:
            memory, state = (None if x is None else Estimate(x) for x in (measured_point.memory, measured_point.state))
            half_width = Z_95 * measured_point.standard_error
            return CostAtLength(
                "measured",
                measured_point.speedup,
                measured_point.latency,
                memory,
                state,
                None,
                measured_point.sources,
                half_width,
            )
        below = [point for point in timed_points if point.length < length]
        above = [point for point in timed_points if point.length > length]
        if not below or not above:
            return f"timed only at {', '.join(units.short_length(point.length) for point in timed_points)}"
        low, high = below[-1], above[0]
        if high.length > MAX_LENGTH_RATIO * low.length:
            return f"not timed between {units.short_length(low.length)} and {units.short_length(high.length)}"
        latency = interpolate((low.length, low.latency), (high.length, high.latency), length, TIME_BEND)
        assert latency is not None
        return CostAtLength(
            "interpolated",
            interpolate((low.length, low.speedup), (high.length, high.speedup), length, SPEEDUP_BEND),
            latency,
            interpolate_bytes([(p.length, p.memory) for p in (*below[-2:], *above[:2])], length),
            interpolate_bytes([(p.length, p.state) for p in (*below[-2:], *above[:2])], length),
            (low.length, high.length),
            (*low.sources, *high.sources),
            math.hypot(
                Z_95 * max(low.standard_error, high.standard_error),
                TIME_BEND * _compute_gap(low.length, high.length, length),
            ),
        )


_LengthEstimate: TypeAlias = tuple[int, Estimate | None]


def _compute_gap(low: int, high: int, length: int) -> float:
    """How far a length is from both measured ones: the product of its distances in logarithms."""
    return math.log(length / low) * math.log(high / length)


def interpolate(lower: _LengthEstimate, upper: _LengthEstimate, length: int, bend: float) -> Estimate | None:
    """A value between two measured lengths, on a straight line in logarithms; None where one is not known.

    Its interval holds those of both ends, carried along the line, and what the curve may bend in between, which grows
    with the square of the gap: next to a measured length it is hardly wider than that one's own.
    """
    (a, low), (b, high) = lower, upper
    if low is None or high is None or min(low.value, high.value) <= 0:
        return None
    share = math.log(length / a) / math.log(b / a)
    slack = bend * _compute_gap(a, b, length)

    def interpolate_end(end: str) -> float:
        ends = (getattr(estimate, end) for estimate in (low, high))
        first, last = (math.log(e if e else estimate.value) for e, estimate in zip(ends, (low, high), strict=True))
        return (1 - share) * first + share * last

    middle = interpolate_end("value")
    return Estimate(
        math.exp(middle),
        math.exp(middle - math.hypot(middle - interpolate_end("low"), slack)),
        math.exp(middle + math.hypot(interpolate_end("high") - middle, slack)),
    )


def interpolate_bytes(points: Sequence[tuple[int, float | None]], length: int) -> Estimate | None:
    """Bytes between two measured lengths, which grow with the length itself: on a straight line, and within what the
    two ends have. Where the lines through the points further out agree they are taken to lie on it."""
    measured = [(point_length, float(value)) for point_length, value in points if value is not None]
    below, above = [p for p in measured if p[0] < length], [p for p in measured if p[0] > length]
    if not below or not above:
        return None

    def interpolate_line(first: tuple[int, float], last: tuple[int, float]) -> float:
        return first[1] + (last[1] - first[1]) * (length - first[0]) / (last[0] - first[0])

    ends = (below[-1], above[0])
    middle, least, most = interpolate_line(*ends), *sorted(value for _, value in ends)
    outer = [interpolate_line(*pair) for pair in (below[-2:], above[:2]) if len(pair) == 2]
    agree = bool(outer) and all(abs(other - middle) <= BYTES_TOLERANCE * middle for other in outer)
    slack = 1.0 if agree else BYTES_SLACK
    return Estimate(middle, max(least, middle / slack), min(most, middle * slack))


# -- from rows -----------------------------------------------------------------------------------------------------

_RowDict = dict[str, Any]
_MechanismKey = tuple[str, int | None]  # a label, and the key-value heads


def split_by_config(rows: Frame) -> list[tuple[dict[str, Any], list[CostCurve]]]:
    """The curves of each place, which has as ``baseline`` what speedups are over. rows: with their labels and losses
    (`select.add_labels`, `losses.add_losses`)."""
    timed = rows[(rows["status"] == "ok") & (rows["task"] == "speed") & rows["mode"].notna() & rows["seq_len"].notna()]
    timed = timed[timed["latency_ms"].notna() & (timed["fill"].isna() | (timed["fill"] == "full"))]
    rows_by_config: dict[tuple[Any, ...], list[_RowDict]] = {}
    records: list[dict[str, Any]] = timed[[*dict.fromkeys((*CONFIG_COLUMNS, *ROW_COLUMNS))]].to_dict("records")
    for record in records:
        row: _RowDict = {name: value if units.there(value) else None for name, value in record.items()}
        if (row["contaminated"] or 0) <= MOST_ROUNDS * (row["rounds"] or 1):
            rows_by_config.setdefault(tuple(row[name] for name in CONFIG_COLUMNS), []).append(row)
    return [
        _make_curves(dict(zip(CONFIG_COLUMNS, values, strict=True)), config_rows)
        for values, config_rows in rows_by_config.items()
    ]


def _make_curves(config: dict[str, Any], rows: Sequence[_RowDict]) -> tuple[dict[str, Any], list[CostCurve]]:
    baseline_counts = Counter(make_mechanism_key(baseline) for baseline, _ in _split_groups(rows) if baseline)
    baseline = baseline_counts.most_common(1)[0][0] if baseline_counts else None
    rows_by_length: dict[int, list[_RowDict]] = {}
    points: dict[_MechanismKey, list[CostPoint]] = {}
    last: dict[_MechanismKey, _RowDict] = {}
    for row in rows:
        rows_by_length.setdefault(int(row["seq_len"]), []).append(row)
    for length in sorted(rows_by_length):
        pooled, rows_by_mechanism = pool_times(list(_list_timings(rows_by_length[length]))), {}
        for row in rows_by_length[length]:
            rows_by_mechanism.setdefault(make_mechanism_key(row), []).append(row)
        for name, mechanism_rows in rows_by_mechanism.items():
            points.setdefault(name, []).append(_make_point(length, mechanism_rows, pooled, name, baseline))
            last[name] = mechanism_rows[-1]
    curves = [CostCurve(*name, last[name], tuple(rows_by_mechanism)) for name, rows_by_mechanism in points.items()]
    return config | {"baseline": baseline and baseline[0], "baseline_kv_heads": baseline and baseline[1]}, curves


def make_mechanism_key(row: Mapping[str, Any]) -> _MechanismKey:
    """How to ask for the mechanism, whether or not the row's own text says how many key-value heads it has."""
    heads, label = row["kv_heads"], label_of(row["variant"], row["backend"])
    if heads is None:
        return label, None
    if label.partition(":")[0] == "gqa" and "kv_heads=" not in label:
        label = label.replace("gqa", f"gqa:kv_heads={int(heads)}", 1)
    return label, int(heads)


def _list_timings(rows: Sequence[_RowDict]) -> Iterator[Timing]:
    """What the rows of one length say: of those that were paired, the ratio to their cell's baseline."""
    for baseline, group_rows in _split_groups(rows):
        group = group_rows[0]["run_id"], group_rows[0]["part"]
        for row in group_rows:
            ratio = None if baseline is None or row is baseline else row["speedup"]
            if ratio is not None and ratio > 0 and baseline is not None:
                log_ms, ends = math.log(baseline["latency_ms"] / ratio), (row["speedup_low"], row["speedup_high"])
            else:
                log_ms, ends = math.log(row["latency_ms"]), (row["latency_ms_low"], row["latency_ms_high"])
            error = 0.0 if row is baseline and len(group_rows) > 1 else estimate_log_error(*ends)
            yield Timing(make_mechanism_key(row), group, log_ms, DEFAULT_ERROR if error is None else error)


def _split_groups(rows: Sequence[_RowDict]) -> Iterator[tuple[_RowDict | None, list[_RowDict]]]:
    """What was timed side by side, with what it was paired with: the row paired with itself, where one says so."""
    groups: dict[tuple[Any, ...], list[_RowDict]] = {}
    for row in rows:
        groups.setdefault((row["run_id"], row["part"], row["seq_len"]), []).append(row)
    for group_rows in groups.values():
        self_paired = [row for row in group_rows if row["speedup"] == row["speedup_low"] == row["speedup_high"] == 1]
        yield next(iter(self_paired or [row for row in group_rows if row["is_baseline"]]), None), group_rows


def _widen_interval(time: Estimate, rows: Sequence[_RowDict]) -> Estimate:
    """A time with an interval that holds what each row measured, in whichever hour that was."""
    times = [float(row["latency_ms"]) for row in rows]
    ends = [*times, *(end for end in (time.low, time.high) if end is not None)]
    return Estimate(time.value, min(ends), max(ends))


def _make_point(
    length: int, rows: Sequence[_RowDict], pooled: PooledTimes, name: _MechanismKey, baseline: _MechanismKey | None
) -> CostPoint:
    speedup = Estimate(1.0, 1.0, 1.0) if name == baseline else pooled.speedup(baseline, name)
    sources = tuple(RowReference(str(row["run_id"]), str(row["case_key"]), length) for row in rows)
    memory, state = (max((row[c] for row in rows if row[c] is not None), default=None) for c in BYTE_COLUMNS)
    return CostPoint(
        length, speedup, _widen_interval(pooled.time(name), rows), memory, state, sources, pooled.standard_error(name)
    )
