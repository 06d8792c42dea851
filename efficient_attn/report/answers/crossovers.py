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
from .. import formatting, select
from ..gather import Frame

CrossoverKind = Literal["always", "from", "never", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """What one curve of speedups shows.

    kind: ``always`` faster at all measured lengths; faster ``from`` a length on, at all longer ones; ``never`` faster,
    and slower at the longest; else ``undecided``. below, above: the longest length at which it is slower, and the first
    from which on it is faster; None where none is. low, at, high: where the speedup passes 1 for good by interpolation,
    and the interval of that; None where that lies before the shortest length or after the longest. faster_at: all
    lengths at which it is faster. longest: of the measured lengths.
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
        """What sorts passings, the shortest length first; endless where no length is known to be enough."""
        return float(self.first_faster) if self.first_faster is not None else math.inf


@dataclass(frozen=True, kw_only=True)
class VariantCrossover:
    """A mechanism's passing, and the curve that it was read from: all that a comparison must not mix.

    label: the variant as pages name it. place: the setting's columns with ``mode`` and ``causal``.
    """

    label: str
    variant: str
    family: str | None
    baseline: str
    config: Mapping[str, Any]
    crossover: Crossover


def list_crossovers(rows: Frame) -> list[VariantCrossover]:
    """The crossover of every variant that was timed beside its baseline, in the rows' order.

    rows: with their labels (`select.add_labels`). What has no speedup with an interval is left out.
    """
    return [
        crossover
        for config, baseline, curve_rows in split_curves(rows)
        for crossover in _list_crossovers(config, baseline, curve_rows)
    ]


def split_curves(rows: Frame) -> Iterator[tuple[dict[str, Any], str, Frame]]:
    """Timed rows apart by all that forbids a comparison: the place, what the baseline is called, and the rows."""
    for setting in select.split_settings(select.filter_timed(select.filter_task(rows, "speed"))):
        for piece in setting.slices:
            yield setting.key | {"mode": piece.mode, "causal": piece.causal}, setting.baseline, piece.rows


def _list_crossovers(config: Mapping[str, Any], baseline: str, rows: Frame) -> Iterator[VariantCrossover]:
    mechanism_rows = rows[~rows["is_baseline"].to_numpy(dtype=bool)]
    names = zip(*(mechanism_rows[name].tolist() for name in ("label", "variant", "family")), strict=True)
    variants = {label: (variant, family) for label, variant, family in names}
    for label, columns in select.split_variants(mechanism_rows).items():
        if crossover := find_crossover(columns):
            variant, family = variants[label]
            yield VariantCrossover(
                label=label, variant=variant, family=family, baseline=baseline, config=config, crossover=crossover
            )


def find_crossover(columns: select.ColumnArrays) -> Crossover | None:
    """What one variant's columns show; None where no speedup with an interval is among them."""
    curve = [
        (int(length), value, low, high)
        for length, value, low, high in zip(
            *select.sort_series(columns, "speedup", "speedup_low", "speedup_high"), strict=True
        )
        if low > 0 and high > 0
    ]
    if not curve:
        return None
    lengths = [point[0] for point in curve]
    faster = tuple(length for length, _, low, _ in curve if low > 1)
    not_faster = [length for length, _, low, _ in curve if low <= 1]
    first_faster = next((length for length in lengths if not not_faster or length > not_faster[-1]), None)
    slower = [length for length, _, _, high in curve if high < 1]
    # the upper end of the speedup's interval passes 1 first
    low, estimate, high = (find_last_rise(lengths, [point[i] for point in curve]) for i in (3, 1, 2))
    return Crossover(
        kind=_choose_kind(bool(not_faster), first_faster, faster, curve[-1][3]),
        last_slower=max(slower, default=None) if first_faster is not None else None,
        first_faster=first_faster,
        low=low,
        estimate=estimate,
        high=high,
        faster_lengths=faster,
        longest=lengths[-1],
    )


def _choose_kind(
    any_not_faster: bool, first_faster: int | None, faster: Sequence[int], last_high: float
) -> CrossoverKind:
    if first_faster is not None:
        return "from" if any_not_faster else "always"
    return "never" if not faster and last_high < 1 else "undecided"


def find_last_rise(lengths: Sequence[float], values: Sequence[float]) -> float | None:
    """Where values that are interpolated in logarithms pass 1 upwards and stay above; None where they do not."""
    last = max((i for i, value in enumerate(values) if value <= 1), default=None)
    if last is None or last + 1 == len(values):
        return None
    (x, further), (y, higher) = map(math.log, lengths[last : last + 2]), map(math.log, values[last : last + 2])
    crossing = math.exp(x + (further - x) * y / (y - higher))
    return min(max(crossing, lengths[last]), lengths[last + 1])


def format_crossover(crossover: Crossover) -> str:
    """``<=256``; ``at 512``, where nothing else was measured; ``512-1K``, ``by 1K``, ``none up to 4K``, ``unclear up to
    4K``, ``only at 512``."""
    first_faster, last_slower, longest = (
        crossover.first_faster,
        crossover.last_slower,
        units.short_length(crossover.longest),
    )
    if first_faster is not None:
        if crossover.kind == "always" and first_faster == crossover.longest:
            return f"at {units.short_length(first_faster)}"
        if crossover.kind == "always":
            return f"<={units.short_length(first_faster)}"
        start = f"{units.short_length(last_slower)}{units.TO}" if last_slower is not None else "by "
        return start + units.short_length(first_faster)
    if crossover.kind == "never":
        return f"none up to {longest}"
    lengths = list(map(units.short_length, crossover.faster_lengths[:3])) + (
        ["more"] if len(crossover.faster_lengths) > 3 else []
    )
    return f"only at {formatting.join_words(lengths)}" if lengths else f"unclear up to {longest}"


def format_interpolation(crossover: Crossover) -> str:
    """``about 740 (690-810)``, by interpolation; empty where the speedup does not pass 1 between measured lengths."""
    if crossover.kind != "from" or crossover.estimate is None:
        return ""
    low, high = (f"{end:.0f}" if end is not None else "" for end in (crossover.low, crossover.high))
    start, end = low or "shorter", high or "longer"
    return f"about {crossover.estimate:.0f} ({start}{units.TO}{end})"
