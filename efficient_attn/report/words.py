"""What rows say in words: where they come from, and no claim that noise could make."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..units import ratio, there

# what is padding in a batch that is not full
FILLS = {"half": "rows half full", "drawn": "rows of drawn lengths, padded", "packed": "rows of drawn lengths, packed"}


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
    return " \u00b7 ".join(_say_setting(setting, cpus).values())


def place_words(setting: dict[str, Any], cpus: dict[str, str]) -> str:
    """What a setting's numbers hold for: ``cpu, float32, 1 thread, batch 1, 4 heads of size 64, machine M2-x8``."""
    return ", ".join(text for name, text in _say_setting(setting, cpus).items() if name != "suite")


def _say_setting(setting: dict[str, Any], cpus: dict[str, str]) -> dict[str, str]:
    """What is known of a setting, in words."""
    get, heads, width = setting.get, setting.get("heads"), setting.get("head_dim")
    size = f"{'of size' if there(heads) else 'head size'} {width}" if there(width) else ""
    said = {
        "device": get("device"),
        "dtype": get("dtype"),
        "threads": count(int(setting["threads"]), "thread") if there(get("threads")) else "",
        "batch": f"batch {get('batch')}" if there(get("batch")) else "",
        "heads": " ".join(filter(None, (count(int(setting["heads"]), "head") if there(heads) else "", size))),
        "fill": FILLS.get(str(get("fill")), ""),
        "suite": f"suite {get('suite')}" if there(get("suite")) else "",
        "machine": machine_words(get("machine"), cpus) if there(get("machine")) else "",
    }
    return {name: str(text) for name, text in said.items() if there(text) and str(text)}


def machine_words(machine: Any, cpus: dict[str, str]) -> str:
    """A machine's name, and its processor's where the name does not tell it."""
    cpu = cpus.get(str(machine), "")
    told = not cpu or cpu.replace(" ", "-") in str(machine)
    return f"machine {machine}" + ("" if told else f" ({cpu})")


def verdict(low: Any, high: Any) -> str:
    """What an interval of a speedup shows: faster, slower, unclear (it holds 1), or nothing without an interval."""
    if not (there(low) and there(high)):
        return ""
    return "faster" if low > 1 else "slower" if high < 1 else "unclear"


def claim(rows: Sequence[dict[str, Any]], against: str, *, most: int | None = None) -> str:
    """One sentence about a slice's variants at one length; claims a difference only where its interval excludes 1.

    rows: label, speedup, speedup_low, speedup_high, and maybe loss: what the variant loses, in words. most: how many
    differences to name, the largest first.
    """
    shown = [r for r in rows if verdict(r["speedup_low"], r["speedup_high"]) in ("faster", "slower")]
    shown.sort(key=lambda r: -abs(math.log(r["speedup"])))
    named = shown[:most]
    losses = {row.get("loss", "") for row in named}
    alike = losses.pop() if len(losses) == 1 else ""  # what all lose is said once
    named = [row | {"loss": ""} for row in named] if alike else named
    parts = [part for part in (_claim_kind(named, kind, against) for kind in ("faster", "slower")) if part]
    parts += [f"all: {alike}" if len(named) > 1 else alike] if alike else []
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


def _claim_kind(rows: Iterable[dict[str, Any]], kind: str, against: str) -> str:
    """``a is 24.1x (23.0-25.3) faster than full, b is 3.10x (2.98-3.22)``; nothing where no row is.

    What each loses follows it, if anything is said of that: ``a is 24.1x faster than full, error 0.3; b is ...``.
    """
    told, losses = [], []
    for row in rows:
        value, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
        if verdict(low, high) == kind:
            factor = ratio(value, low, high) if kind == "faster" else ratio(1 / value, 1 / high, 1 / low)
            losses.append(row.get("loss", ""))
            told.append(f"{row['label']} is {factor}" + ("" if told else f" {kind} than {against}"))
    if not any(losses):
        return ", ".join(told)
    return "; ".join(", ".join(filter(None, both)) for both in zip(told, losses, strict=True))
