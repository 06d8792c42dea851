"""Which mechanism to take: those that keep what a question asks, the fastest first, each with the rows that say so.

Speedups are ranked: each was paired with the same baseline in the same rounds, so that a machine's slow hour does not
decide. Only where the baseline was not timed times are. Whose interval overlaps with that of the first of a rank
shares it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import units
from ...errors import UsageError, unknown
from ...results.stats import Estimate
from .. import losses, select
from ..gather import Frame
from .quality import Found, Quality, find_error
from .questions import SHAPE, Question
from .timing import Curve, Taken, split_places

SAFE = 1.1  # what is interpolated may take so much more than its interval says, before it may break a bound


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
    """The answer. place: what its times hold for; None where nothing was timed there. left_out: why, by mechanism."""

    question: Question
    place: Mapping[str, Any] | None
    choices: tuple[Choice, ...]
    left_out: Mapping[str, str]
    machines: tuple[str, ...]

    @property
    def best(self) -> tuple[Choice, ...]:
        return tuple(choice for choice in self.choices if choice.rank == 1)


@dataclass(frozen=True)
class Known:
    """Rows made ready for many questions."""

    places: tuple[tuple[Mapping[str, Any], tuple[Curve, ...]], ...]
    quality: Quality

    @classmethod
    def of(cls, rows: Frame) -> Known:
        """rows: as `gather` gives them."""
        rows = losses.add_losses(select.add_labels(rows))
        places = tuple((place, tuple(curves)) for place, curves in split_places(rows))
        return cls(places, Quality.of(rows))


def recommend(known: Known, question: Question, *, here: str | None = None) -> Recommendation:
    """The answer to a question. here: this machine's name, whose rows come before others'.

    Raises `UsageError` for a machine of which no row is, and for a task that nobody learned.
    """
    known.quality.check(question)
    found = [(place, curves) for place, curves in known.places if _fits(place, question)]
    machines = tuple(dict.fromkeys(str(place["machine"]) for place, _ in found))
    every = sorted({str(place["machine"]) for place, _ in known.places})
    if question.machine and not any(question.machine in name for name in every):
        raise unknown("machine", question.machine, every)
    wanted = [at for at in machines if question.machine in at] if question.machine else list(machines)
    if here in wanted:
        wanted = [here]
    answers = [
        _answer(known, question, place, curves, machines) for place, curves in found if place["machine"] in wanted
    ]
    if not answers:
        return Recommendation(question, None, (), {}, machines)
    # of several places the one of which most is known
    return max(answers, key=lambda answer: (len(answer.choices), -len(answer.left_out)))


def _fits(place: Mapping[str, Any], question: Question) -> bool:
    """Whether times of a place answer a question: all that it fixes is so."""
    if place["mode"] != question.mode or place["device"] != question.device:
        return False
    if question.directed is not None and place["causal"] != question.directed:
        return False
    return all(getattr(question, name) in (None, place[name]) for name in SHAPE)


def _answer(
    known: Known, question: Question, place: Mapping[str, Any], curves: Sequence[Curve], machines: tuple[str, ...]
) -> Recommendation:
    kept: list[tuple[Curve, Taken, tuple[Found, ...]]] = []
    left_out: dict[str, str] = {}
    for curve in curves:
        if not _has_heads(curve, place, question):
            continue
        taken = curve.take(question.seq_len)
        found, why = known.quality.judge(curve, question)
        if isinstance(taken, str):
            why = why or taken
        elif not why:
            why = _exceed(taken, question)
        if why or isinstance(taken, str):
            left_out[curve.label] = why
        else:
            kept.append((curve, taken, tuple(found)))
    return Recommendation(question, place, tuple(_rank(kept, question)), left_out, machines)


def _has_heads(curve: Curve, place: Mapping[str, Any], question: Question) -> bool:
    """Whether its key-value heads are the model's: as many as heads, if a question does not say."""
    if question.kv_heads is not None:
        return curve.kv_heads == question.kv_heads
    trained = bool(question.min_accuracy) or not question.judged  # heads may be shared by what is yet to be trained
    return trained or curve.kv_heads in (None, place["heads"])


def _exceed(taken: Taken, question: Question) -> str:
    """Which bound on memory or time is not surely kept."""
    for bound, found, write in (
        (question.memory, taken.memory, units.size),
        (question.latency_ms, taken.latency, units.duration),
    ):
        what = "memory" if found is taken.memory else "time"
        if bound is None:
            continue
        if found is None:
            return f"{what} not measured"
        most = found.high if found.high is not None else found.value
        if most * (SAFE if taken.how == "interpolated" and write is units.duration else 1.0) > bound:
            return f"{what} {_tell_range(found, write)}" + (", interpolated" if taken.how == "interpolated" else "")
    return ""


def _tell_range(found: Estimate, write: Any) -> str:
    said = write(found.value)
    return said if found.high is None else f"{said} ({write(found.low)}{units.TO}{write(found.high)})"


def _rank(kept: Sequence[tuple[Curve, Taken, tuple[Found, ...]]], question: Question) -> list[Choice]:
    """The fastest first; who is not surely slower than the first of a rank shares it. By speedups, or where somebody
    was not timed beside the baseline by times."""
    paired = all(taken.speedup is not None for _, taken, _ in kept)
    ordered = sorted(((_pace(taken, paired), *one) for one in kept for taken in one[1:2]), key=lambda one: one[0].value)
    found: list[Choice] = []
    rank, most = 0, 0.0
    for place, (pace, curve, taken, quality) in enumerate(ordered, 1):
        if rank == 0 or (pace.low if pace.low is not None else pace.value) > most:
            rank, most = place, pace.high if pace.high is not None else pace.value
        error = find_error(curve, question)
        loss = (
            f"{error.text}, on {error.on}" if error and error.value else error.text if error else "error not measured"
        )
        found.append(Choice(rank, curve.label, taken, quality, loss))
    return found


def _pace(taken: Taken, paired: bool) -> Estimate:
    """What is ranked, the less the better: the time, in those of the baseline where all have that."""
    if not paired or taken.speedup is None:
        return taken.latency
    value, low, high = (taken.speedup.value, taken.speedup.low, taken.speedup.high)
    return Estimate(1 / value, 1 / high if high else None, 1 / low if low else None)


def check_rows(known: Known) -> None:
    """`UsageError` where no row times anything."""
    if not known.places:
        raise UsageError(
            "recommend: these runs time nothing; give runs of suites such as quickstart, promises or decode"
        )
