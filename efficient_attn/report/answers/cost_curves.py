"""Cost of a mechanism at a length: measured there, or interpolated between two measured lengths."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ... import units
from ...errors import make_deprecated_alias
from ...results.differences import MAX_DISTURBED_SHARE
from ...results.stats import Estimate
from ...spec import format_label
from ..gather import Frame
from .pooled_times import Z_95, PooledTimes, Timing, estimate_log_error, pool_times

EstimateBasis = Literal["measured", "interpolated"]
# columns that two timings must share to be compared
CONFIG_COLUMNS = ["machine", "device", "dtype", "batch", "heads", "head_dim", "threads", "inputs", "cache", "compiled"]
CONFIG_COLUMNS += ["cuda_graph", "mode", "causal"]
BYTE_COLUMNS = ("peak_memory_bytes", "state_bytes")
TIME_COLUMNS = [f"{name}{end}" for name in ("latency_ms", "speedup") for end in ("", "_low", "_high")]
ROW_COLUMNS = ["variant", "backend", "kv_heads", "seq_len", "run_id", "part", "case_key", "is_baseline", "rounds"]
ROW_COLUMNS += ["contaminated", "process_peak_bytes", *BYTE_COLUMNS, *TIME_COLUMNS]
DEFAULT_ERROR = 0.05  # standard error of log time for rows without an interval
MAX_LENGTH_RATIO = 64  # no interpolation between lengths that are further apart
# deviation of a log-log curve from the line between two points, per squared unit of log(length): covers 19 of 20
# published times in leave-one-out tests (suites/trials/recommendation_accuracy.py)
TIME_BEND, SPEEDUP_BEND = 0.25, 0.4
BYTES_SLACK = 1.25  # factor by which interpolated bytes, which grow in steps, may be off, unless outer points agree
BYTES_TOLERANCE = 0.01  # relative deviation below which a point lies on a line
# the resident peak replaces the counted one if it is larger by both
RESIDENT_FACTOR, RESIDENT_SLACK = 1.2, 16 * 2**20


@dataclass(frozen=True)
class RowReference:
    """A row from which a value was computed."""

    run_id: str
    case_key: str
    length: int


@dataclass(frozen=True)
class CostPoint:
    """All measurements of one mechanism at a length. standard_error: of log time relative to other mechanisms at that
    length, without the drift of the machine, which they share. memory: peak bytes of a call; counted_memory: the
    counted peak, where the larger resident peak of the process replaces it."""

    length: int
    speedup: Estimate | None
    latency: Estimate | None
    memory: float | None
    state: float | None
    sources: tuple[RowReference, ...]
    standard_error: float = 0.0
    counted_memory: float | None = None


@dataclass(frozen=True)
class CostAtLength:
    """Cost of a mechanism at a length. speedup: over the baseline, None if that was not timed there. between: the two
    measured lengths of an interpolation. half_width: half the 95% interval of log time, relative to other mechanisms
    at the same lengths. counted_memory: the counted peak, if ``memory`` is the larger resident peak."""

    basis: EstimateBasis
    speedup: Estimate | None
    latency: Estimate
    memory: Estimate | None
    state: Estimate | None
    between: tuple[int, int] | None
    sources: tuple[RowReference, ...]
    half_width: float
    counted_memory: Estimate | None = None

    how = make_deprecated_alias("how", "basis")
    apart = make_deprecated_alias("apart", "half_width")


@dataclass(frozen=True)
class CostCurve:
    """One mechanism at one configuration, over lengths. row: one of its rows, for its spec."""

    label: str
    kv_heads: int | None
    row: Mapping[str, Any]
    points: tuple[CostPoint, ...]

    def estimate(self, length: int) -> CostAtLength | str:
        """Return the cost at a length, or the reason why it is unknown."""
        timed_points = [point for point in self.points if point.latency is not None]
        measured_point = next((point for point in timed_points if point.length == length), None)
        if measured_point is not None and measured_point.latency is not None:
            values = measured_point.memory, measured_point.state, measured_point.counted_memory
            memory, state, counted = (None if x is None else Estimate(x) for x in values)
            times, sources = (measured_point.speedup, measured_point.latency), measured_point.sources
            half_width = Z_95 * measured_point.standard_error
            return CostAtLength("measured", *times, memory, state, None, sources, half_width, counted)
        below = [point for point in timed_points if point.length < length]
        above = [point for point in timed_points if point.length > length]
        if not below or not above:
            return f"timed only at {', '.join(units.short_length(point.length) for point in timed_points)}"
        return self._interpolate(below[-2:], above[:2], length)

    def _interpolate(self, below: Sequence[CostPoint], above: Sequence[CostPoint], length: int) -> CostAtLength | str:
        """Interpolate between the last point below and the first above; one more point on each side bounds bytes."""
        low, high = below[-1], above[0]
        if high.length > MAX_LENGTH_RATIO * low.length:
            return f"not timed between {units.short_length(low.length)} and {units.short_length(high.length)}"
        latency = interpolate((low.length, low.latency), (high.length, high.latency), length, TIME_BEND)
        assert latency is not None
        return CostAtLength(
            "interpolated",
            interpolate((low.length, low.speedup), (high.length, high.speedup), length, SPEEDUP_BEND),
            latency,
            interpolate_bytes([(p.length, p.memory) for p in (*below, *above)], length),
            interpolate_bytes([(p.length, p.state) for p in (*below, *above)], length),
            (low.length, high.length),
            (*low.sources, *high.sources),
            math.hypot(
                Z_95 * max(low.standard_error, high.standard_error),
                TIME_BEND * _compute_gap(low.length, high.length, length),
            ),
            self._interpolate_counted((*below, *above), length),
        )

    @staticmethod
    def _interpolate_counted(points: Sequence[CostPoint], length: int) -> Estimate | None:
        """The interpolated counted peak; None if no resident peak replaces one."""
        if all(point.counted_memory is None for point in points):
            return None
        counted = [(p.length, p.memory if p.counted_memory is None else p.counted_memory) for p in points]
        return interpolate_bytes(counted, length)


_LengthEstimate: TypeAlias = tuple[int, Estimate | None]


def _compute_gap(low: int, high: int, length: int) -> float:
    """Product of the log distances from a length to two measured lengths."""
    return math.log(length / low) * math.log(high / length)


def interpolate(lower: _LengthEstimate, upper: _LengthEstimate, length: int, bend: float) -> Estimate | None:
    """Interpolate linearly in logarithms between two measured lengths; None if a value is missing.

    The interval combines the interpolated intervals of both ends with the possible bend of the curve (bend times the
    product of the log distances to both ends), so that next to a measured length it is hardly wider than the measured
    one.
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
    """Interpolate bytes linearly in the length between two measured lengths, bounded by the values at both ends. Where
    lines through the outer points agree, there is no further slack."""
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
    """Return the curves of each configuration, whose ``baseline`` is what speedups are relative to. rows: with labels
    (`select.add_labels`)."""
    timed = rows[(rows["status"] == "ok") & (rows["task"] == "speed") & rows["mode"].notna() & rows["seq_len"].notna()]
    timed = timed[timed["latency_ms"].notna() & (timed["fill"].isna() | (timed["fill"] == "full"))]
    rows_by_config: dict[tuple[Any, ...], list[_RowDict]] = defaultdict(list)
    records: list[dict[str, Any]] = timed[[*dict.fromkeys((*CONFIG_COLUMNS, *ROW_COLUMNS))]].to_dict("records")
    for record in records:
        row: _RowDict = {name: value if units.is_present(value) else None for name, value in record.items()}
        if (row["contaminated"] or 0) <= MAX_DISTURBED_SHARE * (row["rounds"] or 1):
            rows_by_config[tuple(row[name] for name in CONFIG_COLUMNS)].append(row)
    return [
        _make_curves(dict(zip(CONFIG_COLUMNS, values, strict=True)), config_rows)
        for values, config_rows in rows_by_config.items()
    ]


