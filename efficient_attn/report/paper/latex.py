"""A table as LaTeX has it: booktabs' rules, intervals small beside their values, and every name as plain text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence

from ... import units
from .paper_figures import PaperFigure, TableCell

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedblright{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "\u2013": "--",
    "\u2014": "---",
    "\u00b5": r"\textmu{}",
    "\u00b7": r"\textperiodcentered{}",
    "\u00d7": r"\texttimes{}",
    "\u00a0": "~",
    "-": "{-}",  # so that no two of a name's become a dash
    "[": "{[}",  # after a row's end, a bracket would be its argument
    "]": "{]}",
    **{letter: f"\\{letter}" for letter in "{}$&#_%"},
}
LAST_LATIN = "\u00ff"  # up to here every LaTeX knows letters


def escape(text: str) -> str:
    """Text that LaTeX sets as it is and never carries out; what it may not know is told by its number."""
    return "".join(map(_escape_letter, " ".join(text.split())))


def _escape_letter(letter: str) -> str:
    if letter in SPECIAL:
        return SPECIAL[letter]
    if " " <= letter <= "\x7e" or (letter <= LAST_LATIN and unicodedata.category(letter)[0] == "L"):
        return letter
    return rf"\texttt{{U+{ord(letter):04X}}}"


def format_table(
    figure: PaperFigure,
    *,
    names: Mapping[str, str],
    caption: str,
    label: str,
    bold: Collection[str],
    head: Sequence[str],
) -> str:
    """The whole table. head: lines that stand above it as comments. label: what ``\\ref`` calls it."""
    columns = f"l{'r' * (len(figure.head) - 1)}"
    lines = [f"% {_format_comment(line)}" for line in head]
    lines += [r"\begin{table}", r"  \centering", r"  \small", f"  \\caption{{{escape(caption)}}}"]
    lines += [f"  \\label{{{label}}}", f"  \\begin{{tabular}}{{{columns}}}", r"    \toprule"]
    lines += [f"    {' & '.join(map(escape, figure.head))} \\\\", r"    \midrule"]
    for first, *rest in figure.body:
        name = escape(names.get(first.text, first.text))
        cells = [name, *map(_format_cell, rest)]
        styled = [rf"\textbf{{{cell}}}" for cell in cells] if first.text in bold else cells
        lines.append(f"    {' & '.join(styled)} \\\\")
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _format_cell(cell: TableCell) -> str:
    text = escape(units.NONE if not cell.text else cell.text)
    return text + (rf" {{\scriptsize ({escape(cell.interval)})}}" if cell.interval else "")


def _format_comment(text: str) -> str:
    """One line, with nothing in it but what can be seen: a comment ends where its line does."""
    return re.sub(r"[^\x20-\x7e]", "?", " ".join(text.split()))
