"""The difference of two runs in one case: the logarithm of a ratio, with its standard error.

Ratios are time in BASE / time in NEW: above 1 NEW is faster.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from .exchange import list_round_values, name_group, select_latest
from .rows import Record
from .stats import Mean, estimate_mean, estimate_trimmed_mean

Quantity = Literal["speedup", "latency"]
Rounds = Mapping[tuple[int, int], float]  # milliseconds by process and position in it
EXACT_DEGREES = 10**6  # degrees of freedom of an error that is known, not estimated
# times are not compared above this share of disturbed rounds in either run, or this difference between the shares
MAX_DISTURBED_SHARE = 0.5
MAX_DISTURBED_DIFFERENCE = 0.25
TOO_FEW_ROUNDS = "too few rounds to compare"
MIN_PAIRS = 3  # of process runs, from which their differences give an interval


@dataclass(frozen=True)
class PairedRecord:
    """A case of one run, with the baseline of its group measured in the same session."""

    record: Record
    baseline: PairedRecord | None

    @cached_property
    def baseline_rounds(self) -> Rounds:
        """`list_rounds` as a baseline, which every case of its group is compared with; other cases' are not kept."""
        return list_rounds(self.record)

    @property
    def ok(self) -> bool:
        """Whether it was measured."""
        return self.record.row.status == "ok"

    @property
    def timed(self) -> bool:
        """Whether it has a time."""
        return self.ok and self.record.row.latency_ms is not None

    @property
    def failure(self) -> str:
        """Its status with the reason."""
        row = self.record.row
        return f"{row.status}: {row.reason}" if row.reason else row.status


def pair_with_baselines(records: Iterable[Record]) -> dict[str, PairedRecord]:
    """Cases by name, each with the baseline that the same session measured in its group.

    The baseline is the row with a speedup of exactly 1, with which samples were paired; the suite only names a variant,
    and each part may name another.
    """
    latest_records = select_latest(records)
    groups = {name: (name_group(record), record.row.run_id) for name, record in latest_records.items()}
    baselines: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for name, record in latest_records.items():
        if record.row.status == "ok" and record.row.is_baseline:
            baselines[groups[name]].append(name)
    alone = {name: PairedRecord(record, None) for name, record in latest_records.items()}
    only = {group: names[0] for group, names in baselines.items() if len(names) == 1}
    return {
        name: pair if only.get(groups[name]) in (None, name) else PairedRecord(pair.record, alone[only[groups[name]]])
        for name, pair in alone.items()
    }


class Difference(NamedTuple):
    """The logarithm of a ratio of times, what was compared, the number of paired process runs, if they were, and the
    reason if it cannot be judged."""

    by: Quantity
    mean: Mean
    pairs: int | None = None
    problem: str | None = None


def measure_difference(old: PairedRecord, new: PairedRecord, by: Quantity, drift: float) -> Difference:
    """By pairs of process runs where those of the two runs alternated, otherwise by speedup where both allow it."""
    rounds = list_rounds(old.record), list_rounds(new.record)
    if differences := _list_paired_differences(old.record, new.record, *rounds):  # others slow down both of a pair
        return Difference("latency", estimate_trimmed_mean(differences), len(differences))
    if by == "speedup" and old.baseline and new.baseline and share_baseline(old, new):
        baselines = old.baseline.baseline_rounds, new.baseline.baseline_rounds
        mean = subtract_means(*map(_estimate_ratio, rounds, baselines))
        if mean.degrees:
            return Difference("speedup", mean, problem=_describe_disturbance(old, new, "speedup"))
    means = map(_estimate_mean_log, rounds) if all(rounds) else map(_estimate_from_summary, (old.record, new.record))
    mean = subtract_means(*means, drift=drift)
    problem = _describe_disturbance(old, new, "latency") if mean.degrees else TOO_FEW_ROUNDS
    return Difference("latency", mean, problem=problem)


def _list_paired_differences(old: Record, new: Record, old_rounds: Rounds, new_rounds: Rounds) -> list[float]:
    """log(old / new) of each pair of process runs, if those of the two runs alternated in time; otherwise none.

    The two of a pair follow each other within seconds, so that the speed of the machine is the same for both.
    """
    started = (record.samples.get("started") or () for record in (old, new))
    starts = list(zip(*started, strict=False))
    alternated = all(a != b for a, b in starts) and all(max(x) < min(y) for x, y in itertools.pairwise(starts))
    if len(starts) < MIN_PAIRS or not alternated:
        return []
    before, after = _average_by_process(old_rounds), _average_by_process(new_rounds)
    pairs = [number for number in range(len(starts)) if number in before and number in after]
    return [before[n] - after[n] for n in pairs] if len(pairs) >= MIN_PAIRS else []