def _make_curves(config: dict[str, Any], rows: Sequence[_RowDict]) -> tuple[dict[str, Any], list[CostCurve]]:
    baseline_counts = Counter(make_mechanism_key(baseline) for baseline, _ in _split_groups(rows) if baseline)
    baseline = baseline_counts.most_common(1)[0][0] if baseline_counts else None
    rows_by_length: dict[int, list[_RowDict]] = defaultdict(list)
    points: dict[_MechanismKey, list[CostPoint]] = defaultdict(list)
    last: dict[_MechanismKey, _RowDict] = {}
    resident: dict[_MechanismKey, dict[int, float]] = defaultdict(dict)
    for row in rows:
        length, peak = int(row["seq_len"]), row["process_peak_bytes"]
        rows_by_length[length].append(row)
        if peak is not None:
            peaks = resident[make_mechanism_key(row)]
            peaks[length] = max(peak, peaks.get(length, 0.0))
    for length, length_rows in sorted(rows_by_length.items()):
        pooled = pool_times(list(_list_timings(length_rows)))
        rows_by_mechanism: dict[_MechanismKey, list[_RowDict]] = defaultdict(list)
        for row in length_rows:
            rows_by_mechanism[make_mechanism_key(row)].append(row)
        for name, mechanism_rows in rows_by_mechanism.items():
            points[name].append(_make_point(length, mechanism_rows, pooled, name, baseline))
            last[name] = mechanism_rows[-1]
    curves = [CostCurve(*name, last[name], _use_resident(x, resident[name])) for name, x in points.items()]
    return config | {"baseline": baseline and baseline[0], "baseline_kv_heads": baseline and baseline[1]}, curves


