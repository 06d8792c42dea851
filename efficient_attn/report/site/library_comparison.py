"""Compare our mechanisms with other libraries, per pair and machine."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
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
    """Our mechanism compared with one of another library on one machine and device. rows: of our mechanism, one for
    each configuration in which both were timed."""

    ours: str
    theirs: str
    hardware: str
    rows: tuple[Row, ...]

    @property
    def speedup(self) -> Estimate:
        """The geometric mean; its interval covers timing errors only, not the spread over configurations."""
        middle = sum(math.log(row.speedup or 1.0) for row in self.rows) / len(self.rows)
        errors = [estimate_log_error(row.speedup_low, row.speedup_high) for row in self.rows]
        known_errors = [error for error in errors if error is not None]
        if len(known_errors) < len(errors):
            return Estimate(math.exp(middle))
        half = Z_95 * math.hypot(*known_errors) / len(errors)
        return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))

    def count(self, verdict: str) -> int:
        """The number of configurations in which ours is significantly ``faster`` or ``slower``."""
        return sum(formatting.classify_speedup(row.speedup_low, row.speedup_high) == verdict for row in self.rows)

    def format_speedup(self) -> str:
        """The speedup with its interval."""
        return units.ratio(*self.speedup)

    def format_range(self) -> str:
        """The range over configurations; a dash for a single one."""
        ratios = [row.speedup or 1.0 for row in self.rows]
        return f"{units.ratio(min(ratios))} to {units.ratio(max(ratios))}" if len(ratios) > 1 else units.EMPTY


def list_library_comparisons(groups: Iterable[GroupResult], cpus: Mapping[str, str]) -> list[LibraryComparison]:
    """Compare our mechanisms in each group whose baseline is another library's mechanism."""
    rows_by_pair: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for group in groups:
        theirs = [e for e in group.cases if e.row.speedup == e.row.speedup_low == e.row.speedup_high == 1]
        if len(theirs) == 1 and theirs[0].row.variant.startswith(PEER_PREFIX):
            machine = formatting.format_machine(group.row.machine, dict(cpus)).removeprefix("machine ")
            hardware = f"{machine}, {group.row.device}"
            for entry in group.cases:
                if not entry.row.variant.startswith(PEER_PREFIX) and entry.row.speedup:
                    rows_by_pair[entry.label, theirs[0].label, hardware].append(entry.row)
    return [LibraryComparison(*pair, tuple(rows)) for pair, rows in sorted(rows_by_pair.items())]
