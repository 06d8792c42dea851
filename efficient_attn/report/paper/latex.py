"""Format a table as LaTeX with booktabs: one group of columns per configuration, notes below, and all names escaped."""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ... import units
from .. import formatting
from ..answers.decision_table import choose_lengths
from ..drawing.print_figure import WIDE_FROM
from .table_columns import TableCell, TableColumn

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
    "\u2026": r"\ldots{}",
    "\u00b5": r"\textmu{}",
    "\u00b7": r"\textperiodcentered{}",
    "\u00d7": r"\texttimes{}",
    "\u00a0": "~",
    "-": "{-}",  # prevents ligatures to dashes
    "[": "{[}",  # after the end of a row, a bracket would be parsed as its argument
    "]": "{]}",
    **{letter: f"\\{letter}" for letter in "{}$&#_%"},
}
UNSUPPORTED = "\u00d0\u00de\u00f0\u00fe"  # Latin-1 letters that LaTeX's default encoding lacks
LAST_LATIN = "\u00ff"
# mathematics in our own texts, after escaping: N^1.02, N^a, <=512 and 17.2x
MATHEMATICS = (
    (re.compile(r"\bN\\textasciicircum\{\}((?:\{-\})?[\d.]+|a\b)"), lambda m: f"$N^{{{m[1].replace('{-}', '-')}}}$"),
    (re.compile(r"\\textless\{\}="), lambda m: r"$\le$"),
    (re.compile(r"(?<=\d)x\b"), lambda m: r"$\times$"),
)
TEXT_SIZE, SMALL_SIZE = 9.0, 7.6  # points: \small, and \scriptsize, whose letters are wider
LETTER_WIDTHS = {  # approximate, in LaTeX's default font, relative to its size
    **dict.fromkeys(" .,:;'|!()[]-ijlft", 0.33),
    **dict.fromkeys("mw%&#@+=<>\u00d7" + string.ascii_uppercase, 0.8),
    **dict.fromkeys("\u2013\u2014\u2026", 0.53),
}
OTHER_WIDTH, CODE_POINT_WIDTH = 0.53, 3.3  # of other letters, and of U+4E2D
COLUMN_GAP, INTERVAL_GAP = 6.0, 2.0  # points between columns, and between a value and its interval
LINE_HEIGHT, SMALL_LINE_HEIGHT, MAX_HEIGHT = 11.0, 12.0, 380.0  # points: of rows (small: with the gap), of a page's
WIDE_INCHES = 6.8  # width of a page's text
MAX_NAME = 44  # letters of a mechanism's name


def escape(text: str) -> str:
    """Escape text for LaTeX; characters that not every LaTeX supports become their code points."""
    return "".join(map(_escape_letter, " ".join(text.split())))


def _escape_letter(letter: str) -> str:
    if letter in SPECIAL:
        return SPECIAL[letter]
    is_latin = letter <= LAST_LATIN and letter.isalpha() and letter not in UNSUPPORTED
    return letter if " " <= letter <= "\x7e" or is_latin else rf"\texttt{{U+{ord(letter):04X}}}"


def format_text(text: str) -> str:
    """Escape our own text, and set its powers, signs and factors as mathematics."""
    escaped = escape(text)
    for pattern, replacement in MATHEMATICS:
        escaped = pattern.sub(replacement, escaped)
    return escaped


