"""Ours beside other libraries: a line a pair and machine, for ratios of unlike machines are no one range."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ... import units
from ...results.rows import Row
from ...results.stats import Estimate
from .. import words
from ..answers.pooling import QUANTILE, error_of
from .cells import Cell
from .material import PEER


@dataclass(frozen=True)
class Beside:
    """Ours against one mechanism of another library, on one machine and device, over all places where both were timed.

    speedup: the mean over these places, with what their timings leave open. least, most: of single places.
    """

    ours: str
    theirs: str
    where: str
    speedup: Estimate
    least: float
    most: float
    places: int
    faster: int
    slower: int

    def tell(self) -> str:
        return units.ratio(*self.speedup)

    def tell_span(self) -> str:
        """From the least to the greatest of single places; nothing of one."""
        return f"{units.ratio(self.least)} to {units.ratio(self.most)}" if self.places > 1 else units.NONE


def list_beside(cells: Iterable[Cell], cpus: Mapping[str, str]) -> Iterator[Beside]:
    """Where a cell's baseline is another library's: each of ours in it."""
    found: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for cell in cells:
        theirs = [one for one in cell.cases if one.row.speedup == one.row.speedup_low == one.row.speedup_high == 1]
        if len(theirs) == 1 and theirs[0].row.variant.startswith(PEER):
            where = f"{words.machine_words(cell.row.machine, dict(cpus)).removeprefix('machine ')}, {cell.row.device}"
            for one in cell.cases:
                if not one.row.variant.startswith(PEER) and one.row.speedup:
                    found[one.label, theirs[0].label, where].append(one.row)
    for (ours, theirs, where), rows in sorted(found.items()):
        yield _sum_up(ours, theirs, where, rows)


def _sum_up(ours: str, theirs: str, where: str, rows: Sequence[Row]) -> Beside:
    ratios = [row.speedup for row in rows if row.speedup]
    said = [words.verdict(row.speedup_low, row.speedup_high) for row in rows]
    errors = [error_of(row.speedup_low, row.speedup_high) for row in rows]
    mean = _take_mean(ratios, errors)
    counts = said.count("faster"), said.count("slower")
    return Beside(ours, theirs, where, mean, min(ratios), max(ratios), len(rows), *counts)


def _take_mean(ratios: Sequence[float], errors: Sequence[float | None]) -> Estimate:
    """The geometric mean. Its interval is that of the timings, and holds for these places only."""
    middle = sum(map(math.log, ratios)) / len(ratios)
    known = [error for error in errors if error is not None]
    if len(known) < len(ratios):
        return Estimate(math.exp(middle))
    half = QUANTILE * math.hypot(*known) / len(ratios)
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
