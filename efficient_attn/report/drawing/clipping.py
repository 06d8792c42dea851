"""Clip one outlying line: axis limits without it, and its name in the caption."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from ... import units
from ...units import Unit
from .axes import compute_log_limits
from .panel_data import Line

MIN_LINES = 4  # with fewer lines, none is an outlier
MAX_SQUEEZE = 1.8  # log height of all lines, relative to the log height without the outlier


def choose_clipped_limits(values: Mapping[str, Sequence[float]], level: float | None) -> tuple[float, float]:
    """Limits of a logarithmic axis for all lines, except for one line that would take most of the height."""
    ends = [(min(line_values), max(line_values)) for line_values in values.values() if line_values]
    full_limits = compute_log_limits(itertools.chain(*ends), level)
    if len(ends) < MIN_LINES:
        return full_limits
    lows, highs = sorted(low for low, _ in ends), sorted(high for _, high in ends)
    limits_without_one = (  # lowest and highest values without one of the lines
        compute_log_limits((lows[low == lows[0]], highs[-2 if high == highs[-1] else -1]), level) for low, high in ends
    )
    smallest = min(limits_without_one, key=_log_height)
    return smallest if _log_height(full_limits) > MAX_SQUEEZE * _log_height(smallest) else full_limits


def _log_height(limits: tuple[float, float]) -> float:
    return math.log(limits[1] / limits[0])


def describe_clipped(lines: Sequence[Line], bounds: tuple[float, float], unit: Unit) -> str:
    """Sentence that names clipped lines and their farthest values; empty if there are none."""
    low, high = bounds
    texts = []
    for line in lines:
        clipped = [y for y in line.y if not low <= y <= high]
        if clipped:
            farthest = max(clipped, key=lambda y: abs(math.log(y)))
            texts.append(f"{line.label} ({units.format_value(farthest, unit)})")
    return f" Beyond the axis, marked at its edge: {', '.join(texts)}." if texts else ""
