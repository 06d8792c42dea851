"""Data of the front page's picker: one answer for each use, direction, machine and length.

A bound on the error is satisfied only by exact mechanisms and by errors measured in the same direction, at half the
length or more; those of one answer come from one model and length.

Answers come from benchmark groups at measured lengths. At powers of two between them, times are interpolated as in
`recommend`, and marked as such.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import units
from ...results.stats import Estimate
from .. import approximation_errors, formatting
from ..answers.cost_curves import CostAtLength, CostCurve
from ..answers.pooled_times import GROUP_SPREAD, Z_95
from ..comparable_quality import MeasuredQuality, QualityChoice, canonicalise_spec
from .group_results import USE_BY_MODE, GroupResult, TimedMechanism

MIN_MECHANISMS = 3  # mechanisms of an answer
MAX_SHOWN = 3  # mechanisms shown for a question
USE_WORDS = {"train": "training step", "prompt": "reading a prompt", "decode": "decoding a token"}
QUALITIES = (("", "any"), ("0.0001", "exact"), ("0.1", "error at most 0.1"), ("0.5", "error at most 0.5"))
APPROXIMATELY = "\u2248 "  # before an interpolated time


@dataclass(frozen=True)
class PickerCase:
    """A mechanism in an answer. error: None if it is not verified at the answer's length, and its description.
    half_width: half the 95% interval of log time relative to the others, None if unknown. source_lengths: the lengths
    between which it is interpolated."""

    label: str
    variant: str
    ms: float
    half_width: float | None
    time: str
    speedup: str
    error: tuple[float | None, str]
    memory: str
    source_lengths: str = ""


@dataclass(frozen=True)
class PickerAnswer:
    """The mechanisms at one configuration and length, fastest first."""

    config_text: str
    float32: bool
    cases: tuple[PickerCase, ...]

    @property
    def priority(self) -> tuple[int, bool, str]:
        """Prefer most mechanisms with a verified error, then float32."""
        return sum(case.error[0] is not None for case in self.cases), self.float32, self.config_text


_AnswerKey = tuple[str, bool, str]  # a use, whether it is causal, a machine
_ConfigCurves = tuple[Mapping[str, Any], Sequence[CostCurve]]


def make_picker(
    groups: Iterable[GroupResult],
    curves_by_config: Iterable[_ConfigCurves],
    errors: MeasuredQuality,
    links: Mapping[str, str],
    cpus: Mapping[str, str],
) -> dict[str, Any]:
    """Return the best answer to each question; strings are stored once, in ``texts``.

    curves_by_config: from `cost_curves.split_by_config`. errors: from `approximation_errors.list_errors`. links: pages
    by mechanism. In the result, ``spread`` is the additional half-width of the log ratio of two times from different
    lengths.
    """
    answers: dict[_AnswerKey, dict[int, PickerAnswer]] = defaultdict(dict)
    for group in groups:
        if group.use in USE_WORDS and len(group.cases) >= MIN_MECHANISMS:
            key = group.use, bool(group.row.causal), str(group.row.machine)
            _keep_better(answers[key], group.length, _make_measured_answer(group, errors))
    _add_interpolated(answers, curves_by_config, errors, cpus)
    texts: dict[str, int] = {}

    def intern_text(text: str) -> int:
        return texts.setdefault(text, len(texts))

    entries = []
    for (use, causal, machine), answers_by_length in sorted(answers.items()):
        for length, answer in sorted(answers_by_length.items()):
            key = use, int(causal), intern_text(machine), length, intern_text(answer.config_text)
            entries.append([*key, *_as_lists(answer, intern_text, links)])
    return {"answers": entries, "texts": list(texts), "spread": round(Z_95 * math.sqrt(2) * GROUP_SPREAD, 4)}


def _keep_better(answers: dict[int, PickerAnswer], length: int, answer: PickerAnswer) -> None:
    answers[length] = max(answers.get(length, answer), answer, key=lambda answer: answer.priority)


def _as_lists(answer: PickerAnswer, intern_text: Any, links: Mapping[str, str]) -> Iterator[Any]:
    """Yield the number of mechanisms per quality bound, the number without a verified error, and the cases to show."""
    qualifying = [[i for i, case in enumerate(answer.cases) if _meets_quality(case, bound)] for bound, _ in QUALITIES]
    shown_indices = sorted({i for indices in qualifying for i in indices[:MAX_SHOWN]})
    yield [len(indices) for indices in qualifying]
    yield sum(case.error[0] is None for case in answer.cases)
    yield [_as_list(answer.cases[i], intern_text, links) for i in shown_indices]


def _meets_quality(case: PickerCase, bound: str) -> bool:
    error, _ = case.error
    return not bound or (error is not None and error <= float(bound))


def _as_list(case: PickerCase, intern_text: Any, links: Mapping[str, str]) -> list[Any]:
    """Label, link, time, half-width, texts of time and speedup, error; texts of error, memory and source lengths."""
    error, error_text = case.error
    error = None if error is None else float(f"{error:.4g}")
    half_width = None if case.half_width is None else round(case.half_width, 4)
    start = map(intern_text, (case.label, links.get(case.variant.partition(":")[0], "")))
    times = map(intern_text, (case.time, case.speedup))
    end = map(intern_text, (error_text, case.memory, case.source_lengths))
    return [*start, float(f"{case.ms:.6g}"), half_width, *times, error, *end]


# -- measured ------------------------------------------------------------------------------------------------------


def _make_measured_answer(group: GroupResult, errors: MeasuredQuality) -> PickerAnswer:
    specs = {canonicalise_spec(entry.row.variant) for entry in group.cases}
    choice = errors.choose(specs, length=group.length, causal=bool(group.row.causal), dtype=group.row.dtype)
    cases = tuple(_make_measured_case(entry, choice) for entry in group.cases if entry.row.latency_ms)
    return PickerAnswer(group.config_text, group.row.dtype == "float32", cases)


def _make_measured_case(entry: TimedMechanism, choice: QualityChoice) -> PickerCase:
    row, low, high = entry.row, entry.row.latency_ms_low, entry.row.latency_ms_high
    return PickerCase(
        label=entry.label,
        variant=row.variant,
        ms=row.latency_ms or 0.0,
        half_width=math.log(high / low) / 2 if low and high else None,
        time=entry.format_time(),
        speedup=entry.format_speedup(),
        error=approximation_errors.judge_error(row.variant, row.kv_heads, choice),
        memory=units.size(entry.memory),
    )


# -- between measured lengths --------------------------------------------------------------------------------------


def _add_interpolated(
    answers: Mapping[_AnswerKey, dict[int, PickerAnswer]],
    curves_by_config: Iterable[_ConfigCurves],
    errors: MeasuredQuality,
    cpus: Mapping[str, str],
) -> None:
    """Add interpolated answers at the powers of two within the measured lengths of each key."""
    gaps = {key: _list_gaps(answers_by_length) for key, answers_by_length in answers.items()}
    for config, curves in curves_by_config:
        key = USE_BY_MODE.get(str(config["mode"]), ""), bool(config["causal"]), str(config["machine"])
        usual = not config["compiled"] and not config["cuda_graph"] and config["cache"] in (None, "warm")
        for length in gaps.get(key, ()) if usual else ():
            cases = _make_interpolated_cases(config, curves, errors, length)
            if len(cases) >= MIN_MECHANISMS:
                config_text = formatting.format_config(dict(config), dict(cpus))
                _keep_better(answers[key], length, PickerAnswer(config_text, config["dtype"] == "float32", cases))


def _list_gaps(answers: Mapping[int, PickerAnswer]) -> list[int]:
    low, high = min(answers), max(answers)
    powers = (2**exponent for exponent in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1))
    return [length for length in powers if length not in answers]


def _make_interpolated_cases(
    config: Mapping[str, Any], curves: Sequence[CostCurve], errors: MeasuredQuality, length: int
) -> tuple[PickerCase, ...]:
    """All mechanisms with an estimate at this length, fastest first."""
    estimates = [(curve, cost) for curve in curves if not isinstance(cost := curve.estimate(length), str)]
    counts = Counter(curve.label for curve, _ in estimates)
    specs = {canonicalise_spec(str(curve.row["variant"])) for curve, _ in estimates}
    choice = errors.choose(specs, length=length, causal=bool(config["causal"]), dtype=config["dtype"])
    cases = (_make_interpolated_case(config, curve, cost, choice, counts[curve.label] > 1) for curve, cost in estimates)
    return tuple(sorted(cases, key=lambda case: (case.ms, case.label)))


def _make_interpolated_case(
    config: Mapping[str, Any], curve: CostCurve, cost: CostAtLength, choice: QualityChoice, label_is_shared: bool
) -> PickerCase:
    variant, time = str(curve.row["variant"]), cost.latency
    is_baseline = (curve.label, curve.kv_heads) == (config["baseline"], config["baseline_kv_heads"])
    speedup = Estimate(1.0) if is_baseline else cost.speedup  # exactly 1 at any length
    prefix = "" if cost.between is None else APPROXIMATELY
    return PickerCase(
        label=f"{curve.label} (kv_heads={curve.kv_heads})" if label_is_shared else curve.label,
        variant=variant,
        ms=time.value,
        half_width=cost.half_width,
        time=prefix + units.duration(*time),
        speedup=("" if is_baseline else prefix) + units.ratio(*speedup) if speedup else units.EMPTY,
        error=approximation_errors.judge_error(variant, curve.kv_heads, choice),
        memory=_format_bytes(cost.state if config["mode"] == "decode" else cost.memory),
        source_lengths=formatting.join_words(map(units.short_length, cost.between)) if cost.between else "",
    )


def _format_bytes(estimate: Estimate | None) -> str:
    if estimate is None:
        return units.EMPTY
    value, low, high = map(units.size, estimate)
    interval = f" ({low}{units.INTERVAL_DASH}{high})" if low != high else ""
    return value if estimate.low is None else f"{APPROXIMATELY}{value}{interval}"
