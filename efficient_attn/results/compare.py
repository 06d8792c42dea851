"""Two runs side by side: case by case faster, slower, the same or inconclusive, what broke, and what can be ruled out.

Ratios are time in BASE / time in NEW: above 1 NEW is faster. All verdicts of a comparison hold together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UsageError
from .differences import (
    By,
    PairedRecord,
    compare_speedups,
    describe_disturbance,
    measure_difference,
    pair_with_baselines,
)
from .exchange import MACHINE_FIELDS, ImportedRun
from .stats import MARGIN, Mean, RatioVerdict, adjust_holm, classify_ratio, quantile_t

Kind = RatioVerdict | Literal["broken", "fixed"]
KINDS: tuple[Kind, ...] = ("broken", "slower", "faster", "fixed", "inconclusive", "same")  # what matters most first
DRIFT = 0.02  # relative standard deviation of one measurement between two runs on one machine
TOLERANCE = 0.1  # what is surely within is the same; what cannot show as much is blind
MIN_FOUND_SHARE = 0.95  # of the differences that a case could show, it shows so many
LONE_ROUND_ERROR = "a single round gives no interval"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What became of one case. by: what was compared, the speedup over the cell's baseline or the latency itself.

    base_speedup, new_speedup: over the same baseline, where there is one. least: the smallest difference that it could
    have shown (0.07: 7%), None for none. slower_by_at_most: of this case alone. blind: nothing was found, and nothing
    as large as the tolerance could have been. base_bytes, new_bytes: the peaks of memory, where they differ by more
    than the margin.
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
    base_speedup: float | None = None
    new_speedup: float | None = None
    least: float | None = None
    slower_by_at_most: float | None = None
    blind: bool = False
    base_bytes: int | None = None
    new_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs compared. unlike: what differs between their machines, in words; nothing when they are alike.

    itself: whether both are the same measurements.
    """

    base: str
    new: str
    by: By
    confidence: float
    margin: float
    tolerance: float
    drift: float
    unlike: tuple[str, ...]
    itself: bool
    changes: tuple[Change, ...]
    only_in_base: tuple[str, ...]
    only_in_new: tuple[str, ...]
    failing: tuple[str, ...]

    @property
    def counts(self) -> dict[Kind, int]:
        counts = Counter(change.kind for change in self.changes)
        return {kind: counts[kind] for kind in KINDS}

    @property
    def regressed(self) -> bool:
        return any(change.kind in ("slower", "broken") for change in self.changes)

    @property
    def blind(self) -> tuple[str, ...]:
        return tuple(change.name for change in self.changes if change.blind)

    @property
    def slower_by_at_most(self) -> float | None:
        """How much slower any case may have become that is not blind; None where all are.

        With ``confidence``, and no correction for their number: the bound is the largest of all, so that it fails only
        where the bound of the slowest case does.
        """
        return max((c.slower_by_at_most for c in self.changes if c.slower_by_at_most is not None), default=None)


def compare(
    base: ImportedRun,
    new: ImportedRun,
    *,
    by: By = "speedup",
    confidence: float = 0.95,
    margin: float = MARGIN,
    tolerance: float = TOLERANCE,
    drift: float = DRIFT,
    across_machines: bool = False,
) -> Comparison:
    """Compare every case that both runs hold. ``confidence`` is that of all verdicts together (Holm).

    Raises `UsageError` when the runs share no case, are of unlike machines and ``across_machines`` is not set, or when
    the tolerance is below the margin.
    """
    if tolerance < margin:
        raise UsageError(f"--tolerance {tolerance:g} is below --margin {margin:g}: what is overlooked cannot be shown")
    different = list_differences(base, new)
    if different and not across_machines:
        raise UsageError(f"unlike machines: {'; '.join(different)}; add --across-machines to compare all the same")
    old, now = pair_with_baselines(base.records), pair_with_baselines(new.records)
    both = [name for name in old if name in now]
    if not both:
        raise UsageError(f"{base.name} and {new.name} share no case; runs of one suite can be compared")
    timed = [_measure(name, old[name], now[name], by, drift) for name in both if old[name].timed and now[name].timed]
    changes = _list_changes(timed, confidence, margin, tolerance)
    changes += [Change(name=n, kind="broken", reason=now[n].failure) for n in both if old[n].ok and not now[n].ok]
    changes += [Change(name=n, kind="fixed", reason=old[n].failure) for n in both if now[n].ok and not old[n].ok]
    return Comparison(
        base=base.name,
        new=new.name,
        by=by,
        confidence=confidence,
        margin=margin,
        tolerance=tolerance,
        drift=drift,
        unlike=different,
        itself=len(both) == len(old) == len(now) and all(old[n].record == now[n].record for n in both),
        changes=tuple(changes),
        only_in_base=tuple(n for n in old if n not in now),
        only_in_new=tuple(n for n in now if n not in old),
        failing=tuple(n for n in both if not old[n].ok and not now[n].ok),
    )


