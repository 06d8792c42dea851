"""A comparison of two runs as text for a terminal, Markdown for a pull request, and plain values for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ..results.compare import KINDS, Change, Comparison
from ..units import number

SCHEMA = 1
QUIET = ("same",)  # what only its count is said of, unless all is asked for
MOST = 100  # rows of a Markdown table, far below what a comment may hold


def as_json(found: Comparison) -> dict[str, Any]:
    """What `docs/comparing.md` describes; keys are added, never renamed."""
    return {
        "schema": SCHEMA,
        "base": found.base,
        "new": found.new,
        "by": found.by,
        "confidence": found.confidence,
        "margin": found.margin,
        "drift": found.drift,
        "unlike": list(found.unlike),
        "regressed": found.regressed,
        "counts": dict(found.counts),
        "cases": [asdict(change) for change in _sort(found.changes)],
        "only_in_base": list(found.only_in_base),
        "only_in_new": list(found.only_in_new),
        "failing": list(found.failing),
    }


def as_text(found: Comparison, *, everything: bool = False) -> str:
    """Lines for a terminal: the worst first, what is the same as a number alone unless ``everything`` is asked for."""
    lines = [_make_title(found), *_list_warnings(found), ""]
    shown = _choose(found, everything)
    rows = [[change.name, describe(change), _tell_times(change), _tell_memory(change)] for change in shown]
    lines += [*_align(rows), *([""] if rows else [])]
    for names, where in _list_elsewhere(found):
        lines += [f"{where}:", *(f"  {name}" for name in names), ""]
    return "\n".join([*lines, sum_up(found)]) + "\n"


def as_markdown(found: Comparison, *, everything: bool = False) -> str:
    """A summary and a table; what is not certain and what only one run holds is folded away."""
    lines = [f"**{sum_up(found)}**", "", _make_title(found), *(f"\n> {text}" for text in _list_warnings(found))]
    shown = _choose(found, everything)
    clear = [change for change in shown if change.kind != "inconclusive"]
    lines += _make_table(clear)
    if unclear := [change for change in shown if change.kind == "inconclusive"]:
        lines += _fold(f"{len(unclear)} inconclusive", _make_table(unclear))
    for names, where in _list_elsewhere(found):
        lines += _fold(f"{len(names)} {where}", ["", *_cap([f"- `{name}`" for name in names])])
    return "\n".join(lines) + "\n"


def describe(change: Change) -> str:
    """``1.20x faster (1.15-1.26)``, ``same (0.99-1.01)``, ``broken (oom: ...)``."""
    kind, ratio, low, high = change.kind, change.ratio, change.low, change.high
    if ratio is None or low is None or high is None:
        return f"{kind} ({change.reason})" if change.reason else kind
    if kind == "slower":
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    factor = f"{number(ratio)}x " if kind in ("faster", "slower") else ""
    more = f"; {change.reason}" if change.reason else ""
    return f"{factor}{kind} ({number(low)}-{number(high)}{more})"


def sum_up(found: Comparison) -> str:
    """``1 slower, 2 faster, 40 same; 3 only in BASE``."""
    counts = [f"{count} {kind}" for kind, count in found.counts.items() if count]
    lost = [f"{len(names)} {where}" for names, where in _list_elsewhere(found)]
    return "; ".join(filter(None, [", ".join(counts) or "nothing to compare", ", ".join(lost)]))


# -- parts ---------------------------------------------------------------------------------------------------------


def _make_title(found: Comparison) -> str:
    what = "speedup over the baseline where there is one, else by latency" if found.by == "speedup" else "latency"
    sure = f"{100 * found.confidence:.4g}% for all intervals together"
    return f"{found.base} (base) and {found.new} (new), by {what}; {sure}"


def _list_warnings(found: Comparison) -> list[str]:
    return [f"Unlike machines: {'; '.join(found.unlike)}. Differences may be theirs."] if found.unlike else []


def _sort(changes: Iterable[Change]) -> list[Change]:
    """By kind; slower and faster by how much."""

    def place(change: Change) -> tuple[int, float]:
        ratio = change.ratio or 1.0
        return KINDS.index(change.kind), {"slower": ratio, "faster": -ratio}.get(change.kind, 0.0)

    return sorted(changes, key=place)


def _choose(found: Comparison, everything: bool) -> list[Change]:
    """All but what nothing is to be said of; a change of memory is worth a line in any case."""
    return [c for c in _sort(found.changes) if everything or c.kind not in QUIET or c.base_bytes is not None]


def _list_elsewhere(found: Comparison) -> Iterator[tuple[Sequence[str], str]]:
    sides = (found.only_in_base, "only in base"), (found.only_in_new, "only in new"), (found.failing, "failing in both")
    return ((names, where) for names, where in sides if names)


def _tell_times(change: Change) -> str:
    if change.base_ms is None or change.new_ms is None:
        return ""
    return f"{number(change.base_ms)} -> {number(change.new_ms)} ms"


def _tell_memory(change: Change) -> str:
    if change.base_bytes is None or change.new_bytes is None:
        return ""
    before, after = (number(count / 2**20) for count in (change.base_bytes, change.new_bytes))
    return f"memory {before} -> {after} MiB"


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _make_table(changes: Sequence[Change]) -> list[str]:
    if not changes:
        return []
    rows = [(f"`{c.name}`", describe(c), _tell_times(c), _tell_memory(c)) for c in changes]
    body = ["| " + " | ".join(_escape(text) for text in row) + " |" for row in rows]
    return ["", "| case | | base -> new | |", "|---|---|---|---|", *_cap(body)]


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")  # a union of mechanisms has bars in its name


def _cap(lines: Sequence[str]) -> list[str]:
    return [*lines[:MOST], *([f"\n{len(lines) - MOST} more"] if len(lines) > MOST else [])]


def _fold(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"<details><summary>{title}</summary>", *lines, "", "</details>"]
