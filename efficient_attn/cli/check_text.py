"""The outcomes of conformance tests as text: failures first, then a line of counts for each mechanism."""

from __future__ import annotations

import csv
import io
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..results.sanitize import sanitize_line
from .console import print_table

if TYPE_CHECKING:
    from ..testing import Outcome
    from .isolated_checks import CheckResults, CoverageRow

LABELS = {"passed": "passed", "not_claimed": "does not apply"}
DETAILED = 3  # failures of a mechanism that are shown with their details
NAMED = 16  # further failures that are named
# failures that often cause others, shown first
CAUSES = ("output", "equals_oracle", "causality", "decode_equals_forward", "published_cost", "growth_is_measured")


def show_checks(results: Mapping[str, CheckResults], seed: int, *, verbose: bool = False) -> None:
    """Print failures, with ``verbose`` all other outcomes, and the counts of each mechanism."""
    for name, result in results.items():
        failed = sorted((o for o in result.outcomes if o.status == "failed"), key=_rank)
        detailed = failed if verbose else failed[: DETAILED if _rank(failed[0]) else 1] if failed else []
        for outcome in detailed:
            _show_failure(name, outcome)
        if others := [o.check.name for o in failed[len(detailed) :]]:
            text = ", ".join(others) if len(others) <= NAMED else f"{len(others)} other checks"
            _print_wrapped(f"{name} also failed, perhaps for the same reasons (-v shows them): {text}\n")
    for name, result in results.items() if verbose else ():
        outcomes = [o for o in result.outcomes if o.status in LABELS]
        rows = [[o.check.name, LABELS[o.status], sanitize_line(o.reason)] for o in outcomes]
        print_table(name, ["check", "outcome", "reason"], rows)
    for name, result in results.items():
        _print_wrapped(f"{name}: {_count(result)} (seed {seed})")


def _count(result: CheckResults) -> str:
    """The number of checks by outcome, of those that did not run or printed text, and what the traits exclude."""
    from ..testing import sum_up

    counts = sum_up(result.outcomes) + (f", {result.left_out} did not run" if result.left_out else "")
    printed = f"{result.printed} printed text (-v shows it)" if result.printed else ""
    limits = f"limits: {', '.join(result.limits)}" if result.limits else ""
    return "; ".join(filter(None, (counts, printed, limits)))


def _rank(outcome: Outcome) -> int:
    return CAUSES.index(outcome.check.name) if outcome.check.name in CAUSES else len(CAUSES)


def _show_failure(name: str, outcome: Outcome) -> None:
    """Print what failed, for which input, the property, and what to do."""
    _print_wrapped(f"FAILED {outcome.check.name} of {name}")
    for text in (outcome.reason, outcome.advice):
        _print_wrapped(text, indent="  ")
    if outcome.lines:
        print("  Write into the class, with `import efficient_attn as ea`, as measured:\n")
        print(*(f"    {_make_printable(line)}" for line in outcome.lines), sep="\n")
    print()


def _print_wrapped(text: str, indent: str = "") -> None:
    """Print text as one line, wrapped to the width of a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else len(indent + text) + 1
    end = "\n" * text.endswith("\n")
    text = _make_printable(text)
    print(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent or "  "), end=f"\n{end}")


def _make_printable(text: str) -> str:
    """Text of mechanisms without control characters, and in the encoding of the output."""
    encoding = sys.stdout.encoding or "ascii"
    return sanitize_line(text).encode(encoding, "backslashreplace").decode(encoding)


def outcome_as_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome of a conformance test as data."""
    fields = {"check": outcome.check.name, "status": outcome.status, "reason": outcome.reason}
    more = {"advice": outcome.advice, "lines": list(outcome.lines)}
    return fields | {name: value for name, value in more.items() if value}


def format_coverage(rows: Mapping[str, Sequence[CoverageRow]]) -> str:
    """CSV: every pair of levels that a call can have, and how many compared calls of each mechanism had it."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("factor", "value", "other_factor", "other_value", "cases", "mechanism"))
    for name, pairs in rows.items():
        writer.writerows((*pair, name) for pair in pairs)
    return file.getvalue()
