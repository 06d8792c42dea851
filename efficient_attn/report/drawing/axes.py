"""Limits, ticks and label positions of axes, computed from numbers only."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from matplotlib.ticker import MaxNLocator

from ... import units
from ...units import Unit

MIN_TICKS = 2  # a single tick gives no scale
MIN_LINES = 4  # with fewer lines, none is an outlier
MAX_SQUEEZE = 1.8  # log height of all lines, relative to the log height without the outlier


def compute_log_limits(numbers: Iterable[float], level: float | None = None) -> tuple[float, float]:
    """Limits of a logarithmic axis that contain all positive values, with padding."""
    values = [v for v in numbers if v > 0] + ([level] if level else [])
    low, high = min(values, default=1.0), max(values, default=1.0)
    padding = max((high / low) ** 0.06, 1.12)
    return low / padding, high * padding


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


def compute_linear_limits(numbers: Iterable[float]) -> tuple[float, float]:
    """Limits of a linear axis that contain all values, with padding."""
    values = list(numbers)
    low, high = min(values, default=0.0), max(values, default=1.0)
    padding = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    return low - padding, high + padding


def compute_x_limits(ticks: Mapping[float, str], *, log: bool, margin: float) -> tuple[float, float]:
    """The ends of an axis with these ticks."""
    low, high = min(ticks), max(ticks)
    if not log:
        return low - margin, high + margin
    padding = max((high / low) ** 0.04, 1.05)
    return low / padding, high * padding


def compute_fraction(value: float, low: float, high: float, *, log: bool = True) -> float:
    """Position of a value between two limits, from 0 to 1."""
    scale: Callable[[float], float] = math.log if log else float
    return (scale(value) - scale(low)) / (scale(high) - scale(low))


def thin_ticks(
    ticks: Mapping[float, str], limits: tuple[float, float], *, log: bool, letter_scale: float = 1.0
) -> dict[float, str]:
    """The ticks of the x axis whose labels do not overlap, including the last one. Ticks without text only set limits
    and are dropped. letter_scale: width of a letter relative to that on a page."""
    chosen: list[float] = []
    for value in sorted((value for value, text in ticks.items() if text), reverse=True):
        letters = len(ticks[value]) + len(ticks[chosen[-1]]) if chosen else 0
        right_end = compute_fraction(value, *limits, log=log) + (0.015 * letters + 0.03) * letter_scale
        if not chosen or right_end < compute_fraction(chosen[-1], *limits, log=log):
            chosen.append(value)
    return {value: ticks[value] for value in reversed(chosen)}


def make_y_ticks(unit: Unit, low: float, high: float, *, log: bool = True) -> dict[float, str]:
    """About eight round values at most between the limits, with their labels."""
    positions = (_make_binary_ticks if unit == "bytes" else _make_decimal_ticks)(low, high) if log else []
    if len(positions) < MIN_TICKS:  # powers are too far apart: use even steps
        scale = 1024.0 ** math.floor(math.log(high, 1024)) if unit == "bytes" and high > 1 else 1.0
        multiples = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(low / scale, high / scale)
        positions = [float(value * scale) for value in multiples if low <= value * scale <= high]
    return {value: strip_zeros(units.format_value(value, unit)) for value in positions}


def _make_binary_ticks(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, math.ceil((last - first + 1) / 7))
    return [2.0**e for e in range(first, last + 1) if e % step == 0]


def _make_decimal_ticks(low: float, high: float) -> list[float]:
    decades = math.log10(high / low)
    steps = next((steps for max_decades, steps in _TICK_DIGITS if decades < max_decades), (1,))
    skip = max(1, math.ceil(decades / 8))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [float(f"{s}e{e}") for e in powers if e % skip == 0 for s in steps if low <= float(f"{s}e{e}") <= high]


# maximum number of decades that an axis spans, and the leading digits of its ticks
_TICK_DIGITS: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0.35, (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9)),
    (0.75, (1, 1.5, 2, 3, 4, 5, 7)),
    (2.6, (1, 2, 5)),
)


def strip_zeros(text: str) -> str:
    """``1.00 ms`` as ``1 ms``: without trailing zeros after the point."""
    return re.sub(r"(\.\d*?)0+(?=\D|$)", lambda match: match[1].rstrip("."), text, count=1)


def spread_labels(preferred: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Positions in [0, 1] near the preferred ones, such that labels of these heights do not overlap."""
    order = sorted(range(len(preferred)), key=lambda i: preferred[i])
    positions = list(preferred)
    floor = 0.0
    for i in order:
        positions[i] = max(preferred[i], floor + heights[i] / 2)
        floor = positions[i] + heights[i] / 2
    ceiling = 1.0
    for i in reversed(order):
        positions[i] = min(positions[i], ceiling - heights[i] / 2)
        ceiling = positions[i] - heights[i] / 2
    return positions
