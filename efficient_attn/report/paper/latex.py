"""Format a table as LaTeX with booktabs, intervals in small print, and all names escaped."""

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
    "-": "{-}",  # prevents ligatures to dashes
    "[": "{[}",  # after the end of a row, a bracket would be parsed as its argument
    "]": "{]}",
    **{letter: f"\\{letter}" for letter in "{}$&#_%"},
}
LAST_LATIN = "\u00ff"  # letters up to here are supported by every LaTeX


def escape(text: str) -> str:
    """Escape text for LaTeX; characters outside Latin-1 become their code points."""
    return "".join(map(_escape_letter, " ".join(text.split())))


def _escape_letter(letter: str) -> str:
    if letter in SPECIAL:
        return SPECIAL[letter]
    if " " <= letter <= "\x7e" or (letter <= LAST_LATIN and unicodedata.category(letter)[0] == "L"):
        return letter
    return rf"\texttt{{U+{ord(letter):04X}}}"


def format_table(
    figure: PaperFigure, names: Mapping[str, str], label: str, bold: Collection[str], head: Sequence[str]
) -> str:
    """Format the whole table. head: comment lines above it. label: for ``\\ref``."""
    columns = f"l{'r' * (len(figure.head) - 1)}"
    lines = [f"% {_format_comment(line)}" for line in head]
    lines += [r"\begin{table}", r"  \centering", r"  \small", f"  \\caption{{{escape(figure.caption)}}}"]
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
    text = escape(units.EMPTY if not cell.text else cell.text)
    return text + (rf" {{\scriptsize ({escape(cell.interval)})}}" if cell.interval else "")


def _format_comment(text: str) -> str:
    """Make a text a single line of printable ASCII, as a comment ends with its line."""
    return re.sub(r"[^\x20-\x7e]", "?", " ".join(text.split()))
