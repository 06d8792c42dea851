"""Format a comparison of two runs: text for terminals, Markdown for pull requests, and JSON."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..results.compare import CHANGE_KINDS, Change, Comparison
from ..units import number
from . import markdown
from .case_names import shorten_names
from .formatting import format_count

SCHEMA_VERSION = 1
MAX_TABLE_ROWS = 100  # of a Markdown table, far below the limit of a comment
TERMINAL_WIDTH = 80
TABLE_HEAD = ("case", "new against base", "own time", "times the baseline's speed")
SELF_COMPARISON_NOTE = (
    "A run compared with itself: there is nothing to find, and this is what two such runs could have shown."
)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The schema in `docs/how-to/compare-runs.md`; keys are added, never renamed."""
    short, shared = name_cases(comparison)
    computed = {name: getattr(comparison, name) for name in ("regressed", "slower_by_at_most", "blind", "counts")}
    cases = [asdict(change) | {"short": short[change.name]} for change in sort_changes(comparison.changes)]
    data = {"schema": SCHEMA_VERSION, **asdict(comparison), **computed, "shared": shared, "cases": cases}
    del data["changes"]
    return data


def as_text(comparison: Comparison, *, include_all: bool = False) -> str:
    """Format for a terminal, worst cases first; unchanged cases are only counted unless ``include_all``."""
    short, shared = name_cases(comparison)
    lines = [line for text in _describe_setup(comparison, shared, "*") for line in _wrap(text)]
    changes = _select_changes(comparison, include_all)
    lines += ["", *_format_aligned_table(changes, short), ""] if changes else [""]
    for heading, names in list_unmatched(comparison).items():
        lines += [f"{heading}:", *(f"  {short[name]}" for name in names), ""]
    return "\n".join([*lines, *(line for text in summarise_comparison(comparison) for line in _wrap(text))]) + "\n"


def as_markdown(comparison: Comparison, *, include_all: bool = False) -> str:
    """A summary and a table; inconclusive and unmatched cases are collapsed."""
    short, shared = name_cases(comparison)
    title, *notes = map(markdown.escape_markdown, _describe_setup(comparison, shared, "bold"))
    first_line, *more_lines = map(markdown.escape_markdown, summarise_comparison(comparison))
    lines = [f"**{first_line}**", "", *more_lines, "", title, *(f"\n> {text}" for text in notes)]
    changes = _select_changes(comparison, include_all)
    lines += _make_markdown_table([change for change in changes if change.kind != "inconclusive"], short)
    if unclear := [change for change in changes if change.kind == "inconclusive"]:
        lines += _make_details(f"{len(unclear)} inconclusive", _make_markdown_table(unclear, short))
    for heading, names in list_unmatched(comparison).items():
        items = _limit_lines([f"- {markdown.format_code(short[name])}" for name in names])
        lines += _make_details(f"{len(names)} {heading}", ["", *items])
    return "\n".join(lines) + "\n"


def describe_change(change: Change) -> str:
    """``1.20x faster (1.15-1.26)``, ``same (0.990-1.01)``, ``blind below 30% (0.800-1.25)``, ``broken``."""
    kind, ratio, low, high = change.kind, change.ratio, change.low, change.high
    if ratio is None or low is None or high is None:
        return kind
    if kind == "slower":
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    text = f"{number(ratio)}x {kind}" if kind in ("faster", "slower") else kind
    if change.blind and change.least is not None:
        text = f"blind below {_format_difference(change.least)}"
    return f"{text} ({number(low)}-{number(high)})"


def format_counts(comparison: Comparison) -> str:
    """``1 slower, 2 faster, 40 same; 3 only in BASE``."""
    counts = [f"{n} {kind}" for kind, n in comparison.counts.items() if n]
    return "; ".join(filter(None, [", ".join(counts) or "nothing to compare", format_unmatched(comparison)]))


