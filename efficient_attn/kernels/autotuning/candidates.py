"""A contest: forms of one computation that give the same result, of which shape and machine say which is fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class TuningPoint(NamedTuple):
    """Where forms compete: what kind of call it is, such as a dtype, and its sizes."""

    kind: str
    sizes: tuple[int, ...]


Candidates = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Tunable:
    """forms: their names; the first is taken where compilers look, which have ideas of their own.

    points: where calibration times all forms. prepare: the calls to time there, by form; a form that is missing cannot
    serve that point. rule: which form to take where nothing was timed, by what is known of processors like this one.
    version: goes up when older timings no longer say anything about the forms.
    """

    name: str
    implementations: tuple[str, ...]
    points: tuple[TuningPoint, ...]
    make_candidates: Callable[[TuningPoint], Candidates]
    rule: Callable[[TuningPoint], str]
    version: int = 1


@dataclass(frozen=True)
class TimingTable:
    """Seconds of each form at the points of a contest. source: where they come from, or why there are none. seconds:
    what timing took. kept: in a file, as it should be.
    """

    timings: tuple[tuple[TuningPoint, Mapping[str, float]], ...] = ()
    source: str = ""
    seconds: float = 0.0
    cached: bool = False
