"""Which mechanism to take: those that keep what a question asks, the fastest first, each with the rows that say so.

Times are compared as ratios of what is known from the same lengths of one machine (`pooling`), so that a slow hour does
not decide. Who cannot be told apart from the first of a rank shares it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ... import units
from ...errors import UsageError, unknown
from ...results.differences import MOSTLY
from ...results.stats import Estimate
from .. import losses, select
from ..gather import Frame
from .pooling import HOURS, QUANTILE
from .quality import Found, Quality, find_error
from .questions import SHAPE, Question
from .timing import Curve, Taken, split_places

FEWEST = 2  # mechanisms that must be timed on this machine before it is asked


@dataclass(frozen=True)
class Choice:
    """A mechanism that keeps all that is asked. rank: from 1, shared by what cannot be told apart."""

    rank: int
    label: str
    taken: Taken
    quality: tuple[Found, ...]
    loss: str


@dataclass(frozen=True)
class Recommendation:
    """The answer. place: what its times hold for; None where nothing was timed there. left_out: why, by mechanism.
    machines: those of which times are at such places. timed, measured: how many
    mechanisms' times are known, and by a row at that very length, whatever they lose. here:
    this machine's name, where it was asked for."""

    question: Question
    place: Mapping[str, Any] | None
    choices: tuple[Choice, ...]
    left_out: Mapping[str, str]
    machines: tuple[str, ...]
    timed: int = 0
    measured: int = 0
    here: str | None = None

    @property
    def best(self) -> tuple[Choice, ...]:
        return tuple(choice for choice in self.choices if choice.rank == 1)


@dataclass(frozen=True)
class Known:
    """Rows made ready for many questions. disturbed: how many rows timed something while other programs ran in most
    of their rounds; these say nothing of places."""

    places: tuple[tuple[Mapping[str, Any], tuple[Curve, ...]], ...]
    quality: Quality
    disturbed: int = 0

    @classmethod
    def of(cls, rows: Frame) -> Known:
        """rows: as `gather` gives them, or as `efficient_attn.load` does."""
        for column in {"baseline_kv_heads", "mean_value_error"} - {*rows.columns}:
            rows = rows.assign(**{column: float("nan")})
        timed = rows[rows["relative_error"].notna() | (rows["task"] == "speed")]
        places = split_places(losses.add_losses(select.add_labels(timed)))
        disturbed = int((timed["contaminated"].fillna(0) > MOSTLY * timed["rounds"].fillna(1)).sum())
        return cls(tuple((place, tuple(curves)) for place, curves in places), Quality.of(rows), disturbed)


def recommend(known: Known, question: Question, *, here: str | None = None) -> Recommendation:
    """The answer to a question. here: this machine's name, whose rows come before others' where they time two
    mechanisms or more; else those of the machine of which most is known are taken.

    Raises `UsageError` for a machine of which no row is, and for a task that nobody learned.
    """
    known.quality.check(question)
    every = sorted({str(place["machine"]) for place, _ in known.places})
    if question.machine and not any(question.machine in name for name in every):
        raise unknown("machine", question.machine, every)
    found = [(place, curves) for place, curves in known.places if _fits(place, question)]
    machines = tuple(dict.fromkeys(str(place["machine"]) for place, _ in found))
    answers = [_answer(known, question, place, curves, machines) for place, curves in found]
    answers = [a for a in answers if a.place and (question.machine or "") in str(a.place["machine"])]
    own = [a for a in answers if a.place and a.place["machine"] == here and a.timed >= FEWEST]
    # of several places the one of which most is known: measured first, else between lengths
    best = max(own or answers, key=lambda a: (a.measured, a.timed, len(a.choices)), default=None)
    return replace(best, here=here) if best else Recommendation(question, None, (), {}, machines, here=here)


def _fits(place: Mapping[str, Any], question: Question) -> bool:
    """Whether times of a place answer a question: all that it fixes is so."""
    if place["mode"] != question.mode or place["device"] != question.device:
        return False
    if question.directed is not None and place["causal"] != question.directed:
        return False
    if place["compiled"] or place["cuda_graph"] or place["cache"] not in (None, "warm"):
        return False  # what nobody can ask for must not be compared with the rest
    return all(getattr(question, name) in (None, place[name]) for name in SHAPE)