@dataclass(frozen=True)
class LatexTable:
    """A table. groups: the lines of each configuration's title, and its columns. shared: columns after all groups.
    name, bold: of the reference and highlighted labels. comments: lines above the table. notes: sentences below it.
    stacked: whether intervals are below their values, and options below their names. rows: the labels of one of several
    pages; otherwise all are shown.
    """

    groups: Sequence[tuple[Sequence[str], Sequence[TableColumn]]]
    shared: Sequence[TableColumn]
    caption: str
    notes: Sequence[str]
    name: str
    comments: Sequence[str] = ()
    bold: Collection[str] = ()
    left_out: tuple[int, ...] = ()
    stacked: bool = False
    inches: float = WIDE_INCHES
    rows: Sequence[str] = ()

    @property
    def columns(self) -> list[TableColumn]:
        """All columns after the names."""
        return [*(column for _, columns in self.groups for column in columns), *self.shared]

    @property
    def labels(self) -> list[str]:
        """The labels of the rows."""
        return list(self.rows or dict.fromkeys(label for column in self.columns for label in column.cells))

    def describe_left_out(self) -> tuple[str, ...]:
        """The lengths that are left out."""
        lengths = formatting.join_words(map(units.short_length, self.left_out))
        return (f"Left out for width: N = {lengths}.",) if self.left_out else ()

    def estimate_width(self) -> float:
        """The table's approximate width in points."""
        width = max((self._measure(*_split_label(label)) for label in self.labels), default=0.0)
        for title, columns in (*self.groups, ([], self.shared)):
            widest = max((COLUMN_GAP + _measure_text(line) * TEXT_SIZE for line in title), default=0.0)
            width += max(widest, sum(COLUMN_GAP + self._measure_column(column) for column in columns))
        return width

    def _measure_column(self, column: TableColumn) -> float:
        text = max((cell.text for cell in column.cells.values()), key=_measure_text)
        intervals = [f"({cell.interval})" for cell in column.cells.values() if cell.interval]
        widest = sorted(intervals, key=_measure_text)[-1:]
        return max(_measure_text(column.head) * TEXT_SIZE, self._measure(text, widest))

    def _measure(self, text: str, small: Sequence[str]) -> float:
        if self.stacked:
            return max(_measure_text(text) * TEXT_SIZE, *(_measure_text(line) * SMALL_SIZE for line in small), 0.0)
        return _measure_text(text) * TEXT_SIZE + _measure_text(", ".join(small)) * SMALL_SIZE + INTERVAL_GAP


def _measure_text(text: str) -> float:
    return sum(LETTER_WIDTHS.get(x, OTHER_WIDTH if x <= LAST_LATIN else CODE_POINT_WIDTH) for x in text)


def _split_label(label: str) -> tuple[str, list[str]]:
    """A mechanism's name and its options, which are set smaller; all shortened. Unions are not split."""
    (name, options), *others = formatting.split_label(label)
    name, *options = (formatting.shorten_text(x, MAX_NAME) for x in ([label] if others else [name, *options]))
    return name, options


def fit_table(table: LatexTable, inches: float) -> list[LatexTable]:
    """The pages of the most complete form of a table that fits: all lengths, the usual ones, or the longest; intervals
    beside or below their values; this width, or that of a page."""
    forms = [
        replace(_drop_lengths(table, level), stacked=stacked, inches=width)
        for width in (inches, max(inches, WIDE_INCHES))
        for level in range(3)
        for stacked in (False, True)
    ]
    form = next((form for form in forms if form.estimate_width() <= 72.27 * form.inches), forms[-1])
    labels = form.labels
    height = sum(LINE_HEIGHT + form.stacked * SMALL_LINE_HEIGHT * max(len(_split_label(x)[1]), 1) for x in labels)
    pages = list(formatting.split_batches(labels, math.ceil(len(labels) / math.ceil(height / MAX_HEIGHT))))
    if len(pages) == 1:
        return [form]
    return [
        replace(form, rows=rows, name=f"{form.name}-{number}", caption=f"{form.caption[:-1]} (part {part}).")
        for number, (part, rows) in enumerate(pages, 1)
    ]


def _drop_lengths(table: LatexTable, level: int) -> LatexTable:
    """Keep all lengths (0), the usual ones and the longest (1), or the longest of each configuration (2)."""
    groups, dropped = [], set[int]()
    for title, columns in table.groups:
        lengths = {column.length for column in columns if column.length is not None}
        remaining = (lengths, {*choose_lengths(lengths)}, {max(lengths)})[level] if lengths else lengths
        dropped |= lengths - remaining
        groups.append((title, [column for column in columns if column.length is None or column.length in remaining]))
    return replace(table, groups=groups, left_out=tuple(sorted(dropped)))