def _average_by_process(rounds: Rounds) -> dict[int, float]:
    """The mean of log(milliseconds) over the rounds of each process run."""
    logs = defaultdict[int, list[float]](list)
    for (process, _), value in rounds.items():
        logs[process].append(math.log(value))
    return {process: statistics.fmean(values) for process, values in logs.items()}


def share_baseline(old: PairedRecord, new: PairedRecord) -> bool:
    """Whether both have a baseline of the same mechanism with the same number of key-value heads."""
    if old.baseline is None or new.baseline is None:
        return False
    before, after = old.baseline.record.row, new.baseline.record.row
    return (before.variant, before.kv_heads) == (after.variant, after.kv_heads)


def subtract_means(a: Mean, b: Mean, *, drift: float = 0.0) -> Mean:
    """The difference of two means, with Welch's degrees of freedom. drift: a known error of each."""
    difference = a.value - b.value
    if not (a.degrees and b.degrees):
        return Mean(difference, math.inf, 0)
    variance = a.error**2 + b.error**2 + 2 * drift**2
    spread = a.error**4 / a.degrees + b.error**4 / b.degrees
    degrees = int(min(variance**2 / spread, EXACT_DEGREES)) if spread else EXACT_DEGREES
    return Mean(difference, math.sqrt(variance), degrees)


def estimate_mean_log(record: Record) -> Mean:
    """The mean of log(milliseconds) over a case's rounds."""
    return _estimate_mean_log(list_rounds(record))


def _estimate_mean_log(rounds: Rounds) -> Mean:
    return estimate_mean([math.log(value) for value in rounds.values()], [process for process, _ in rounds])


def _estimate_from_summary(record: Record) -> Mean:
    """The logarithm of the arithmetic mean, where a run has no rounds; of a row's time alone, without an error."""
    values = list_round_values(record)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    alone = (statistics.fmean(values or [record.row.latency_ms or 1.0]), spread, len(values))
    mean, stddev, rounds = record.samples.get("summary") or alone
    error = stddev / mean / math.sqrt(rounds) if mean > 0 and rounds > 1 else math.inf
    return Mean(math.log(mean) if mean > 0 else 0.0, error, int(rounds) - 1 if math.isfinite(error) else 0)


def estimate_log_ratio(numerator: Record, denominator: Record) -> Mean:
    """The mean of log(numerator / denominator) over common rounds, measured by one session in one group."""
    return _estimate_ratio(list_rounds(numerator), list_rounds(denominator))


def _estimate_ratio(top: Rounds, bottom: Rounds) -> Mean:
    shared = [key for key in top if key in bottom]
    if not shared:
        return Mean(0.0, math.inf, 0)
    return estimate_mean([math.log(top[key] / bottom[key]) for key in shared], [process for process, _ in shared])


def list_rounds(record: Record) -> Rounds:
    """Round values by process and position in it, so that a variant with fewer rounds can still be paired."""
    values, counts = list_round_values(record), Counter[int]()
    rounds = {}
    for process, value in zip(record.samples.get("process") or [0] * len(values), values, strict=False):
        rounds[process, counts[process]] = value
        counts[process] += 1
    return rounds


def _describe_disturbance(old: PairedRecord, new: PairedRecord, by: Quantity) -> str | None:
    """Why the times of a case, or of its baseline, cannot be compared; None if they can.

    Other programs do not slow all mechanisms equally, so that pairing does not cancel the disturbance.
    """
    compared = {"": (old.record.row, new.record.row)}
    if by == "speedup" and old.baseline and new.baseline:
        compared["its baseline was "] = old.baseline.record.row, new.baseline.record.row
    for subject, rows in compared.items():
        (a, total_a), (b, total_b) = ((row.contaminated or 0, row.rounds or 1) for row in rows)
        share_a, share_b = a / total_a, b / total_b
        if max(share_a, share_b) > MAX_DISTURBED_SHARE or abs(share_a - share_b) > MAX_DISTURBED_DIFFERENCE:
            return f"{subject}disturbed: {a} of {total_a} rounds in base, {b} of {total_b} in new"
    return None