def _use_resident(points: Sequence[CostPoint], resident: Mapping[int, float]) -> tuple[CostPoint, ...]:
    """The points with the resident peak as memory, where it is much larger than the counted peak.

    It is measured at one length. At shorter ones it is scaled by the length, an upper bound of what grows faster.
    """
    corrected = []
    for point in points:
        longer = min((length for length in resident if length >= point.length), default=None)
        if longer is not None and point.memory is not None:
            peak = resident[longer] * point.length / longer
            if peak > max(RESIDENT_FACTOR * point.memory, point.memory + RESIDENT_SLACK):
                point = replace(point, memory=peak, counted_memory=point.memory)
        corrected.append(point)
    return tuple(corrected)


def make_mechanism_key(row: Mapping[str, Any]) -> _MechanismKey:
    """The spec and key-value heads of a mechanism, whether or not the row's spec contains ``kv_heads``."""
    heads, label = row["kv_heads"], format_label(row["variant"], row["backend"])
    if heads is None:
        return label, None
    if label.partition(":")[0] == "gqa" and "kv_heads=" not in label:
        label = label.replace("gqa", f"gqa:kv_heads={int(heads)}", 1)
    return label, int(heads)


def _list_timings(rows: Sequence[_RowDict]) -> Iterator[Timing]:
    """Yield the timings of the rows of one length; paired rows by their ratio to the baseline of their group."""
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
    """Yield groups of rows timed together, each with its baseline: the row paired with itself, if there is one."""
    groups: dict[tuple[Any, ...], list[_RowDict]] = defaultdict(list)
    for row in rows:
        groups[row["run_id"], row["part"], row["seq_len"]].append(row)
    for group_rows in groups.values():
        self_paired = [row for row in group_rows if row["speedup"] == row["speedup_low"] == row["speedup_high"] == 1]
        yield next(iter(self_paired or [row for row in group_rows if row["is_baseline"]]), None), group_rows


def _make_point(
    length: int, rows: Sequence[_RowDict], pooled: PooledTimes, name: _MechanismKey, baseline: _MechanismKey | None
) -> CostPoint:
    speedup = Estimate(1.0, 1.0, 1.0) if name == baseline else pooled.speedup(baseline, name)
    time = pooled.time(name)
    ends = [*(float(row["latency_ms"]) for row in rows), *(end for end in (time.low, time.high) if end is not None)]
    latency = Estimate(time.value, min(ends), max(ends))  # widened to contain the time of each row
    sources = tuple(RowReference(str(row["run_id"]), str(row["case_key"]), length) for row in rows)
    memory, state = (max((row[c] for row in rows if row[c] is not None), default=None) for c in BYTE_COLUMNS)
    return CostPoint(length, speedup, latency, memory, state, sources, pooled.standard_error(name))