def format_table(table: LatexTable) -> str:
    """Format the whole table as LaTeX."""
    environment = "table*" if table.inches >= WIDE_FROM else "table"
    # values and intervals have two columns, so that values are aligned
    split = [not table.stacked and any(cell.interval for cell in column.cells.values()) for column in table.columns]
    columns = "".join(r"r@{\hspace{2pt}}l" if is_split else "r" for is_split in split)
    lines = [
        # a comment ends with its line
        *(f"% {re.sub(r'[^ -~]', '?', ' '.join(line.split()))}" for line in table.comments),
        rf"\begin{{{environment}}}",
        r"  \centering",
        rf"  \caption{{{format_text(table.caption)}}}",
        r"  \vspace{3pt}",
        rf"  \label{{{table.name}}}",
        r"  \small",
        r"  \setlength{\tabcolsep}{3pt}",
        rf"  \begin{{tabular}}{{@{{}}l{columns}@{{}}}}",
        r"    \toprule",
        *_format_heads(table, split),
        r"    \midrule",
    ]
    for number, label in enumerate(table.labels):
        lines += [r"    \addlinespace[2pt]"] if number and table.stacked else []
        lines += _format_row(table, label, split)
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    if notes := " ".join(map(format_text, (*table.notes, *table.describe_left_out()))):
        lines.append(rf"  \par\smallskip\parbox{{{table.inches:.3g}in}}{{\footnotesize\raggedright {notes}}}")
    return "\n".join([*lines, rf"\end{{{environment}}}"]) + "\n"


def _format_heads(table: LatexTable, split: Sequence[bool]) -> Iterable[str]:
    """The row of configurations with its rules, if there are several, and the row of columns."""
    if len(table.groups) > 1:
        widths = iter([1 + is_split for is_split in split])
        cells, rules, last = [""], [], 1
        for title, columns in table.groups:
            span = sum(itertools.islice(widths, len(columns)))
            stack = r"\\".join(map(format_text, title))
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{\shortstack{{{stack}}}}}")
            rules.append(rf"\cmidrule(lr){{{last + 1}-{last + span}}}")
            last += span
        yield _join_cells([*cells, *[""] * sum(widths)])
        yield f"    {' '.join(rules)}"
    heads = [
        rf"\multicolumn{{2}}{{c}}{{{format_text(column.head)}}}" if is_split else format_text(column.head)
        for column, is_split in zip(table.columns, split, strict=True)
    ]
    yield _join_cells(["Mechanism", *heads])


def _format_row(table: LatexTable, label: str, split: Sequence[bool]) -> Iterable[str]:
    """The row of a mechanism; in a stacked table with a second line of options and intervals."""
    name, options = _split_label(label)
    cells = [column.cells.get(label, TableCell(units.EMPTY)) for column in table.columns]
    texts = [escape(name), *(format_text(cell.text) for cell in cells)]
    texts = [rf"\textbf{{{text}}}" for text in texts] if label in table.bold else texts
    intervals = [_make_small(f"({cell.interval})" if cell.interval else "") for cell in cells]
    if table.stacked:
        yield _join_cells(texts)
        for number in range(max(len(options), any(intervals))):
            small = _make_small("".join(options[number : number + 1]))
            yield _join_cells([small, *(intervals if number == 0 else [""] * len(cells))])
        return
    pairs = zip(texts[1:], intervals, split, strict=True)
    values = [f"{value} & {interval}" if is_split else value for value, interval, is_split in pairs]
    yield _join_cells([f"{texts[0]} {_make_small(', '.join(options))}".rstrip(), *values])


def _join_cells(cells: Sequence[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _make_small(text: str) -> str:
    return rf"{{\scriptsize {escape(text)}}}" if text else ""