def _answer(
    known: Known, question: Question, place: Mapping[str, Any], curves: Sequence[Curve], machines: tuple[str, ...]
) -> Recommendation:
    kept: list[tuple[Curve, Taken, tuple[Found, ...]]] = []
    left_out: dict[str, str] = {}
    timed = measured = 0
    for curve in curves:
        if not _has_heads(curve, place, question):
            continue
        taken = curve.take(question.seq_len)
        timed += not isinstance(taken, str)
        measured += not isinstance(taken, str) and taken.how == "measured"
        found, why = known.quality.judge(curve, question)
        if isinstance(taken, str):
            why = why or taken
        elif not why:
            why = _exceed(taken, question)
        if why or isinstance(taken, str):
            left_out[curve.label] = why
        else:
            kept.append((curve, taken, tuple(found)))
    return Recommendation(question, place, tuple(_rank(kept, question)), left_out, machines, timed, measured)


def _has_heads(curve: Curve, place: Mapping[str, Any], question: Question) -> bool:
    """Whether its key-value heads are the model's: as many as heads, if a question does not say."""
    if question.kv_heads is not None:
        return curve.kv_heads == question.kv_heads
    trained = bool(question.min_accuracy) or not question.judged  # heads may be shared by what is yet to be trained
    return trained or curve.kv_heads in (None, place["heads"])


def _exceed(taken: Taken, question: Question) -> str:
    """Which bound on memory or time is not surely kept: not by all of the interval."""
    held = taken.state if question.mode == "decode" else taken.memory
    for what, bound, found, write in (
        ("memory" if question.mode != "decode" else "state", question.memory, held, units.size),
        ("time", question.latency_ms, taken.latency, units.duration),
    ):
        if bound is None:
            continue
        if found is None:
            return f"{what} not measured"
        if (found.high if found.high is not None else found.value) > bound:
            return f"{what} {_tell_range(found, write)}" + (", interpolated" if taken.how == "interpolated" else "")
    return ""


def _tell_range(found: Estimate, write: Any) -> str:
    said = write(found.value)
    return said if found.high is None else f"{said} ({write(found.low)}{units.TO}{write(found.high)})"


def _rank(kept: Sequence[tuple[Curve, Taken, tuple[Found, ...]]], question: Question) -> list[Choice]:
    """The fastest first. Who cannot be told apart from the first of a rank shares it."""
    found: list[Choice] = []
    first: Taken | None = None
    rank = 0
    # rounded, so that equal times stand by name whatever order the rows came in
    ordered = sorted(kept, key=lambda one: (float(f"{one[1].latency.value:.9g}"), one[0].label))
    for place, (curve, taken, quality) in enumerate(ordered, 1):
        if first is None or is_slower(taken, first):
            rank, first = place, taken
        error = find_error(curve, question)
        loss = "error not measured" if error is None else error.text
        if error is not None and error.value:
            loss = "; ".join(filter(None, (f"{loss}, on {error.on}", error.tell_apart(question))))
        found.append(Choice(rank, curve.label, taken, quality, loss))
    return found


def is_slower(one: Taken, other: Taken) -> bool:
    """Whether one surely takes longer: the 95% interval of the ratio of their times leaves out 1.

    Times that are known from the same lengths share the machine's hours there, so that their ratio is surer than they.
    """
    apart = math.hypot(one.apart, other.apart)
    if one.between != other.between:  # then their hours are not the same
        apart = math.hypot(apart, QUANTILE * math.sqrt(2) * HOURS)
    return math.log(one.latency.value / other.latency.value) > apart


def check_rows(known: Known) -> None:
    """`UsageError` where no row times anything."""
    if not known.places:
        told = f"all {known.disturbed} timed rows were disturbed by other programs; measure on a quiet machine"
        if not known.disturbed:
            told = "these runs time nothing; give runs of suites such as quickstart, promises or decode"
        raise UsageError(f"recommend: {told}")
