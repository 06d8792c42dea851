"""Parse and format numbers, sizes and times, with three significant digits.

Imports nothing heavy, so that the command line can use it; missing values are detected without pandas.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from .errors import UsageError

EMPTY = "\u2013"  # for a missing value
INTERVAL_DASH = "\u2013"  # between the ends of an interval
MICRO = "\u00b5"
TIME_UNITS = (("s", 1e3), ("ms", 1.0), (f"{MICRO}s", 1e-3), ("ns", 1e-6))
SIZE_UNITS = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
DECIMAL_SIZE_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
RATE_UNITS = (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
SIZE_PATTERN = re.compile(r"([0-9.]+(?:e[0-9]+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes: ``8GB`` is decimal, ``512MiB`` binary, ``2e9`` bytes. Raises `UsageError` for anything else."""
    from pydantic import ByteSize, TypeAdapter

    match = SIZE_PATTERN.fullmatch(text.strip())
    try:
        value = float(match[1]) * TypeAdapter(ByteSize).validate_python(f"1{match[2] or ''}B") if match else 0.0
    except ValueError:  # 1.2.3
        value = 0.0
    if not 1 <= value < 2**63:
        raise UsageError(f"{text!r} is not a size such as 8GB, 512MiB or 2e9")
    return int(value)


def is_present(value: Any) -> bool:
    """Whether a frame's value is not missing."""
    try:
        return value is not None and bool(value == value)  # NaN is not equal to itself
    except TypeError:  # pandas' NA cannot be compared
        return False


def number(value: Any) -> str:
    """Three significant digits, with a power of ten for very large and very small numbers."""
    if not is_present(value):
        return EMPTY
    value = float(value)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.2e}")))))
    return f"{value:.{decimals}f}"


def duration(ms: Any, low: Any = None, high: Any = None) -> str:
    """Milliseconds in a suitable unit, with the ends of an interval in the same unit: ``12.3 ms (12.1-12.6)``."""
    return _format_scaled(ms, TIME_UNITS, low, high)


def seconds(value: Any, low: Any = None, high: Any = None) -> str:
    """Seconds in a suitable unit, as `duration` formats milliseconds."""
    return duration(*(x * 1e3 if is_present(x) else None for x in (value, low, high)))


def rough_duration(wall_s: float) -> str:
    """``2 min 10 s``: an estimate, rounded to its precision."""
    if round(wall_s) < 60:
        return f"{max(1, round(wall_s))} s"
    minutes, remaining_s = divmod(round(wall_s / 10) * 10, 60)
    if minutes < 60:
        return f"{minutes} min {remaining_s} s" if remaining_s else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def size(count: Any) -> str:
    """Bytes in binary units: ``1.50 MiB``; whole bytes stay whole."""
    if is_present(count) and 0 <= float(count) < 1024:
        return f"{int(count)} B"
    return _format_scaled(count, SIZE_UNITS)


def rough_size(count: float) -> str:
    """``1.3 GiB``, ``5 MiB``: an estimate, rounded to its precision."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{max(1, round(count / 2**20))} MiB"


def budget(count: Any) -> str:
    """Bytes of a budget: ``16 GB`` if three decimal digits are exact, otherwise in binary units."""
    unit, scale = next((u for u in DECIMAL_SIZE_UNITS if float(count) >= u[1]), ("B", 1.0))
    value = f"{float(count) / scale:.3g}"
    return f"{value} {unit}" if float(value) * scale == float(count) else size(count)


def rate(value: Any) -> str:
    """A count a second, shortened: ``12.3 k``."""
    return _format_scaled(value, RATE_UNITS).rstrip()


def integer(value: Any) -> str:
    """A count: ``65,536``; a mean of counts is formatted by `number`."""
    if not is_present(value) or float(value) != round(float(value)):
        return number(value)
    return f"{int(value):,}"


def percent(share: Any) -> str:
    """A share as ``3.12%``; never 100% for less than all."""
    return EMPTY if not is_present(share) else f"{number(min(100 * share, 99.9) if share < 1 else 100 * share)}%"


def ratio(value: Any, low: Any = None, high: Any = None) -> str:
    """A factor with its interval: ``24.1x (23.0-25.3)``."""
    return EMPTY if not is_present(value) else f"{number(value)}x{_format_interval(low, high)}"


def exponent_interval(value: Any, low: Any = None, high: Any = None) -> str:
    """A growth exponent with its interval, two decimals each."""
    if not is_present(value):
        return EMPTY
    if not (is_present(low) and is_present(high)):
        return _format_two_decimals(value)
    low, high = _format_two_decimals(low), _format_two_decimals(high)
    return f"{_format_two_decimals(value)} ({low}{' to ' if low.startswith('-') else INTERVAL_DASH}{high})"


def _format_two_decimals(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # the sum turns -0.00 into 0.00


def short_length(length: Any) -> str:
    """A length for an axis: 512, 1K, 2K, 1M; other lengths are unchanged."""
    length = int(length)
    for unit, scale in (("M", 1 << 20), ("K", 1 << 10)):
        if length >= scale and length % scale == 0:
            return f"{length // scale}{unit}"
    return str(length)


Unit = Literal["time", "seconds", "bytes", "ratio", "share", "error", "count", "number"]
FORMATTERS: Mapping[str, Callable[[Any], str]] = {
    "time": duration,
    "seconds": seconds,
    "bytes": size,
    "ratio": ratio,
    "share": percent,
    "error": number,
    "count": integer,
    "number": number,
}


def format_value(value: Any, unit: Unit) -> str:
    """A value of a column: a number in its unit, text, or yes or no for a boolean."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else FORMATTERS[unit](value)


def _format_scaled(value: Any, units: Sequence[tuple[str, float]], low: Any = None, high: Any = None) -> str:
    if not is_present(value):
        return EMPTY
    # 999.7 rounds to 1000 with three digits, and belongs to the next unit
    unit, scale = next((u for u in units if abs(float(value)) >= 0.9995 * u[1]), units[-1])
    scaled_ends = (low / scale, high / scale) if is_present(low) and is_present(high) else (None, None)
    return f"{number(float(value) / scale)} {unit}{_format_interval(*scaled_ends)}"


def _format_interval(low: Any, high: Any) -> str:
    return f" ({number(low)}{INTERVAL_DASH}{number(high)})" if is_present(low) and is_present(high) else ""
