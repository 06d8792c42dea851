"""Terminal output of ``recommend``: rankings that fit the terminal, notes, and the runs to measure."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence

from ..report.answers import recommendation_text
from ..report.answers.recommendation import Recommendation
from ..report.answers.recommendation_text import AnswerRow

NO_BREAK_SPACE = "\xa0"


def show_answer(recommendation: Recommendation, estimate: Callable[[str], str], *, width: int | None = None) -> None:
    """Print the ranked mechanisms, those of unknown quality, the notes, and what to measure if nothing is ranked.

    estimate: describes the cost of a command. width: columns, by default those of the terminal, and 80 for a pipe.
    """
    width = width or shutil.get_terminal_size((80, 24)).columns
    print(textwrap.fill(recommendation.requirements.describe(), width), end="\n\n")
    _show_rankings(recommendation, width)
    if recommendation.choices:
        return
    print("To measure what is missing:")
    for command in recommendation_text.list_commands(recommendation.requirements):
        text = re.sub(r" (?!--)", NO_BREAK_SPACE, command)  # lines break before an option, not before its value
        lines = " \\\n".join(_wrap(text, width - 2, indent=2)).replace(NO_BREAK_SPACE, " ")
        print(lines, *_wrap(estimate(command), width, indent=6), sep="\n")
    if recommendation.nearest:
        differences = recommendation_text.describe_nearest(recommendation)
        print("", *_wrap(f"Nearest measured, not an answer to your question: {differences}.", width), "", sep="\n")
        _show_rankings(recommendation.nearest, width)


def _show_rankings(recommendation: Recommendation, width: int) -> None:
    headings = recommendation_text.list_headings(recommendation)
    not_verified = f"not verified at {recommendation.requirements.seq_len:,}: of unknown quality, so not ranked"
    for title, rows in (
        ("", recommendation_text.as_rows(recommendation)),
        (not_verified, recommendation_text.list_unverified_rows(recommendation)),
    ):
        if rows:
            print(*filter(None, (title, *_format_rows(headings, rows, width))), "", sep="\n")
    for note in recommendation_text.list_notes(recommendation):
        print(*_wrap(note, width), sep="\n")


def _format_rows(headings: Sequence[str], rows: Sequence[AnswerRow], width: int) -> Iterator[str]:
    """Lines of a table. Numbers follow a name in its line if it leaves room for them, otherwise in the next line."""
    all_cells = [headings, *(cells for cells, _ in rows)]
    rank_width, name_width, *number_widths = (max(map(len, column)) for column in zip(*all_cells, strict=True))
    indent = " " * (rank_width + 2)
    name_width = min(name_width, max(0, width - len(indent) - sum(number_widths) - 2 * len(number_widths)))
    for (rank, name, *numbers), details in [(headings, ()), *rows]:
        ends = "".join(f"  {text:>{size}}" for text, size in zip(numbers, number_widths, strict=True))
        if len(name) <= name_width:
            yield f"{rank:>{rank_width}}  {name:<{name_width}}{ends}".rstrip()
        else:
            yield from _wrap(f"{rank:>{rank_width}}  {name}", width)
            yield f"{indent}{'':{name_width}}{ends}".rstrip()
        for text in details:
            yield from textwrap.wrap(text, width, initial_indent=f"{indent}  ", subsequent_indent=f"{indent}  ")


def _wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    """Lines of a sentence or command, which break at spaces, or inside words that are longer than a line."""
    start, rest = " " * indent, " " * (indent + 4)
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=rest, break_on_hyphens=False)
