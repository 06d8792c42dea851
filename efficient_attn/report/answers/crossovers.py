"""Crossover lengths: from which length a mechanism is faster than its baseline.

A mechanism is faster where the whole 95% interval of its speedup lies above 1. Between measured lengths the speedup is
interpolated linearly in logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ... import units
from .. import formatting, select

CrossoverKind = Literal["always", "from", "undecided", "never"]


@dataclass(frozen=True)
class Crossover:
    """The crossover of one curve of speedups.

    kind: ``always`` faster at all measured lengths; faster ``from`` a length on, at all longer ones; ``never`` faster,
    and slower at the longest; else ``undecided``. last_slower, first_faster: the longest length at which it is slower,
    and the first from which it is faster; None if there is none. low, estimate, high: interpolated length at which the
    speedup crosses 1 for good, and its interval; None outside the measured lengths. faster_lengths: all lengths at
    which it is faster. longest: the longest measured length.
    """

    kind: CrossoverKind
    last_slower: int | None
    first_faster: int | None
    low: float | None
    estimate: float | None
    high: float | None
    faster_lengths: tuple[int, ...]
    longest: int

    @property
    def sort_key(self) -> float:
        """The length from which it is faster; infinite if there is none."""
        return float(self.first_faster) if self.first_faster is not None else math.inf


def find_crossover(columns: select.ColumnArrays) -> Crossover | None:
    """Return the crossover of one variant's columns; None without a speedup with an interval."""
    series = select.sort_series(columns, "speedup", "speedup_low", "speedup_high")
    curve = [point for point in zip(*series, strict=True) if all(x > 0 for x in point[1:])]
    if not curve:
        return None
    lengths, speedups, lows, highs = zip(*curve, strict=True)
    lengths = tuple(map(int, lengths))
    faster = tuple(length for length, low in zip(lengths, lows, strict=True) if low > 1)
    slower = [length for length, high in zip(lengths, highs, strict=True) if high < 1]
    last_unproven = max((length for length, low in zip(lengths, lows, strict=True) if low <= 1), default=0)
    first_faster = next((length for length in lengths if length > last_unproven), None)
    kind: CrossoverKind = "never" if not faster and highs[-1] < 1 else "undecided"
    if first_faster is not None:
        kind = "from" if last_unproven else "always"
    # the upper end of the speedup's interval crosses 1 first
    low, estimate, high = (find_last_rise(lengths, values) for values in (highs, speedups, lows))
    last_slower = max(slower, default=None) if first_faster is not None else None
    return Crossover(kind, last_slower, first_faster, low, estimate, high, faster, lengths[-1])


def find_last_rise(lengths: Sequence[float], values: Sequence[float]) -> float | None:
    """Length at which values, interpolated in logarithms, rise above 1 for good; None if they do not."""
    last = max((i for i, value in enumerate(values) if value <= 1), default=None)
    if last is None or last + 1 == len(values):
        return None
    (x, further), (y, higher) = map(math.log, lengths[last : last + 2]), map(math.log, values[last : last + 2])
    crossing = math.exp(x + (further - x) * y / (y - higher))
    return min(max(crossing, lengths[last]), lengths[last + 1])


def format_crossover(crossover: Crossover) -> str:
    """``<=256``; ``at 512`` (the only length); ``512-1K``, ``by 1K``, ``none up to 4K``, ``unclear up to
    4K``, ``only at 512``."""
    last_slower, longest = crossover.last_slower, units.short_length(crossover.longest)
    if crossover.first_faster is not None:
        first_faster = units.short_length(crossover.first_faster)
        if crossover.kind == "always":
            return f"at {first_faster}" if crossover.first_faster == crossover.longest else f"<={first_faster}"
        start = f"{units.short_length(last_slower)}{units.INTERVAL_DASH}" if last_slower is not None else "by "
        return start + first_faster
    if crossover.kind == "never":
        return f"none up to {longest}"
    lengths = list(map(units.short_length, crossover.faster_lengths[:3]))
    lengths += ["more"] if len(crossover.faster_lengths) > 3 else []
    return f"only at {formatting.join_words(lengths)}" if lengths else f"unclear up to {longest}"


def format_interpolation(crossover: Crossover) -> str:
    """``about 740 (690-810)``, by interpolation; empty if the speedup does not cross 1 between measured lengths."""
    if crossover.kind != "from" or crossover.estimate is None:
        return ""
    low, high = (f"{end:.0f}" if end is not None else "" for end in (crossover.low, crossover.high))
    start, end = low or "shorter", high or "longer"
    return f"about {crossover.estimate:.0f} ({start}{units.INTERVAL_DASH}{end})"
