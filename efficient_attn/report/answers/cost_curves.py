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
from .. import select
from ..comparable_quality import canonicalise_spec
from ..gather import Frame
from .pooled_times import Z_95, PooledTimes, Timing, estimate_log_error, pool_times

EstimateBasis = Literal["measured", "interpolated"]
# columns that two timings must share to be compared
CONFIG_COLUMNS = ["machine", "device", "dtype", "batch", "heads", "head_dim", "threads", "inputs", "cache", "compiled"]
CONFIG_COLUMNS += ["cuda_graph", "mode", "causal"]
BYTE_COLUMNS = ("peak_memory_bytes", "state_bytes")
TIME_COLUMNS = [f"{name}{end}" for name in ("latency_ms", "speedup") for end in ("", "_low", "_high")]
ROW_COLUMNS = ["variant", "backend", "kv_heads", "seq_len", "run_id", "part", "case_key", "is_baseline"]
ROW_COLUMNS += ["baseline", "process_peak_bytes", *BYTE_COLUMNS, *TIME_COLUMNS]
# of rows from which curves are made; "is_baseline" is added with the labels
TIMING_COLUMNS = [*dict.fromkeys([*CONFIG_COLUMNS, *ROW_COLUMNS, *select.LABELLED_COLUMNS, "contaminated", "rounds"])]
TIMING_COLUMNS.remove("is_baseline")
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
    """A row from which a value was computed. run: the name of its run, or the id of its session."""

    run_id: str
    case_key: str
    length: int
    run: str = ""


