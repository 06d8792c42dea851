"""Numbers and claims in words: units that people read, three significant digits, and no claim that noise could make."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

NONE = "\u2013"  # what an empty cell shows
TO = "\u2013"  # between the ends of an interval
TIMES = (("s", 1e3), ("ms", 1.0), ("\u00b5s", 1e-3), ("ns", 1e-6))
SIZES = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
DECIMAL_SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
RATES = (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))


def there(value: Any) -> bool:
    """Whether a place in a frame holds something."""
    return value is not None and value is not pd.NA and value == value  # what is not a number equals nothing


def number(value: Any) -> str:
    """Three significant digits; powers of ten only where zeros would have to be counted."""
    if not there(value):
        return NONE
    value = float(value)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.2e}")))))
    return f"{value:.{decimals}f}"


def duration(ms: Any, low: Any = None, high: Any = None) -> str:
    """Milliseconds in the unit that fits, an interval's ends in the same unit: ``12.3 ms (12.1-12.6)``."""
    return _scaled(ms, TIMES, low, high)


def size(count: Any) -> str:
    """Bytes in binary units: ``1.50 MiB``; whole bytes stay whole."""
    if there(count) and 0 <= float(count) < 1024:
        return f"{int(count)} B"
    return _scaled(count, SIZES)


def budget(count: Any) -> str:
    """Bytes as people set them: ``16 GB`` where three decimal digits say it all, else in binary units."""
    unit, scale = next((u for u in DECIMAL_SIZES if float(count) >= u[1]), ("B", 1.0))
    value = f"{float(count) / scale:.3g}"
    return f"{value} {unit}" if float(value) * scale == float(count) else size(count)


def rate(value: Any) -> str:
    """A count a second, shortened: ``12.3 k``."""
    return _scaled(value, RATES).rstrip()


def percent(share: Any) -> str:
    """A share as ``3.12%``; never 100% for less than all."""
    return NONE if not there(share) else f"{number(min(100 * share, 99.9) if share < 1 else 100)}%"


def ratio(value: Any, low: Any = None, high: Any = None) -> str:
    """A factor with its interval: ``24.1x (23.0-25.3)``."""
    return NONE if not there(value) else f"{number(value)}x{_interval(low, high)}"


def power(value: Any, low: Any = None, high: Any = None) -> str:
    """A growth exponent with its interval, two decimals each."""
    if not there(value):
        return NONE
    if not (there(low) and there(high)):
        return f"{value:.2f}"
    return f"{value:.2f} ({low:.2f}{' to ' if low < 0 else TO}{high:.2f})"


def short_length(length: Any) -> str:
    """A length as an axis shows it: 512, 1K, 2K, 1M; lengths that are no such multiple stay as they are."""
    length = int(length)
    for unit, scale in (("M", 1 << 20), ("K", 1 << 10)):
        if length >= scale and length % scale == 0:
            return f"{length // scale}{unit}"
    return str(length)


def count(n: int, noun: str) -> str:
    """``1 case``, ``3 cases``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def join(items: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *most, last = list(items) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def slug(*parts: object) -> str:
    """The parts as a name for a file, which is an id in the page as well."""
    text = "-".join(str(part) for part in parts if part is not None and str(part))
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def direction(causal: Any) -> str:
    return "" if not there(causal) else "causal" if causal else "bidirectional"


def mode_words(mode: Any) -> str:
    return "" if not there(mode) else {"forward_backward": "forward + backward"}.get(str(mode), str(mode))


def slice_words(mode: Any, causal: Any) -> str:
    """A slice's own part of its name: ``forward, causal``."""
    return ", ".join(filter(None, (mode_words(mode), direction(causal))))


def inputs_words(inputs: Any, causal: Any, length: Any) -> str:
    """What fidelity was measured on: ``minilm, bidirectional, N = 256``."""
    parts = (inputs if there(inputs) else "", direction(causal), f"N = {length}" if there(length) else "")
    return ", ".join(filter(None, parts))


def setting_words(setting: dict[str, Any], cpus: dict[str, str]) -> str:
    """Where and at which sizes something was measured, in one line."""
    get = setting.get
    parts = [get("device"), get("dtype")]
    parts += [count(int(setting[k]), noun) for k, noun in (("threads", "thread"),) if there(get(k))]
    parts += [f"batch {get('batch')}" if there(get("batch")) else None]
    heads = count(int(setting["heads"]), "head") if there(get("heads")) else ""
    heads += (" of size " if heads else "head size ") + str(get("head_dim")) if there(get("head_dim")) else ""
    parts += [heads, f"suite {get('suite')}" if there(get("suite")) else None]
    if there(get("machine")):
        machine, cpu = str(get("machine")), cpus.get(str(get("machine")), "")
        told = not cpu or cpu.replace(" ", "-") in machine
        parts.append(f"machine {machine}" + ("" if told else f" ({cpu})"))
    return " \u00b7 ".join(str(part) for part in parts if there(part) and str(part))


def verdict(low: Any, high: Any) -> str:
    """What an interval of a speedup shows: faster, slower, unclear (it holds 1), or nothing without an interval."""
    if not (there(low) and there(high)):
        return ""
    return "faster" if low > 1 else "slower" if high < 1 else "unclear"


def claims(rows: Sequence[dict[str, Any]], against: str, *, most: int | None = None) -> str:
    """One sentence about a slice's variants at one length; claims a difference only where its interval excludes 1.

    rows: label, speedup, speedup_low, speedup_high. most: how many differences to name, the largest first.
    """
    shown = [r for r in rows if verdict(r["speedup_low"], r["speedup_high"]) in ("faster", "slower")]
    shown.sort(key=lambda r: -abs(math.log(r["speedup"])))
    parts = [part for part in (_claim(shown[:most], kind, against) for kind in ("faster", "slower")) if part]
    if most is not None and len(shown) > most:
        parts.append(f"{len(shown) - most} more differ")
    for kind, words in (
        ("unclear", "no difference is shown"),
        ("", "measured without an interval, so nothing is said"),
    ):
        names = [
            r["label"] for r in rows if there(r["speedup"]) and verdict(r["speedup_low"], r["speedup_high"]) == kind
        ]
        if names:
            few = names if most is None or len(names) <= most else [*names[:most], f"{len(names) - most} more"]
            parts.append(f"{words} for {join(few)}")
    return "; ".join(parts)


def _claim(rows: Iterable[dict[str, Any]], kind: str, against: str) -> str:
    """``a is 24.1x (23.0-25.3) faster than full, b is 3.10x (2.98-3.22)``; nothing where no row is."""
    told = []
    for row in rows:
        value, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
        if verdict(low, high) == kind:
            factor = ratio(value, low, high) if kind == "faster" else ratio(1 / value, 1 / high, 1 / low)
            told.append(f"{row['label']} is {factor}" + ("" if told else f" {kind} than {against}"))
    return ", ".join(told)


def _scaled(value: Any, units: Sequence[tuple[str, float]], low: Any = None, high: Any = None) -> str:
    if not there(value):
        return NONE
    # 999.7 shows as 1000 in three digits, so that it belongs to the next unit already
    unit, scale = next((u for u in units if abs(float(value)) >= 0.9995 * u[1]), units[-1])
    ends = (low / scale, high / scale) if there(low) and there(high) else (None, None)
    return f"{number(float(value) / scale)} {unit}{_interval(*ends)}"


def _interval(low: Any, high: Any) -> str:
    return f" ({number(low)}{TO}{number(high)})" if there(low) and there(high) else ""