def format_unmatched(comparison: Comparison) -> str:
    """``3 only in BASE, 1 failing in both``; empty if all cases were compared."""
    return ", ".join(f"{len(names)} {heading}" for heading, names in list_unmatched(comparison).items())


def summarise_comparison(comparison: Comparison) -> list[str]:
    """The counts, then the bound on slowdowns, then the cases without enough precision."""
    others = [change.slower_by_at_most for change in comparison.changes if change.kind != "slower"]
    sentences, bound = [format_counts(comparison)], max((x for x in others if x is not None), default=None)
    blind = [change for change in comparison.changes if change.blind]
    if bound is not None:
        slower, confidence = len(others) < len(comparison.changes), _format_confidence(comparison)
        subject = "No other case" if blind or slower else "No case"
        sentences.append(f"{subject} became slower by more than {_format_difference(bound)} (at {confidence}).")
    if blind:
        detectable = [change.least for change in blind if change.least is not None]
        sizes = dict.fromkeys(map(_format_difference, (min(detectable), max(detectable)))) if detectable else ()
        parts = [f"{len(detectable)} at best one of {' to '.join(sizes)}"] if detectable else []
        parts += [f"{len(blind) - len(detectable)} none at all"] if len(detectable) < len(blind) else []
        subject, tolerance = format_count(len(blind), "case"), _format_difference(comparison.tolerance)
        sentences.append(f"{subject} could not have shown a difference of {tolerance}: {', '.join(parts)}.")
    return sentences


# -- parts ---------------------------------------------------------------------------------------------------------


def _format_difference(difference: float) -> str:
    """``7%``; as a factor from 2 on: ``2.50x``."""
    return f"{100 * difference:.2g}%" if difference < 0.995 else f"{number(1 + difference)}x"


def _format_confidence(comparison: Comparison) -> str:
    return f"{100 * comparison.confidence:.4g}%"


def _describe_setup(comparison: Comparison, shared: str, mark: str) -> list[str]:
    """What is compared and how, followed by caveats."""
    quantity = "speedup over the baseline where there is one, else by time" if comparison.by == "speedup" else "time"
    if pairs := {change.pairs for change in comparison.changes if change.pairs}:
        quantity = f"time in {max(pairs)} pairs of process runs, where those of both alternated, else by {quantity}"
    title = f"{comparison.base} (base) and {comparison.new} (new), by {quantity} ({mark} decides); "
    tolerance = _format_difference(comparison.tolerance)
    title += f"{_format_confidence(comparison)} for all verdicts together; same: within {tolerance}"
    notes = (
        f"Unlike machines: {'; '.join(comparison.unlike)}. Differences may be theirs." if comparison.unlike else "",
        SELF_COMPARISON_NOTE if comparison.itself else "",
        f"All cases: {shared}" if shared else "",
    )
    return [title, *filter(None, notes)]


def name_cases(comparison: Comparison) -> tuple[Mapping[str, str], str]:
    """The short name of every case, and what the names omit."""
    unmatched = (*comparison.only_in_base, *comparison.only_in_new, *comparison.failing)
    return shorten_names([*(change.name for change in comparison.changes), *unmatched])


def sort_changes(changes: Iterable[Change]) -> list[Change]:
    """By kind, then blind cases last, then slower and faster by ratio."""

    def sort_key(change: Change) -> tuple[int, bool, float]:
        ratio = change.ratio or 1.0
        return CHANGE_KINDS.index(change.kind), change.blind, {"slower": ratio, "faster": -ratio}.get(change.kind, 0.0)

    return sorted(changes, key=sort_key)


def _select_changes(comparison: Comparison, include_all: bool) -> list[Change]:
    """The changes to list; those with a change of memory are always listed."""
    changes = sort_changes(comparison.changes)
    return [c for c in changes if include_all or c.kind != "same" or c.base_bytes is not None]


