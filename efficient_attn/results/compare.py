"""Compare two runs case by case: which cases are faster, slower, the same, inconclusive, broken or fixed, and which
differences can be ruled out.

Ratios are time in BASE / time in NEW: above 1 NEW is faster. Verdicts have a family-wise confidence.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UsageError
from .differences import (
    TOO_FEW_ROUNDS,
    Difference,
    PairedRecord,
    Quantity,
    measure_difference,
    pair_with_baselines,
    share_baseline,
)
from .exchange import MACHINE_FIELDS, ImportedRun
from .stats import MARGIN, RatioVerdict, adjust_holm, classify_ratio, t_quantile

ChangeKind = RatioVerdict | Literal["broken", "fixed"]
# most important first
CHANGE_KINDS: tuple[ChangeKind, ...] = ("broken", "slower", "faster", "fixed", "inconclusive", "same")
DRIFT = 0.02  # relative standard deviation of one measurement between two runs on one machine
TOLERANCE = 0.1  # smaller differences count as the same; cases that cannot detect this one are blind
MAX_DETECTABLE_RATIO = 10.0  # where only larger differences could be detected, there were too few rounds
DETECTION_POWER = 0.95  # the probability of detecting a difference of the smallest detectable size


@dataclass(frozen=True, kw_only=True)
class Change:
    """The result of one case. by: what was compared, the speedup over the group's baseline or the latency.

    base_speedup, new_speedup: over the same baseline, if there is one. least: the smallest detectable difference (0.07:
    7%), or None. slower_by_at_most: the largest slowdown that is not ruled out. blind: no difference was detected, and
    one of the tolerance could have been missed. base_bytes, new_bytes: peak memory, if it differs by more than the
    margin. pairs: the number of paired process runs, if those of the two runs alternated.
    """

    name: str
    kind: ChangeKind
    reason: str | None = None
    by: Quantity | None = None
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
    pairs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of two runs. unlike: differences between their machines, as text. itself: whether both are the
    same measurements. failing: cases that are not ok in either run."""

    base: str
    new: str
    by: Quantity
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
    def counts(self) -> dict[ChangeKind, int]:
        """The number of changes by kind."""
        counts = Counter(change.kind for change in self.changes)
        return {kind: counts[kind] for kind in CHANGE_KINDS}

    @property
    def regressed(self) -> bool:
        """Whether any case became slower or broke."""
        return any(change.kind in ("slower", "broken") for change in self.changes)

    @property
    def blind(self) -> tuple[str, ...]:
        """The cases in which a relevant change would not have been detected."""
        return tuple(change.name for change in self.changes if change.blind)

    @property
    def slower_by_at_most(self) -> float | None:
        """The largest slowdown that is not ruled out, over all cases that are not blind; None if all are.

        At the level ``confidence``, without a correction for their number: the largest bound is wrong only if that of
        the slowest case is.
        """
        return max((c.slower_by_at_most for c in self.changes if c.slower_by_at_most is not None), default=None)


def compare(
    base: ImportedRun,
    new: ImportedRun,
    *,
    by: Quantity = "speedup",
    confidence: float = 0.95,
    margin: float = MARGIN,
    tolerance: float = TOLERANCE,
    drift: float = DRIFT,
    across_machines: bool = False,
) -> Comparison:
    """Compare every case that both runs have. ``confidence`` is the family-wise confidence (Holm).

    Raises `UsageError` if the runs share no case, if their machines differ and ``across_machines`` is not set, or if
    the tolerance is below the margin.
    """
    if tolerance < margin:
        raise UsageError(
            f"--tolerance {tolerance:g} is below --margin {margin:g}: differences below the margin are ignored"
        )
    unlike = _list_machine_differences(base, new)
    if unlike and not across_machines:
        raise UsageError(f"different machines: {'; '.join(unlike)}; add --across-machines to compare anyway")
    base_cases, new_cases = pair_with_baselines(base.records), pair_with_baselines(new.records)
    shared_names = [name for name in base_cases if name in new_cases]
    if not shared_names:
        raise UsageError(f"{base.name} and {new.name} share no case; runs of one suite can be compared")
    differences = {
        name: measure_difference(base_cases[name], new_cases[name], by, drift)
        for name in shared_names
        if base_cases[name].timed and new_cases[name].timed
    }
    risks = _assign_risks(differences, 1 - confidence, margin)
    changes = [
        Change(
            **_describe(name, base_cases[name], new_cases[name], difference, margin),
            **_judge(difference, risks[name], confidence, margin, tolerance),
        )
        for name, difference in differences.items()
    ]
    for name in shared_names:
        if base_cases[name].ok != new_cases[name].ok:
            broken = base_cases[name].ok
            failed = (new_cases if broken else base_cases)[name]
            changes.append(Change(name=name, kind="broken" if broken else "fixed", reason=failed.failure))
    return Comparison(
        base=base.name,
        new=new.name,
        by=by,
        confidence=confidence,
        margin=margin,
        tolerance=tolerance,
        drift=drift,
        unlike=unlike,
        itself=len(shared_names) == len(base_cases) == len(new_cases)
        and all(base_cases[n].record == new_cases[n].record for n in shared_names),
        changes=tuple(changes),
        only_in_base=tuple(n for n in base_cases if n not in new_cases),
        only_in_new=tuple(n for n in new_cases if n not in base_cases),
        failing=tuple(n for n in shared_names if not base_cases[n].ok and not new_cases[n].ok),
    )


