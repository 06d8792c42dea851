"""From which length on a mechanism is faster than its baseline: what was measured of that, and what lies between.

A speedup is shown where its whole interval lies above 1. Between measured lengths it is interpolated: its logarithm is
a straight line over the logarithm of the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ... import units
from .. import select, words
from ..gather import Frame

Kind = Literal["always", "from", "never", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Passing:
    """What one curve of speedups shows.

    kind: ``always`` faster at all measured lengths; faster ``from`` a length on, at all longer ones; ``never`` faster,
    and slower at the longest; else ``undecided``. below, above: the longest length at which it is slower, and the first
    from which on it is faster; None where none is. low, at, high: where the speedup passes 1 for good by interpolation,
    and the interval of that; None where that lies before the shortest length or after the longest. faster_at: all
    lengths at which it is faster. longest: of the measured lengths.
    """

    kind: Kind
    below: int | None
    above: int | None
    low: float | None
    at: float | None
    high: float | None
    faster_at: tuple[int, ...]
    longest: int

    @property
    def rank(self) -> float:
        """What sorts passings, the shortest length first; endless where no length is known to be enough."""
        return float(self.above) if self.above is not None else math.inf


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """A mechanism's passing, and the curve that it was read from: all that a comparison must not mix.

    label: the variant as pages name it. place: the setting's columns with ``mode`` and ``causal``.
    """

    label: str
    variant: str
    family: str | None
    baseline: str
    place: Mapping[str, Any]
    passing: Passing


def find_crossovers(rows: Frame) -> list[Crossover]:
    """The crossover of every variant that was timed beside its baseline, in the rows' order.

    rows: with their labels (`select.add_labels`). What has no speedup with an interval is left out.
    """
    return [found for place, base, rows_of in split_curves(rows) for found in _list_crossovers(place, base, rows_of)]


def split_curves(rows: Frame) -> Iterator[tuple[dict[str, Any], str, Frame]]:
    """Timed rows apart by all that forbids a comparison: the place, what the baseline is called, and the rows."""
    for setting in select.split_settings(select.keep_timed(select.keep_task(rows, "speed"))):
        for piece in setting.slices:
            yield setting.key | {"mode": piece.mode, "causal": piece.causal}, setting.baseline, piece.rows


def _list_crossovers(place: Mapping[str, Any], baseline: str, rows: Frame) -> Iterator[Crossover]:
    others = rows[~rows["is_baseline"].to_numpy(dtype=bool)]
    named = zip(*(others[name].tolist() for name in ("label", "variant", "family")), strict=True)
    known = {label: (variant, family) for label, variant, family in named}
    for label, own in select.split_variants(others).items():
        if passing := find_passing(own):
            variant, family = known[label]
            yield Crossover(
                label=label, variant=variant, family=family, baseline=baseline, place=place, passing=passing
            )


def find_passing(own: select.Columns) -> Passing | None:
    """What one variant's columns show; None where no speedup with an interval is among them."""
    curve = [
        (int(length), value, low, high)
        for length, value, low, high in zip(
            *select.order_series(own, "speedup", "speedup_low", "speedup_high"), strict=True
        )
        if low > 0 and high > 0
    ]
    if not curve:
        return None
    lengths = [point[0] for point in curve]
    faster = tuple(length for length, _, low, _ in curve if low > 1)
    unshown = [length for length, _, low, _ in curve if low <= 1]
    above = next((length for length in lengths if not unshown or length > unshown[-1]), None)
    slower = [length for length, _, _, high in curve if high < 1]
    # the upper end of the speedup's interval passes 1 first
    low, at, high = (find_last_rise(lengths, [point[i] for point in curve]) for i in (3, 1, 2))
    return Passing(
        kind=_choose_kind(bool(unshown), above, faster, curve[-1][3]),
        below=max(slower, default=None) if above is not None else None,
        above=above,
        low=low,
        at=at,
        high=high,
        faster_at=faster,
        longest=lengths[-1],
    )


def _choose_kind(unshown: bool, above: int | None, faster: Sequence[int], last_high: float) -> Kind:
    if above is not None:
        return "from" if unshown else "always"
    return "never" if not faster and last_high < 1 else "undecided"


def find_last_rise(lengths: Sequence[float], values: Sequence[float]) -> float | None:
    """Where values that are interpolated in logarithms pass 1 upwards and stay above; None where they do not."""
    last = max((i for i, value in enumerate(values) if value <= 1), default=None)
    if last is None or last + 1 == len(values):
        return None
    (x, further), (y, higher) = map(math.log, lengths[last : last + 2]), map(math.log, values[last : last + 2])
    found = math.exp(x + (further - x) * y / (y - higher))
    return min(max(found, lengths[last]), lengths[last + 1])


def tell(found: Passing) -> str:
    """``<=256``; ``at 512``, where nothing else was measured; ``512-1K``, ``by 1K``, ``none up to 4K``, ``unclear up to
    4K``, ``only at 512``."""
    above, below, longest = found.above, found.below, units.short_length(found.longest)
    if above is not None:
        if found.kind == "always" and above == found.longest:
            return f"at {units.short_length(above)}"
        if found.kind == "always":
            return f"<={units.short_length(above)}"
        start = f"{units.short_length(below)}{units.TO}" if below is not None else "by "
        return start + units.short_length(above)
    if found.kind == "never":
        return f"none up to {longest}"
    few = list(map(units.short_length, found.faster_at[:3])) + (["more"] if len(found.faster_at) > 3 else [])
    return f"only at {words.join(few)}" if few else f"unclear up to {longest}"


def tell_between(found: Passing) -> str:
    """``about 740 (690-810)``, by interpolation; empty where the speedup does not pass 1 between measured lengths."""
    if found.kind != "from" or found.at is None:
        return ""
    low, high = (f"{end:.0f}" if end is not None else "" for end in (found.low, found.high))
    start, end = low or "shorter", high or "longer"
    return f"about {found.at:.0f} ({start}{units.TO}{end})"
