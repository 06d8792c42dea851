"""An operation with several implementations, of which shape and machine determine the fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class TuningPoint(NamedTuple):
    """Where candidates are timed: the kind of call, such as a dtype, and its sizes."""

    kind: str
    sizes: tuple[int, ...]


Candidates = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Tunable:
    """An operation and its candidates.

    implementations: names of the candidates; compiled code uses the first. points: where calibration times all
    candidates. make_candidates: the calls to time at a point; a candidate that does not support it is missing. rule:
    the candidate without timings, from processor features. version: increased when older timings no longer apply.
    """

    name: str
    implementations: tuple[str, ...]
    points: tuple[TuningPoint, ...]
    make_candidates: Callable[[TuningPoint], Candidates]
    rule: Callable[[TuningPoint], str]
    version: int = 1


@dataclass(frozen=True)
class TimingTable:
    """Seconds of each candidate at the points of an operation. source: where they come from, or why there are none.
    seconds: of timing. cached: whether they are stored in a file."""

    timings: tuple[tuple[TuningPoint, Mapping[str, float]], ...] = ()
    source: str = ""
    seconds: float = 0.0
    cached: bool = False

    @classmethod
    def from_json(cls, contents: Mapping[str, Any], source: str, *, cached: bool = False) -> TimingTable:
        """The table that `as_json` describes."""
        timings = tuple((TuningPoint(kind, tuple(sizes)), dict(times)) for kind, sizes, times in contents["timings"])
        return cls(timings, source, contents["seconds"], cached)

    def as_json(self) -> dict[str, Any]:
        """The seconds and timings."""
        timings = [[point.kind, list(point.sizes), dict(times)] for point, times in self.timings]
        return {"seconds": self.seconds, "timings": timings}
