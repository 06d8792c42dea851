"""Two runs side by side: case by case faster, slower, the same or inconclusive, and what broke.

Ratios are time in BASE / time in NEW: above 1 NEW is faster. All intervals of a comparison hold at once.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UsageError
from .exchange import LIKENESS, Run, latest, name_cell, round_values
from .rows import Record, Row
from .stats import MARGIN, Mean, Verdict, mean_of, verdict

By = Literal["speedup", "latency"]
Kind = Verdict | Literal["broken", "fixed"]
KINDS: tuple[Kind, ...] = ("broken", "slower", "faster", "fixed", "inconclusive", "same")  # what matters most first
DRIFT = 0.02  # relative standard deviation of one measurement between two runs on one machine
UNEVEN = 0.25  # of the rounds: when more of one run's were disturbed than of the other's, their times say nothing
CERTAIN = 10**6  # degrees of freedom of an error that is known, not estimated


@dataclass(frozen=True, kw_only=True)
class Change:
    """What became of one case. by: what was compared, the speedup over the cell's baseline or the latency itself.

    base_bytes, new_bytes: the peaks of memory, where they differ by more than the margin.
    """

    name: str
    kind: Kind
    reason: str | None = None
    by: By | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    base_ms: float | None = None
    new_ms: float | None = None
    base_bytes: int | None = None
    new_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs compared. unlike: what differs between their machines, in words; nothing when they are alike."""

    base: str
    new: str
    by: By
    confidence: float
    margin: float
    drift: float
    unlike: tuple[str, ...]
    changes: tuple[Change, ...]
    only_in_base: tuple[str, ...]
    only_in_new: tuple[str, ...]
    failing: tuple[str, ...]

    @property
    def counts(self) -> dict[Kind, int]:
        found = Counter(change.kind for change in self.changes)
        return {kind: found[kind] for kind in KINDS}

    @property
    def regressed(self) -> bool:
        return any(change.kind in ("slower", "broken") for change in self.changes)


@dataclass(frozen=True)
class _Entry:
    """A case of one run, with its cell's baseline as that was measured beside it."""

    record: Record
    baseline: Record | None

    @property
    def ok(self) -> bool:
        return self.record.row.status == "ok"

    @property
    def timed(self) -> bool:
        return self.ok and self.record.row.latency_ms is not None

    @property
    def failure(self) -> str:
        row = self.record.row
        return f"{row.status}: {row.reason}" if row.reason else row.status


def compare(
    base: Run,
    new: Run,
    *,
    by: By = "speedup",
    confidence: float = 0.95,
    margin: float = MARGIN,
    drift: float = DRIFT,
    across_machines: bool = False,
) -> Comparison:
    """Compare every case that both runs hold. ``confidence`` is that of all intervals together (Bonferroni).

    Raises `UsageError` when the runs share no case, or are of unlike machines and ``across_machines`` is not set.
    """
    different = unlike(base, new)
    if different and not across_machines:
        raise UsageError(f"unlike machines: {'; '.join(different)}; add --across-machines to compare all the same")
    old, now = _entries(base.records), _entries(new.records)
    both = [name for name in old if name in now]
    if not both:
        raise UsageError(f"{base.name} and {new.name} share no case; runs of one suite can be compared")
    found = {n: _difference(old[n], now[n], by, drift) for n in both if old[n].timed and now[n].timed}
    each = 1 - (1 - confidence) / max(1, sum(mean.degrees > 0 for _, mean in found.values()))
    changes = [_timing(n, old[n], now[n], *found[n], each, margin) for n in found]
    changes += [Change(name=n, kind="broken", reason=now[n].failure) for n in both if old[n].ok and not now[n].ok]
    changes += [Change(name=n, kind="fixed", reason=old[n].failure) for n in both if now[n].ok and not old[n].ok]
    return Comparison(
        base=base.name,
        new=new.name,
        by=by,
        confidence=confidence,
        margin=margin,
        drift=drift,
        unlike=different,
        changes=tuple(changes),
        only_in_base=tuple(n for n in old if n not in now),
        only_in_new=tuple(n for n in now if n not in old),
        failing=tuple(n for n in both if not old[n].ok and not now[n].ok),
    )


def unlike(base: Run, new: Run) -> tuple[str, ...]:
    """What is not the same in all sessions of both runs; a run that does not say counts as ``unknown``."""
    found = []
    for name in LIKENESS:
        sides = [sorted({str(_said(e, name)) for e in run.environments or [{}]}) for run in (base, new)]
        if len({value for side in sides for value in side}) > 1 or not (base.environments and new.environments):
            here, there = (" and ".join(side) for side in sides)
            found.append(f"{name.replace('_', ' ')} {here} in {base.name}, {there} in {new.name}")
    return tuple(found)


def _said(environment: Mapping[str, Any], name: str) -> Any:
    value = environment.get(name)
    return "unknown" if value is None else value