def list_differences(base: ImportedRun, new: ImportedRun) -> tuple[str, ...]:
    """What is not the same in all sessions of both runs; a run that does not say counts as ``unknown``."""
    differences = []
    for name in MACHINE_FIELDS:
        sides = [sorted({str(_format_difference(e, name)) for e in run.environments or [{}]}) for run in (base, new)]
        if len({value for side in sides for value in side}) > 1 or not (base.environments and new.environments):
            here, there = (" and ".join(side) for side in sides)
            differences.append(f"{name.replace('_', ' ')} {here} in {base.name}, {there} in {new.name}")
    return tuple(differences)


def _format_difference(environment: Mapping[str, Any], name: str) -> Any:
    value = environment.get(name)
    return "unknown" if value is None else value


# -- verdicts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TimedCase:
    """A case that both runs timed: how much they differ, and why that says nothing, if so."""

    name: str
    old: PairedRecord
    new: PairedRecord
    by: By
    mean: Mean
    spoilt: str | None


def _measure(name: str, old: PairedRecord, new: PairedRecord, by: By, drift: float) -> _TimedCase:
    used, mean = measure_difference(old, new, by, drift)
    return _TimedCase(
        name, old, new, used, mean, describe_disturbance(old, new, used) if mean.degrees else LONE_ROUND_ERROR
    )


def _list_changes(timed: Sequence[_TimedCase], confidence: float, margin: float, tolerance: float) -> list[Change]:
    """The verdicts, which hold together.

    A difference that counts is called at the risk that Holm's procedure allows it; all else is held against its
    interval at the risk that each case would have if none were called.
    """
    judged = [case for case in timed if case.spoilt is None]
    count = max(1, len(judged))
    each = (1 - confidence) / count
    steps = adjust_holm([case.mean.p_value for case in judged], 1 - confidence)
    risks = {
        case.name: risk if abs(case.mean.value) > math.log1p(margin) else each
        for case, risk in zip(judged, steps, strict=True)
    }
    changes = []
    for case in timed:
        fields = _describe(case, margin)
        if ends := case.mean.interval(1 - risks.get(case.name, each)):
            fields |= {"low": _exp(ends[0]), "high": _exp(ends[1])}
        if case.spoilt is None:
            fields |= _classify(case.mean, fields["low"], fields["high"], confidence, margin, tolerance)
        else:
            fields |= {"kind": "inconclusive", "reason": case.spoilt, "blind": True}
        changes.append(Change(**fields))
    return changes


def _describe(case: _TimedCase, margin: float) -> dict[str, Any]:
    before, after = case.old.record.row, case.new.record.row
    fields: dict[str, Any] = {"name": case.name, "by": case.by, "ratio": _exp(case.mean.value)}
    fields |= {"base_ms": before.latency_ms, "new_ms": after.latency_ms}
    if speedups := compare_speedups(case.old, case.new):
        fields |= {"base_speedup": speedups[0], "new_speedup": speedups[1]}
    peaks = before.peak_memory_bytes, after.peak_memory_bytes
    if peaks[0] and peaks[1] and abs(math.log(peaks[0] / peaks[1])) > math.log1p(margin):
        fields |= {"base_bytes": peaks[0], "new_bytes": peaks[1]}
    return fields


def _classify(
    mean: Mean, low: float, high: float, confidence: float, margin: float, tolerance: float
) -> dict[str, Any]:
    """The verdict of an interval, the smallest difference that it could show, and what slowdown it rules out."""
    kind = classify_ratio(low, high, margin=margin, tolerance=tolerance)
    least = math.log(high / low) / 2 + quantile_t(MIN_FOUND_SHARE, mean.degrees) * mean.error
    fields: dict[str, Any] = {"kind": kind, "least": _exp(least) - 1}
    if kind == "inconclusive" and fields["least"] > tolerance:
        return fields | {"blind": True}
    slower = quantile_t(confidence, mean.degrees) * mean.error - mean.value
    return fields | {"slower_by_at_most": max(0.0, _exp(slower) - 1)}


def _exp(x: float) -> float:
    return math.exp(max(-700.0, min(700.0, x)))  # two wild rounds may claim more than a float holds