def list_unmatched(comparison: Comparison) -> Mapping[str, Sequence[str]]:
    """The cases that only one run has, or that fail in both, by heading."""
    names_by_heading = {
        "only in base": comparison.only_in_base,
        "only in new": comparison.only_in_new,
        "failing in both": comparison.failing,
    }
    return {heading: names for heading, names in names_by_heading.items() if names}


def _format_pair(before: float | None, after: float | None, unit: str = "") -> str:
    """``1.20 -> 1.50 ms``; empty if a value is missing."""
    return "" if before is None or after is None else f"{number(before)} -> {number(after)}{unit}"


def _format_notes(change: Change) -> str:
    """The reason for a verdict, and the change of memory."""
    sizes = (None if size is None else size / 2**20 for size in (change.base_bytes, change.new_bytes))
    memory = _format_pair(*sizes, unit=" MiB")
    return "; ".join(filter(None, [change.reason, memory and f"memory {memory}"]))


def describe_fully(change: Change) -> str:
    """``1.25x slower (1.18-1.33), 10.0 -> 12.5 ms; disturbed``: the verdict, what was compared, and notes."""
    verdict, times, speedups = _format_cells(change, lambda text: text)
    compared = times if change.by == "latency" else speedups and f"speedup {speedups}"
    if change.by == "latency" and not _agrees(change):
        compared = ""  # pairs of process runs were compared, whose ratio may be another than that of both medians
    return "; ".join(filter(None, [", ".join(filter(None, [verdict, compared])), _format_notes(change)]))


def _agrees(change: Change) -> bool:
    """Whether the ratio of both times is within the interval of what was compared."""
    if change.base_ms is None or change.new_ms is None or change.low is None or change.high is None:
        return True
    return change.low <= change.base_ms / change.new_ms <= change.high


def _format_cells(change: Change, mark: Callable[[str], str]) -> list[str]:
    """The verdict, times and speedups; ``mark`` is applied to the quantity that decided."""
    times = _format_pair(change.base_ms, change.new_ms, " ms")
    speedups = _format_pair(change.base_speedup, change.new_speedup)
    return [
        describe_change(change),
        mark(times) if times and change.by == "latency" else times,
        mark(speedups) if speedups and change.by == "speedup" else speedups,
    ]


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        TERMINAL_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _format_aligned_table(changes: Sequence[Change], short: Mapping[str, str]) -> list[str]:
    """One line per case within the terminal's width; names that are too long get a line of their own."""
    rows = [_format_cells(change, lambda text: f"{text} *") for change in changes]
    head = [TABLE_HEAD[1], TABLE_HEAD[2], "speedup"]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    most = TERMINAL_WIDTH - sum(widths) - 2 * len(widths)
    names = [short[change.name] for change in changes]
    widths = [max((len(name) for name in names if len(name) <= most), default=len(TABLE_HEAD[0])), *widths]
    lines = []
    for name, cells, notes in [(TABLE_HEAD[0], head, ""), *zip(names, rows, map(_format_notes, changes), strict=True)]:
        lines += [name] if len(name) > most else []
        cells = ["" if len(name) > most else name, *cells]
        lines.append("  ".join(text.ljust(width) for text, width in zip(cells, widths, strict=True)).rstrip())
        lines += _wrap(notes, "    ")
    return lines


def _make_markdown_table(changes: Sequence[Change], short: Mapping[str, str]) -> list[str]:
    if not changes:
        return []
    body = []
    for change in changes:
        cells = _format_cells(change, lambda text: f"**{text}**")
        notes = markdown.escape_markdown(_format_notes(change))
        body.append(f"| {' | '.join([markdown.format_code(short[change.name]), *cells, notes])} |")
    return ["", f"| {' | '.join(TABLE_HEAD)} | |", "|---|---|---|---|---|", *_limit_lines(body)]


def _limit_lines(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - MAX_TABLE_ROWS
    return [*lines[:MAX_TABLE_ROWS], *([f"\n{rest} more"] if rest > 0 else [])]


def _make_details(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"<details><summary>{markdown.escape_markdown(title)}</summary>", *lines, "", "</details>"]
