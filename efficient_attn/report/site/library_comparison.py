"""Compare our mechanisms with other libraries, per pair and machine."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ... import units
from ...results.rows import Row
from ...results.stats import Estimate
from .. import formatting
from ..answers.pooled_times import Z_95, estimate_log_error
from .group_results import GroupResult
from .site_data import PEER_PREFIX


@dataclass(frozen=True)
class LibraryComparison:
    """Our mechanism compared with one of another library on one machine and device.

    speedup: geometric mean over the configurations in which both were timed, with the interval from timing errors.
    min_speedup, max_speedup: of single configurations. configs, faster, slower: number of all configurations, and of
    those in which ours is significantly faster and slower.
    """

    ours: str
    theirs: str
    hardware: str
    speedup: Estimate
    min_speedup: float
    max_speedup: float
    configs: int
    faster: int
    slower: int

    def format_speedup(self) -> str:
        """The speedup with its interval."""
        return units.ratio(*self.speedup)

    def format_range(self) -> str:
        """The range over configurations; a dash for a single one."""
        if self.configs == 1:
            return units.EMPTY
        return f"{units.ratio(self.min_speedup)} to {units.ratio(self.max_speedup)}"


def list_library_comparisons(groups: Iterable[GroupResult], cpus: Mapping[str, str]) -> Iterator[LibraryComparison]:
    """Compare our mechanisms in each group whose baseline is another library's mechanism."""
    rows_by_pair: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for group in groups:
        theirs = [
            entry for entry in group.cases if entry.row.speedup == entry.row.speedup_low == entry.row.speedup_high == 1
        ]
        if len(theirs) == 1 and theirs[0].row.variant.startswith(PEER_PREFIX):
            machine = formatting.format_machine(group.row.machine, dict(cpus)).removeprefix("machine ")
            hardware = f"{machine}, {group.row.device}"
            for entry in group.cases:
                if not entry.row.variant.startswith(PEER_PREFIX) and entry.row.speedup:
                    rows_by_pair[entry.label, theirs[0].label, hardware].append(entry.row)
    for (ours, theirs, hardware), rows in sorted(rows_by_pair.items()):
        yield _make_comparison(ours, theirs, hardware, rows)


def _make_comparison(ours: str, theirs: str, hardware: str, rows: Sequence[Row]) -> LibraryComparison:
    ratios = [row.speedup for row in rows if row.speedup]
    verdicts = [formatting.classify_speedup(row.speedup_low, row.speedup_high) for row in rows]
    errors = [estimate_log_error(row.speedup_low, row.speedup_high) for row in rows]
    counts = len(rows), verdicts.count("faster"), verdicts.count("slower")
    return LibraryComparison(ours, theirs, hardware, _estimate_mean(ratios, errors), min(ratios), max(ratios), *counts)


def _estimate_mean(ratios: Sequence[float], errors: Sequence[float | None]) -> Estimate:
    """Geometric mean; its interval covers timing errors only, not the spread over configurations."""
    middle = sum(map(math.log, ratios)) / len(ratios)
    known_errors = [error for error in errors if error is not None]
    if len(known_errors) < len(ratios):
        return Estimate(math.exp(middle))
    half = Z_95 * math.hypot(*known_errors) / len(ratios)
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
