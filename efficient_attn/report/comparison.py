"""A comparison of two runs as text for a terminal, Markdown for a pull request, and plain values for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..results.compare import KINDS, Change, Comparison
from ..units import number
from . import markdown
from .case_names import shorten
from .words import count

SCHEMA = 1
QUIET = ("same",)  # what only its count is said of, unless all is asked for
MOST = 100  # rows of a Markdown table, far below what a comment may hold
WIDTH = 80  # of a terminal
HEAD = ("case", "new against base", "own time", "times the baseline's speed")
ONESELF = "A run compared with itself: there is nothing to find, and this is what two such runs could have shown."


def as_json(found: Comparison) -> dict[str, Any]:
    """What `docs/comparing.md` describes; keys are added, never renamed."""
    short, shared = _name_cases(found)
    return {
        "schema": SCHEMA,
        "base": found.base,
        "new": found.new,
        "by": found.by,
        "confidence": found.confidence,
        "margin": found.margin,
        "tolerance": found.tolerance,
        "drift": found.drift,
        "unlike": list(found.unlike),
        "itself": found.itself,
        "regressed": found.regressed,
        "slower_by_at_most": found.slower_by_at_most,
        "blind": list(found.blind),
        "counts": dict(found.counts),
        "shared": shared,
        "cases": [asdict(change) | {"short": short[change.name]} for change in _sort(found.changes)],
        "only_in_base": list(found.only_in_base),
        "only_in_new": list(found.only_in_new),
        "failing": list(found.failing),
    }


def as_text(found: Comparison, *, everything: bool = False) -> str:
    """Lines for a terminal: the worst first, what is the same as a number alone unless ``everything`` is asked for."""
    short, shared = _name_cases(found)
    lines = [line for text in _introduce(found, shared, "*") for line in _wrap(text)]
    shown = _choose(found, everything)
    lines += ["", *_align(shown, short), ""] if shown else [""]
    for names, where in _list_elsewhere(found):
        lines += [f"{where}:", *(f"  {short[name]}" for name in names), ""]
    return "\n".join([*lines, *(line for text in conclude(found) for line in _wrap(text))]) + "\n"


def as_markdown(found: Comparison, *, everything: bool = False) -> str:
    """A summary and a table; what is not certain and what only one run holds is folded away."""
    short, shared = _name_cases(found)
    title, *notes = map(markdown.plain, _introduce(found, shared, "bold"))
    first, *more = map(markdown.plain, conclude(found))
    lines = [f"**{first}**", "", *more, "", title, *(f"\n> {text}" for text in notes)]
    shown = _choose(found, everything)
    lines += _make_table([change for change in shown if change.kind != "inconclusive"], short)
    if unclear := [change for change in shown if change.kind == "inconclusive"]:
        lines += _fold(f"{len(unclear)} inconclusive", _make_table(unclear, short))
    for names, where in _list_elsewhere(found):
        lines += _fold(f"{len(names)} {where}", ["", *_cap([f"- {markdown.code(short[name])}" for name in names])])
    return "\n".join(lines) + "\n"


def describe(change: Change) -> str:
    """``1.20x faster (1.15-1.26)``, ``same (0.990-1.01)``, ``blind below 30% (0.800-1.25)``, ``broken``."""
    kind, ratio, low, high = change.kind, change.ratio, change.low, change.high
    if ratio is None or low is None or high is None:
        return kind
    if kind == "slower":
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    said = f"{number(ratio)}x {kind}" if kind in ("faster", "slower") else kind
    if change.blind and change.least is not None:
        said = f"blind below {_tell_size(change.least)}"
    return f"{said} ({number(low)}-{number(high)})"


def sum_up(found: Comparison) -> str:
    """``1 slower, 2 faster, 40 same; 3 only in BASE``."""
    counts = [f"{n} {kind}" for kind, n in found.counts.items() if n]
    lost = [f"{len(names)} {where}" for names, where in _list_elsewhere(found)]
    return "; ".join(filter(None, [", ".join(counts) or "nothing to compare", ", ".join(lost)]))


def conclude(found: Comparison) -> list[str]:
    """The counts, then what can be ruled out and where nothing can."""
    return [sum_up(found), *filter(None, (_rule_out(found), _tell_blind(found)))]


# -- parts ---------------------------------------------------------------------------------------------------------


def _rule_out(found: Comparison) -> str:
    bound, blind = found.slower_by_at_most, len(found.blind)
    if bound is None:
        return ""
    which = "No other case" if blind else "No case"
    return f"{which} became slower by more than {_tell_size(bound)} (at {_sure(found)})."


def _tell_blind(found: Comparison) -> str:
    blind = [change for change in found.changes if change.blind]
    if not blind:
        return ""
    known = [change.least for change in blind if change.least is not None]
    told = f"{count(len(blind), 'case')} could not have shown a difference of {_tell_size(found.tolerance)}: "
    sizes = dict.fromkeys(map(_tell_size, (min(known), max(known)))) if known else ()
    parts = [f"{len(known)} at best one of {' to '.join(sizes)}"] if known else []
    parts += [f"{len(blind) - len(known)} none at all"] if len(known) < len(blind) else []
    return told + ", ".join(parts) + "."


def _tell_size(difference: float) -> str:
    """``7%``; from a factor of two on as one, ``2.50x``."""
    return f"{100 * difference:.2g}%" if difference < 0.995 else f"{number(1 + difference)}x"


def _sure(found: Comparison) -> str:
    return f"{100 * found.confidence:.4g}%"


def _introduce(found: Comparison, shared: str, mark: str) -> list[str]:
    """What is compared and how, then what must be known before."""
    what = "speedup over the baseline where there is one, else by time" if found.by == "speedup" else "time"
    title = f"{found.base} (base) and {found.new} (new), by {what} ({mark} decides); "
    title += f"{_sure(found)} for all verdicts together; same: within {_tell_size(found.tolerance)}"
    notes = [f"Unlike machines: {'; '.join(found.unlike)}. Differences may be theirs."] if found.unlike else []
    notes += [ONESELF] if found.itself else []
    return [title, *notes, *([f"All cases: {shared}"] if shared else [])]


def _name_cases(found: Comparison) -> tuple[Mapping[str, str], str]:
    everywhere = (*found.only_in_base, *found.only_in_new, *found.failing)
    return shorten([*(change.name for change in found.changes), *everywhere])


def _sort(changes: Iterable[Change]) -> list[Change]:
    """By kind; slower and faster by how much; blind cases after those that could see."""

    def place(change: Change) -> tuple[int, bool, float]:
        ratio = change.ratio or 1.0
        return KINDS.index(change.kind), change.blind, {"slower": ratio, "faster": -ratio}.get(change.kind, 0.0)

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


def _tell_speedups(change: Change) -> str:
    if change.base_speedup is None or change.new_speedup is None:
        return ""
    return f"{number(change.base_speedup)} -> {number(change.new_speedup)}"


def _tell_notes(change: Change) -> str:
    """What a verdict alone does not say: why, and what became of the memory."""
    memory = ""
    if change.base_bytes is not None and change.new_bytes is not None:
        before, after = (number(size / 2**20) for size in (change.base_bytes, change.new_bytes))
        memory = f"memory {before} -> {after} MiB"
    return "; ".join(filter(None, [change.reason, memory]))


def _list_cells(change: Change, mark: Callable[[str], str]) -> list[str]:
    """The verdict, and what it is about in two columns, the one that decided marked."""
    times, speedups = _tell_times(change), _tell_speedups(change)
    return [
        describe(change),
        mark(times) if times and change.by == "latency" else times,
        mark(speedups) if speedups and change.by == "speedup" else speedups,
    ]


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _align(changes: Sequence[Change], short: Mapping[str, str]) -> list[str]:
    """A line a case within the terminal's width; a name that leaves no room for the rest has a line of its own."""
    rows = [_list_cells(change, lambda text: f"{text} *") for change in changes]
    head = [HEAD[1], HEAD[2], "speedup"]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    room = WIDTH - sum(widths) - 2 * len(widths)
    first = max((len(name) for c in changes if len(name := short[c.name]) <= room), default=len(HEAD[0]))
    lines = [_line_up([HEAD[0], *head], [first, *widths])]
    for change, cells in zip(changes, rows, strict=True):
        name = short[change.name]
        lines += [name] if len(name) > room else []
        lines.append(_line_up(["" if len(name) > room else name, *cells], [first, *widths]))
        lines += _wrap(_tell_notes(change), "    ")
    return lines


def _line_up(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text.ljust(width) for text, width in zip(cells, widths, strict=True)).rstrip()


def _make_table(changes: Sequence[Change], short: Mapping[str, str]) -> list[str]:
    if not changes:
        return []
    rows = [
        (markdown.code(short[c.name]), *_list_cells(c, lambda text: f"**{text}**"), markdown.plain(_tell_notes(c)))
        for c in changes
    ]
    body = [f"| {' | '.join(row)} |" for row in rows]
    return ["", f"| {' | '.join(HEAD)} | |", "|---|---|---|---|---|", *_cap(body)]


def _cap(lines: Sequence[str]) -> list[str]:
    return [*lines[:MOST], *([f"\n{len(lines) - MOST} more"] if len(lines) > MOST else [])]


def _fold(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"<details><summary>{markdown.plain(title)}</summary>", *lines, "", "</details>"]