@dataclass(frozen=True)
class CostAtLength:
    """Cost of a mechanism at a length, from all its rows there or interpolated.

    speedup: over the baseline, None if that was not timed there. memory: peak bytes of a call; counted_memory: the
    counted peak, if ``memory`` is the larger resident peak of the process. half_width: half the 95% interval of log
    time relative to other mechanisms at the same lengths, without the drift of the machine, which they share. between:
    the two measured lengths of an interpolation. paired: the speedups of single rows over the baseline.
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
    paired: tuple[Estimate, ...] = ()

    how = make_deprecated_alias("how", "basis")
    apart = make_deprecated_alias("apart", "half_width")

    @property
    def basis(self) -> EstimateBasis:
        """Whether it was measured at this length."""
        return "interpolated" if self.between else "measured"

    @property
    def spread(self) -> str:
        """``3 measurements: 3.21x to 4.92x``, where the intervals of two exclude each other; else empty."""
        values, lows, highs = zip(*self.paired, strict=True) if self.paired else ([1], [1], [1])
        text = f"{len(values)} measurements: {units.ratio(min(values))} to {units.ratio(max(values))}"
        return text if max(lows) > min(highs) else ""


@dataclass(frozen=True)
class CostCurve:
    """One mechanism at one configuration, over measured lengths. spec: its canonical spec without the backend."""

    label: str
    kv_heads: int | None
    spec: str
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
    return CostAtLength(
        length=length,
        speedup=interpolate((low.length, low.speedup), (high.length, high.speedup), length, SPEEDUP_BEND),
        latency=latency,
        memory=interpolate_bytes([(point.length, point.memory) for point in points], length),
        state=interpolate_bytes([(point.length, point.state) for point in points], length),
        sources=(*low.sources, *high.sources),
        half_width=math.hypot(
            max(low.half_width, high.half_width), TIME_BEND * _compute_gap(low.length, high.length, length)
        ),
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
    pairs = zip((low.value, *low.ends), (high.value, *high.ends), strict=True)
    middle, bottom, top = ((1 - share) * math.log(first) + share * math.log(last) for first, last in pairs)
    return Estimate(middle, middle - math.hypot(middle - bottom, slack), middle + math.hypot(top - middle, slack)).exp()


def interpolate_bytes(points: Sequence[_LengthEstimate], length: int) -> Estimate | None:
    """Interpolate bytes linearly in the length between two measured lengths, bounded by the values at both ends. Where
    lines through the outer points agree, there is no further slack."""
    measured = [(point_length, size.value) for point_length, size in points if size is not None]
    below, above = [p for p in measured if p[0] < length], [p for p in measured if p[0] > length]
    if not below or not above:
        return None
    pairs = [(below[-1], above[0]), *(pair for pair in (below[-2:], above[:2]) if len(pair) == 2)]
    middle, *outer = (y + (last_y - y) * (length - x) / (last_x - x) for (x, y), (last_x, last_y) in pairs)
    agree = bool(outer) and all(abs(other - middle) <= BYTES_TOLERANCE * middle for other in outer)
    least, most = sorted((below[-1][1], above[0][1]))
    slack = 1.0 if agree else BYTES_SLACK
    return Estimate(middle, max(least, middle / slack), min(most, middle * slack))


# -- from rows -----------------------------------------------------------------------------------------------------

_RowDict = dict[str, Any]
_MechanismKey = tuple[str, int | None]  # a label, and the key-value heads


def is_disturbed(rows: Frame) -> Any:
    """Whether other programs ran in most of the rounds of each row."""
    contaminated, rounds = (rows[name].astype("float64") for name in ("contaminated", "rounds"))
    return contaminated.fillna(0) > MAX_DISTURBED_SHARE * rounds.fillna(1)


def find_timed(rows: Frame) -> Frame:
    """The rows that curves are made from: timed, verified, and not disturbed by other programs. rows: with labels
    (`select.add_labels`)."""
    is_timed = (rows["status"] == "ok") & (rows["task"] == "speed") & (rows["fill"].isna() | (rows["fill"] == "full"))
    is_timed &= rows[["mode", "seq_len", "latency_ms"]].notna().all(axis=1)
    return rows.loc[is_timed & ~is_disturbed(rows), [*CONFIG_COLUMNS, *ROW_COLUMNS]].astype({"seq_len": int})


def split_by_config(timed: Frame, run_names: Mapping[Any, str]) -> list[tuple[dict[str, Any], list[CostCurve]]]:
    """Return the curves of each configuration, whose ``baseline`` is what speedups are relative to. timed: rows of
    `find_timed`. run_names: by session."""
    names = timed.columns.tolist()
    cells = timed.astype(object).where(timed.notna(), None).to_numpy().tolist()
    records: list[_RowDict] = [dict(zip(names, values, strict=True)) for values in cells]
    mechanism_keys: dict[Any, _MechanismKey] = {}
    for row in records:
        row["run_id"] = str(row["run_id"])
        row["run"] = run_names.get(row["run_id"], row["run_id"])
        spec = row["variant"], row["backend"], row["kv_heads"]
        row["mechanism"] = mechanism_keys.get(spec) or mechanism_keys.setdefault(spec, make_mechanism_key(row))
    return [
        _make_curves(dict(zip(CONFIG_COLUMNS, values, strict=True)), config_rows)
        for values, config_rows in _group_rows(records, itemgetter(*CONFIG_COLUMNS)).items()
    ]


def _group_rows(rows: Iterable[_RowDict], key: Callable[[_RowDict], Any]) -> dict[Any, list[_RowDict]]:
    """The rows by key, in order of appearance."""
    groups: dict[Any, list[_RowDict]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _make_curves(config: dict[str, Any], rows: Sequence[_RowDict]) -> tuple[dict[str, Any], list[CostCurve]]:
    baseline_counts = Counter(baseline["mechanism"] for baseline, _ in _split_groups(rows) if baseline)
    baseline = baseline_counts.most_common(1)[0][0] if baseline_counts else None
    get_length = itemgetter("seq_len")
    by_length = sorted(rows, key=get_length)
    pooled = {length: pool_times(list(_list_timings(x))) for length, x in _group_rows(by_length, get_length).items()}
    curves = []
    for name, mechanism_rows in _group_rows(by_length, itemgetter("mechanism")).items():
        peaks = [(x["seq_len"], x["process_peak_bytes"]) for x in mechanism_rows if x["process_peak_bytes"] is not None]
        points = (
            _use_resident(_make_point(length, length_rows, pooled[length], name, baseline), peaks)
            for length, length_rows in _group_rows(mechanism_rows, get_length).items()
        )
        label, kv_heads = name
        curves.append(CostCurve(label, kv_heads, canonicalise_spec(mechanism_rows[-1]["variant"]), tuple(points)))
    return config | {"baseline": baseline and baseline[0], "baseline_kv_heads": baseline and baseline[1]}, curves


def _use_resident(point: CostAtLength, peaks: Sequence[tuple[int, float]]) -> CostAtLength:
    """The point with the resident peak as memory, if it is much larger than the counted peak. peaks: by length.

    It is measured at one length. At shorter ones it is scaled by the length, an upper bound of what grows faster.
    """
    longer = [(length, peak) for length, peak in peaks if length >= point.length]
    if not longer or point.memory is None:
        return point
    length, peak = min(longer, key=lambda pair: (pair[0], -pair[1]))
    peak *= point.length / length
    is_larger = peak > max(RESIDENT_FACTOR * point.memory.value, point.memory.value + RESIDENT_SLACK)
    return replace(point, memory=Estimate(peak), counted_memory=point.memory) if is_larger else point


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
            name, ms = "latency_ms", row["latency_ms"]
            if baseline is not None and row is not baseline and (row["speedup"] or 0) > 0:
                name, ms = "speedup", baseline["latency_ms"] / row["speedup"]
            error = estimate_log_error(row[f"{name}_low"], row[f"{name}_high"])
            error = 0.0 if row is baseline and len(group_rows) > 1 else DEFAULT_ERROR if error is None else error
            yield Timing(row["mechanism"], group, math.log(ms), error)


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
    ends = [*(float(row["latency_ms"]) for row in rows), *time.ends]
    latency = Estimate(time.value, min(ends), max(ends))  # widened to contain the time of each row
    sources = tuple(RowReference(row["run_id"], str(row["case_key"]), length, row["run"]) for row in rows)
    sizes = [[row[column] for row in rows if row[column] is not None] for column in BYTE_COLUMNS]
    memory, state = (Estimate(max(values)) if values else None for values in sizes)
    over_baseline = [row for row in rows if row["speedup_low"] and baseline and row["baseline"] == baseline[0]]
    paired = tuple(Estimate(*(row[name] for name in TIME_COLUMNS[3:])) for row in over_baseline)
    half_width = Z_95 * pooled.standard_error(name)
    return CostAtLength(length, speedup, latency, memory, state, sources, half_width, paired=paired)