def _list_machine_differences(base: ImportedRun, new: ImportedRun) -> tuple[str, ...]:
    """What differs between any sessions of the two runs; a missing value counts as ``unknown``."""
    differences = []
    for name in MACHINE_FIELDS:
        values = ([e.get(name) for e in run.environments or [{}]] for run in (base, new))
        texts = [sorted({"unknown" if value is None else str(value) for value in side}) for side in values]
        if len({value for side in texts for value in side}) > 1 or not (base.environments and new.environments):
            base_text, new_text = (" and ".join(side) for side in texts)
            differences.append(f"{name.replace('_', ' ')} {base_text} in {base.name}, {new_text} in {new.name}")
    return tuple(differences)


def _assign_risks(differences: Mapping[str, Difference], family_risk: float, margin: float) -> dict[str, float]:
    """The risk of each case's interval: that of Holm's procedure where the difference exceeds the margin, otherwise the
    risk of the family divided by the number of cases."""
    means = {name: difference.mean for name, difference in differences.items() if difference.problem is None}
    risks = dict.fromkeys(differences, family_risk / max(1, len(means)))
    holm_risks = adjust_holm([mean.p_value for mean in means.values()], family_risk)
    for (name, mean), risk in zip(means.items(), holm_risks, strict=True):
        if abs(mean.value) > math.log1p(margin):
            risks[name] = risk
    return risks


def _describe(name: str, old: PairedRecord, new: PairedRecord, difference: Difference, margin: float) -> dict[str, Any]:
    before, after = old.record.row, new.record.row
    fields: dict[str, Any] = {"name": name, "by": difference.by, "ratio": _clipped_exp(difference.mean.value)}
    fields |= {"base_ms": before.latency_ms, "new_ms": after.latency_ms, "pairs": difference.pairs}
    if None not in (before.speedup, after.speedup) and share_baseline(old, new):
        fields |= {"base_speedup": before.speedup, "new_speedup": after.speedup}
    peaks = before.peak_memory_bytes, after.peak_memory_bytes
    if peaks[0] and peaks[1] and abs(math.log(peaks[0] / peaks[1])) > math.log1p(margin):
        fields |= {"base_bytes": peaks[0], "new_bytes": peaks[1]}
    return fields


def _judge(difference: Difference, risk: float, confidence: float, margin: float, tolerance: float) -> dict[str, Any]:
    """The interval and verdict of a difference, the smallest detectable one, and the slowdown that is ruled out."""
    mean = difference.mean
    low, high = map(_clipped_exp, mean.interval(1 - risk) or (0.0, 0.0))
    detectable = math.inf
    if mean.degrees:
        detectable = math.log(high / low) / 2 + t_quantile(DETECTION_POWER, mean.degrees) * mean.error
    fields: dict[str, Any] = {"low": low, "high": high} if detectable <= math.log(MAX_DETECTABLE_RATIO) else {}
    if difference.problem:
        return fields | {"kind": "inconclusive", "reason": difference.problem, "blind": True}
    kind = classify_ratio(low, high, margin=margin, tolerance=tolerance)
    if kind == "inconclusive" and not fields:
        return {"kind": kind, "reason": TOO_FEW_ROUNDS, "blind": True}
    fields = {"low": low, "high": high, "kind": kind, "least": _clipped_exp(detectable) - 1}
    if kind == "inconclusive" and fields["least"] > tolerance:
        return fields | {"blind": True}
    slowdown = t_quantile(confidence, mean.degrees) * mean.error - mean.value
    return fields | {"slower_by_at_most": max(0.0, _clipped_exp(slowdown) - 1)}


def _clipped_exp(x: float) -> float:
    """exp(x) without overflow, which two rounds with extreme values would cause."""
    return math.exp(max(-700.0, min(700.0, x)))
