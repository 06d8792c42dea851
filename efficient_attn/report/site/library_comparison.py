"""Compare our mechanisms with other libraries, per pair and machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ... import units
from ...results.stats import Estimate
from ...spec import format_label
from .. import formatting
from ..answers.pooled_times import Z_95, estimate_log_error
from ..gather import Frame
from .site_data import PEER_PREFIX


@dataclass(frozen=True)
class LibraryComparison:
    """Our mechanism compared with one of another library on one machine and device. speedups: one for each
    configuration in which both were timed."""

    ours: str
    theirs: str
    hardware: str
    speedups: tuple[Estimate, ...]

    @property
    def speedup(self) -> Estimate:
        """The geometric mean; its interval covers timing errors only, not the spread over configurations."""
        middle = sum(math.log(speedup.value) for speedup in self.speedups) / len(self.speedups)
        errors = [estimate_log_error(speedup.low, speedup.high) for speedup in self.speedups]
        known_errors = [error for error in errors if error is not None]
        if len(known_errors) < len(errors):
            return Estimate(math.exp(middle))
        half = Z_95 * math.hypot(*known_errors) / len(errors)
        return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))

    def count(self, verdict: str) -> int:
        """The number of configurations in which ours is significantly ``faster`` or ``slower``."""
        return sum(formatting.classify_speedup(s.low, s.high) == verdict for s in self.speedups)

    def format_speedup(self) -> str:
        """The speedup with its interval."""
        return units.ratio(*self.speedup)

    def format_range(self) -> str:
        """The range over configurations; a dash for a single one."""
        ratios = [speedup.value for speedup in self.speedups]
        return f"{units.ratio(min(ratios))} to {units.ratio(max(ratios))}" if len(ratios) > 1 else units.EMPTY


def list_library_comparisons(rows: Frame, machines: Mapping[str, str]) -> list[LibraryComparison]:
    """Compare our mechanisms with other libraries' that they were timed against. machines: short names."""
    ours = rows[(rows["status"] == "ok") & (rows["task"] == "speed") & (rows["speedup"] > 0)]
    ours = ours[ours["baseline"].astype(str).str.startswith(PEER_PREFIX)]
    ours = ours[~ours["variant"].astype(str).str.startswith(PEER_PREFIX)]
    speedups: dict[tuple[str, str, str], list[Estimate]] = {}
    for row in ours.to_dict("records"):
        hardware = f"{machines.get(str(row['machine']), units.EMPTY)}, {row['device']}"
        pair = format_label(str(row["variant"]), row["backend"]), str(row["baseline"]), hardware
        ends = (row[f"speedup_{end}"] if units.is_present(row[f"speedup_{end}"]) else None for end in ("low", "high"))
        speedups.setdefault(pair, []).append(Estimate(row["speedup"], *ends))
    return [LibraryComparison(*pair, tuple(estimates)) for pair, estimates in sorted(speedups.items())]