def _entries(records: Iterable[Record]) -> dict[str, _Entry]:
    """Cases by name. Only what one session measured in one cell was measured side by side.

    The baseline is the row whose speedup over itself is exactly 1: it says what the samples were paired with, where
    a suite's file says what was meant, and each of its parts may mean another.
    """
    found = latest(records)
    baselines: dict[tuple[str, str | None], list[Record]] = defaultdict(list)
    for record in found.values():
        row = record.row
        if row.status == "ok" and row.speedup == row.speedup_low == row.speedup_high == 1:
            baselines[name_cell(record), row.run_id].append(record)
    entries = {}
    for name, record in found.items():
        beside = baselines[name_cell(record), record.row.run_id]
        entries[name] = _Entry(record, beside[0] if len(beside) == 1 and beside[0] is not record else None)
    return entries


# -- the difference of two measurements ----------------------------------------------------------------------------


def _difference(old: _Entry, new: _Entry, by: By, drift: float) -> tuple[By, Mean]:
    """The logarithm of the ratio of the times, by speedup where both runs allow it."""
    if by == "speedup" and old.baseline and new.baseline and _alike(old.baseline.row, new.baseline.row):
        relative = _minus(_relative(old.record, old.baseline), _relative(new.record, new.baseline))
        if relative.degrees:
            return "speedup", relative
    latency = _by_rounds if round_values(old.record) and round_values(new.record) else _by_summary
    return "latency", _minus(latency(old.record), latency(new.record), drift=drift)


def _alike(old: Row, new: Row) -> bool:
    """Whether two rows are of one mechanism, its key-value heads included."""
    return (old.variant, old.kv_heads) == (new.variant, new.kv_heads)


def _minus(a: Mean, b: Mean, *, drift: float = 0.0) -> Mean:
    """The difference of two means, with Welch's degrees of freedom. drift: a known error of either's."""
    difference = a.value - b.value
    if not (a.degrees and b.degrees):
        return Mean(difference, math.inf, 0)
    variance = a.error**2 + b.error**2 + 2 * drift**2
    spread = a.error**4 / a.degrees + b.error**4 / b.degrees
    return Mean(difference, math.sqrt(variance), int(min(variance**2 / spread, CERTAIN)) if spread else CERTAIN)


def _by_rounds(record: Record) -> Mean:
    return mean_of([math.log(v) for v in round_values(record)], record.samples.get("process"))


def _by_summary(record: Record) -> Mean:
    """The logarithm of the arithmetic mean: all that can be had where one of two runs kept no rounds."""
    values = round_values(record)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    mean, stddev, rounds = record.samples.get("summary") or (statistics.fmean(values), spread, len(values))
    error = stddev / mean / math.sqrt(rounds) if rounds > 1 else math.inf
    return Mean(math.log(mean), error, max(0, rounds - 1))


def _relative(record: Record, baseline: Record) -> Mean:
    """The mean of log(variant / baseline) over the rounds that both have."""
    mine, theirs = _rounds(record), _rounds(baseline)
    shared = [at for at in mine if at in theirs]
    if not shared:
        return Mean(0.0, math.inf, 0)
    return mean_of([math.log(mine[at] / theirs[at]) for at in shared], [process for process, _ in shared])


def _rounds(record: Record) -> dict[tuple[int, int], float]:
    """Round values by process and their place in it, so that a variant with fewer rounds still finds its partners."""
    values, seen = round_values(record), Counter[int]()
    found = {}
    for process, value in zip(record.samples.get("process") or [0] * len(values), values, strict=False):
        found[process, seen[process]] = value
        seen[process] += 1
    return found


def _timing(name: str, old: _Entry, new: _Entry, by: By, mean: Mean, confidence: float, margin: float) -> Change:
    before, after = old.record.row, new.record.row
    known: dict[str, Any] = {"name": name, "by": by, "base_ms": before.latency_ms, "new_ms": after.latency_ms}
    known["ratio"] = _exp(mean.value)
    peaks = before.peak_memory_bytes, after.peak_memory_bytes
    if peaks[0] and peaks[1] and abs(math.log(peaks[0] / peaks[1])) > math.log1p(margin):
        known |= {"base_bytes": peaks[0], "new_bytes": peaks[1]}
    ends = mean.interval(confidence)
    if ends is None:
        return Change(**known, kind="inconclusive", reason="a single round gives no interval")
    low, high = (_exp(end) for end in ends)
    reason = _unevenly_disturbed(before, after)
    kind: Kind = "inconclusive" if reason else verdict(low, high, margin=margin)
    return Change(**known, low=low, high=high, kind=kind, reason=reason)


def _unevenly_disturbed(before: Row, after: Row) -> str | None:
    """What else ran on the machine does not slow all mechanisms alike, so that no pairing takes it out."""
    (a, of_a), (b, of_b) = ((row.contaminated or 0, row.rounds or 1) for row in (before, after))
    if abs(a / of_a - b / of_b) <= UNEVEN:
        return None
    return f"disturbed: {a} of {of_a} rounds in base, {b} of {of_b} in new"


def _exp(x: float) -> float:
    return math.exp(max(-700.0, min(700.0, x)))  # two wild rounds may claim more than a float holds
