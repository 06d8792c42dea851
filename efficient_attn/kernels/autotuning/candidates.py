"""A selection: candidates that give the same result, of which shape and machine determine the fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class TuningPoint(NamedTuple):
    """Where candidates are timed: the kind of call, such as a dtype, and its sizes."""

    kind: str
    sizes: tuple[int, ...]


Candidates = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Tunable:
    """forms: names of the candidates; compiled code uses the first.

    points: where calibration times all candidates. prepare: the calls to time there, by candidate; a missing one does
    not support that point. rule: the candidate without timings, from processor features. version: increased when older
    timings no longer apply.
    """

    name: str
    implementations: tuple[str, ...]
    points: tuple[TuningPoint, ...]
    make_candidates: Callable[[TuningPoint], Candidates]
    rule: Callable[[TuningPoint], str]
    version: int = 1


@dataclass(frozen=True)
class TimingTable:
    """Seconds of each candidate at the points of a selection. source: where they come from, or why there are none.
    seconds: of timing. kept: whether they are stored in a file."""

    timings: tuple[tuple[TuningPoint, Mapping[str, float]], ...] = ()
    source: str = ""
    seconds: float = 0.0
    cached: bool = False
