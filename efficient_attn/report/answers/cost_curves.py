"""Cost of a mechanism at a length: measured there, or interpolated between two measured lengths."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
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
class CostAtLength:
    """Cost of a mechanism at a length, from all its rows there or interpolated.

    speedup: over the baseline, None if that was not timed there. memory: peak bytes of a call; counted_memory: the
    counted peak, if ``memory`` is the larger resident peak of the process. half_width: half the 95% interval of log
    time relative to other mechanisms at the same lengths, without the drift of the machine, which they share. between:
    the two measured lengths of an interpolation.
    """

    length: int
    speedup: Estimate | None
    latency: Estimate
    memory: Estimate | None
    state: Estimate | None
    sources: tuple[RowReference, ...]
    half_width: float = 0.0
    counted_memory: Estimate | None = None
    between: tuple[int, int] | None = None

    how = make_deprecated_alias("how", "basis")
    apart = make_deprecated_alias("apart", "half_width")

    @property
    def basis(self) -> EstimateBasis:
        """Whether it was measured at this length."""
        return "interpolated" if self.between else "measured"


@dataclass(frozen=True)
class CostCurve:
    """One mechanism at one configuration, over measured lengths. row: one of its rows, for its spec."""

    label: str
    kv_heads: int | None
    row: Mapping[str, Any]
    points: tuple[CostAtLength, ...]

    def estimate(self, length: int) -> CostAtLength | str:
        """Return the cost at a length, or the reason why it is unknown."""
        below = [point for point in self.points if point.length <= length]
        above = [point for point in self.points if point.length > length]
        if below and below[-1].length == length:
            return below[-1]
        if not below or not above:
            return f"timed only at {', '.join(units.short_length(point.length) for point in self.points)}"
        low, high = below[-1].length, above[0].length
        if high > MAX_LENGTH_RATIO * low:
            return f"not timed between {units.short_length(low)} and {units.short_length(high)}"
        return _interpolate_cost(below[-2:], above[:2], length)


def _interpolate_cost(below: Sequence[CostAtLength], above: Sequence[CostAtLength], length: int) -> CostAtLength:
    """Interpolate between the last point below and the first above; one more point on each side bounds bytes."""
    low, high, points = below[-1], above[0], (*below, *above)
    latency = interpolate((low.length, low.latency), (high.length, high.latency), length, TIME_BEND)
    assert latency is not None
    counted = [(point.length, point.counted_memory or point.memory) for point in points]
    gap = _compute_gap(low.length, high.length, length)
    return CostAtLength(
        length=length,
        speedup=interpolate((low.length, low.speedup), (high.length, high.speedup), length, SPEEDUP_BEND),
        latency=latency,
        memory=interpolate_bytes([(point.length, point.memory) for point in points], length),
        state=interpolate_bytes([(point.length, point.state) for point in points], length),
        sources=(*low.sources, *high.sources),
        half_width=math.hypot(max(low.half_width, high.half_width), TIME_BEND * gap),
        counted_memory=interpolate_bytes(counted, length) if any(point.counted_memory for point in points) else None,
        between=(low.length, high.length),
    )


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

    def interpolate_logs(first: float, last: float) -> float:
        return (1 - share) * math.log(first) + share * math.log(last)

    middle = interpolate_logs(low.value, high.value)
    bottom, top = map(interpolate_logs, low.ends, high.ends)
    return Estimate(
        math.exp(middle),
        math.exp(middle - math.hypot(middle - bottom, slack)),
        math.exp(middle + math.hypot(top - middle, slack)),
    )


def interpolate_bytes(points: Sequence[_LengthEstimate], length: int) -> Estimate | None:
    """Interpolate bytes linearly in the length between two measured lengths, bounded by the values at both ends. Where
    lines through the outer points agree, there is no further slack."""
    measured = [(point_length, size.value) for point_length, size in points if size is not None]
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
    records: list[_RowDict] = timed[[*dict.fromkeys((*CONFIG_COLUMNS, *ROW_COLUMNS))]].to_dict("records")
    records = [{name: value if units.is_present(value) else None for name, value in row.items()} for row in records]
    usable = [row for row in records if (row["contaminated"] or 0) <= MAX_DISTURBED_SHARE * (row["rounds"] or 1)]
    return [
        _make_curves(dict(zip(CONFIG_COLUMNS, values, strict=True)), config_rows)
        for values, config_rows in _group_rows(usable, itemgetter(*CONFIG_COLUMNS)).items()
    ]


def _group_rows(rows: Iterable[_RowDict], key: Callable[[_RowDict], Any]) -> dict[Any, list[_RowDict]]:
    """The rows by key, in order of appearance."""
    groups: dict[Any, list[_RowDict]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _make_curves(config: dict[str, Any], rows: Sequence[_RowDict]) -> tuple[dict[str, Any], list[CostCurve]]:
    baseline_counts = Counter(make_mechanism_key(baseline) for baseline, _ in _split_groups(rows) if baseline)
    baseline = baseline_counts.most_common(1)[0][0] if baseline_counts else None
    by_length = sorted(rows, key=_get_length)
    pooled = {length: pool_times(list(_list_timings(x))) for length, x in _group_rows(by_length, _get_length).items()}
    curves = []
    for name, mechanism_rows in _group_rows(by_length, make_mechanism_key).items():
        points = [
            _make_point(length, length_rows, pooled[length], name, baseline)
            for length, length_rows in _group_rows(mechanism_rows, _get_length).items()
        ]
        label, kv_heads = name
        curves.append(CostCurve(label, kv_heads, mechanism_rows[-1], _use_resident(points, mechanism_rows)))
    return config | {"baseline": baseline and baseline[0], "baseline_kv_heads": baseline and baseline[1]}, curves


def _get_length(row: _RowDict) -> int:
    return int(row["seq_len"])


def _use_resident(points: Sequence[CostAtLength], rows: Sequence[_RowDict]) -> tuple[CostAtLength, ...]:
    """The points with the resident peak as memory, where it is much larger than the counted peak.

    It is measured at one length. At shorter ones it is scaled by the length, an upper bound of what grows faster.
    """
    peaks = [(_get_length(row), row["process_peak_bytes"]) for row in rows if row["process_peak_bytes"] is not None]
    corrected = []
    for point in points:
        longer = min((length for length, _ in peaks if length >= point.length), default=None)
        if longer is not None and point.memory is not None:
            peak = max(peak for length, peak in peaks if length == longer) * point.length / longer
            if peak > max(RESIDENT_FACTOR * point.memory.value, point.memory.value + RESIDENT_SLACK):
                point = replace(point, memory=Estimate(peak), counted_memory=point.memory)
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
    for group_rows in _group_rows(rows, itemgetter("run_id", "part", "seq_len")).values():
        self_paired = [row for row in group_rows if row["speedup"] == row["speedup_low"] == row["speedup_high"] == 1]
        yield next(iter(self_paired or [row for row in group_rows if row["is_baseline"]]), None), group_rows


def _make_point(
    length: int, rows: Sequence[_RowDict], pooled: PooledTimes, name: _MechanismKey, baseline: _MechanismKey | None
) -> CostAtLength:
    speedup = Estimate(1.0, 1.0, 1.0) if name == baseline else pooled.speedup(baseline, name)
    time = pooled.time(name)
    ends = [*(float(row["latency_ms"]) for row in rows), *(end for end in (time.low, time.high) if end is not None)]
    latency = Estimate(time.value, min(ends), max(ends))  # widened to contain the time of each row
    sources = tuple(RowReference(str(row["run_id"]), str(row["case_key"]), length) for row in rows)
    sizes = [[row[column] for row in rows if row[column] is not None] for column in BYTE_COLUMNS]
    memory, state = (Estimate(max(values)) if values else None for values in sizes)
    half_width = Z_95 * pooled.standard_error(name)
    return CostAtLength(length, speedup, latency, memory, state, sources, half_width)
