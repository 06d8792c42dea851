"""What the picker knows, as plain data for the page: one answer for each use, direction, machine and length.

Where a length was measured the answer is a cell. Between measured lengths, at powers of two, times are interpolated as
`recommend` does it, and say so.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import units
from ...results.stats import Estimate
from .. import losses, words
from ..answers.pooling import HOURS, QUANTILE
from ..answers.timing import Curve, Taken
from .cells import USES as USE_OF
from .cells import Cell, Timed

USES = ("train", "prompt", "decode")
FEWEST = 3  # mechanisms: of two there is little to pick
SHOWN = 3  # rows of an answer
USE_WORDS = {"train": "training step", "prompt": "reading a prompt", "decode": "decoding a token"}
QUALITIES = (("", "any"), ("0.0001", "exact"), ("0.1", "error at most 0.1"), ("0.5", "error at most 0.5"))
ABOUT = "\u2248 "  # before a time that nobody measured


@dataclass(frozen=True)
class Case:
    """A mechanism in an answer, in words. apart: half the 95% interval of the time's logarithm beside the others', None
    where it is not known. between: the lengths of what is interpolated."""

    label: str
    variant: str
    ms: float
    apart: float | None
    time: str
    speedup: str
    error: float | None
    loss: str
    memory: str
    between: str = ""


@dataclass(frozen=True)
class Answer:
    """The mechanisms at one place and length, the fastest first. float32: full precision."""

    place: str
    float32: bool
    cases: tuple[Case, ...]

    @property
    def weight(self) -> tuple[int, bool, str]:
        """What answers best: most mechanisms whose loss is known, then full precision."""
        return sum(case.error is not None for case in self.cases), self.float32, self.place


_Group = tuple[str, bool, str]  # a use, whether it is causal, a machine
_Place = tuple[Mapping[str, Any], Sequence[Curve]]


def make_picker(
    cells: Iterable[Cell], places: Iterable[_Place], links: Mapping[str, str], cpus: Mapping[str, str]
) -> dict[str, Any]:
    """The answers of which most is known, one a question; labels and texts stand there once.

    places: with their curves (`timing.split_places`). links: pages by mechanism. hours: what two times that are known
    from unlike lengths are further apart.
    """
    chosen: dict[_Group, dict[int, Answer]] = defaultdict(dict)
    for cell in cells:
        if cell.use in USES and len(cell.cases) >= FEWEST:
            _keep(chosen[cell.use, bool(cell.row.causal), str(cell.row.machine)], cell.length, _of_cell(cell))
    _interpolate(chosen, places, cpus)
    texts: dict[str, int] = {}

    def note(text: str) -> int:
        return texts.setdefault(text, len(texts))

    entries = [
        [use, int(causal), note(machine), length, note(answer.place), *_as_lists(answer, note, links)]
        for (use, causal, machine), own in sorted(chosen.items())
        for length, answer in sorted(own.items())
    ]
    return {"cells": entries, "texts": list(texts), "hours": round(QUANTILE * math.sqrt(2) * HOURS, 4)}


def _keep(own: dict[int, Answer], length: int, answer: Answer) -> None:
    held = own.get(length)
    if held is None or answer.weight > held.weight:
        own[length] = answer


def _as_lists(answer: Answer, note: Any, links: Mapping[str, str]) -> Iterator[Any]:
    """How many keep each quality and how many are not known to, and those cases that any question may show."""
    kept = [[i for i, case in enumerate(answer.cases) if _keeps(case, bound)] for bound, _ in QUALITIES]
    shown = sorted({i for own in kept for i in own[:SHOWN]})
    yield [len(own) for own in kept]
    yield sum(case.error is None for case in answer.cases)
    yield [_as_list(answer.cases[i], note, links) for i in shown]


def _keeps(case: Case, bound: str) -> bool:
    return not bound or (case.error is not None and case.error <= float(bound))


def _as_list(case: Case, note: Any, links: Mapping[str, str]) -> list[Any]:
    """Label, link, time, how far it may be off, it and the speedup in words, error; loss, memory, between in words."""
    error = None if case.error is None else float(f"{case.error:.4g}")
    apart = None if case.apart is None else round(case.apart, 4)
    name = case.variant.partition(":")[0]
    return [note(case.label), note(links.get(name, "")), float(f"{case.ms:.6g}"), apart, note(case.time),
            note(case.speedup), error, note(case.loss), note(case.memory), note(case.between)]  # fmt: skip


# -- measured ------------------------------------------------------------------------------------------------------


def _of_cell(cell: Cell) -> Answer:
    cases = tuple(_of_timed(one) for one in cell.cases if one.row.latency_ms)
    return Answer(cell.place, cell.row.dtype == "float32", cases)


def _of_timed(one: Timed) -> Case:
    row = one.row
    ends = row.latency_ms_low, row.latency_ms_high
    apart = math.log(ends[1] / ends[0]) / 2 if ends[0] and ends[1] else None
    memory = units.size(one.memory) if one.memory is not None else units.NONE
    loss = _tell_loss(one.loss, one.error, one.error_on)
    said = one.tell_time(), one.tell_speedup()
    return Case(one.label, row.variant, row.latency_ms or 0.0, apart, *said, one.error, loss, memory)


def _tell_loss(loss: str, error: float | None, on: str) -> str:
    return f"{loss} on {on}" if on and error else loss


# -- between measured lengths --------------------------------------------------------------------------------------


def _interpolate(chosen: Mapping[_Group, dict[int, Answer]], places: Iterable[_Place], cpus: Mapping[str, str]) -> None:
    """Add the answers at powers of two between the least and the greatest length of each group that has none there."""
    gaps = {group: _list_gaps(own) for group, own in chosen.items()}
    for place, curves in places:
        group = USE_OF.get(str(place["mode"]), ""), bool(place["causal"]), str(place["machine"])
        usual = not place["compiled"] and not place["cuda_graph"] and place["cache"] in (None, "warm")
        for length in gaps.get(group, ()) if usual else ():
            cases = _take(place, curves, length)
            if len(cases) >= FEWEST:
                said = words.place_words(dict(place), dict(cpus))
                _keep(chosen[group], length, Answer(said, place["dtype"] == "float32", cases))


def _list_gaps(own: Mapping[int, Answer]) -> list[int]:
    low, high = min(own), max(own)
    powers = (2**at for at in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1))
    return [length for length in powers if length not in own]


def _take(place: Mapping[str, Any], curves: Sequence[Curve], length: int) -> tuple[Case, ...]:
    """All whose time is known there, the fastest first."""
    found = [(curve, taken) for curve in curves if not isinstance(taken := curve.take(length), str)]
    labels = Counter(curve.label for curve, _ in found)
    cases = (_of_taken(place, curve, taken, twice=labels[curve.label] > 1) for curve, taken in found)
    return tuple(sorted(cases, key=lambda case: (case.ms, case.label)))


def _of_taken(place: Mapping[str, Any], curve: Curve, taken: Taken, *, twice: bool) -> Case:
    row, time = curve.row, taken.latency
    error = float(row["error"]) if units.there(row["error"]) else 0.0 if losses.is_exact(row) else None
    on = str(row["error_on"]) if units.there(row["error_on"]) else ""
    base = (curve.label, curve.kv_heads) == (place["baseline"], place["baseline_kv_heads"])
    speedup = Estimate(1.0) if base else taken.speedup  # over itself it is 1 wherever that is
    about = "" if taken.between is None else ABOUT
    return Case(
        label=f"{curve.label} (kv_heads={curve.kv_heads})" if twice else curve.label,
        variant=str(row["variant"]),
        ms=time.value,
        apart=taken.apart,
        time=about + units.duration(*time),
        speedup=("" if base else about) + units.ratio(*speedup) if speedup else units.NONE,
        error=error,
        loss=_tell_loss(losses.tell(row), error, on),
        memory=_tell_bytes(taken.state if place["mode"] == "decode" else taken.memory),
        between=words.join(map(units.short_length, taken.between)) if taken.between else "",
    )


def _tell_bytes(found: Estimate | None) -> str:
    if found is None:
        return units.NONE
    if found.low is None or found.high is None:
        return units.size(found.value)
    low, high = units.size(found.low), units.size(found.high)
    return f"{ABOUT}{units.size(found.value)}" + (f" ({low}{units.TO}{high})" if low != high else "")
