"""LaTeX tables: names are escaped and never executed, and tables fit their width without dropping a length silently."""

from __future__ import annotations

import re
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.report.paper import latex
from efficient_attn.report.paper.table_columns import TableCell, TableColumn

WORDS = "textbackslash textasciitilde textasciicircum textless textgreater textbar textquotedblright textquotesingle"
KNOWN = set(f"{WORDS} textasciigrave textmu textperiodcentered texttimes texttt ldots".split())


def read(text: str) -> list[str]:
    """The commands of a text, and proof that nothing else in it is more than text."""
    commands = re.findall(r"\\([a-zA-Z]+|.)", text, re.DOTALL)
    bare = re.sub(r"\\([a-zA-Z]+|.)", "", text, flags=re.DOTALL)
    assert bare.count("{") == bare.count("}")
    assert not set(bare) & set("\\$&#^_%\"'`<>|\n\r\t")
    return commands


@given(
    st.text(
        alphabet=st.one_of(st.characters(), st.sampled_from(list(string.punctuation + "\n\t\x00\u202e"))), max_size=60
    )
)
def test_any_text_is_escaped(text: str) -> None:
    escaped = latex.escape(text)
    assert {name for name in read(escaped) if name not in set("{}$&#_%")} <= KNOWN
    assert all(" " <= letter <= "\x7e" or letter.isalpha() for letter in escaped)


def test_common_characters_stay_readable() -> None:
    assert latex.escape("sliding_window:window=128") == r"sliding\_window:window=128"
    assert latex.escape("17.2x, 95%") == r"17.2x, 95\%"
    assert latex.escape("16.7\u201317.7 \u00b5s") == r"16.7--17.7 \textmu{}s"
    assert latex.escape("\\input{/etc/passwd}") == r"\textbackslash{}input\{/etc/passwd\}"
    assert latex.escape("na\u00efve \u4e2d") == "na\u00efve \\texttt{U+4E2D}"
    assert latex.escape("\u00fe") == "\\texttt{U+00FE}", "thorn is not in LaTeX's default encoding"
    assert latex.escape("a--b") == "a{-}{-}b", "no dash"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("N^1.02", "$N^{1.02}$"),
        ("N^-0.5", "$N^{-0.5}$"),
        ("N^a is", "$N^{a}$ is"),
        ("<=512", r"$\le$512"),
        ("17.2x (16.7\u201317.7)", r"17.2$\times$ (16.7--17.7)"),
        ("2xy, 0x1", "2xy, 0x1"),
    ],
)
def test_powers_signs_and_factors_are_mathematics(text: str, expected: str) -> None:
    assert latex.format_text(text) == expected


def table(columns: dict[str, dict[str, TableCell]], **fields: Any) -> latex.LatexTable:
    defaults: dict[str, Any] = {"shared": [], "caption": "50% of_it.", "notes": (), "name": "tab:x"}
    groups: Any = [([], [TableColumn(head, cells) for head, cells in columns.items()])]
    return latex.LatexTable(**({"groups": groups} | defaults | fields))


def format_fitted(shown: latex.LatexTable, inches: float) -> list[str]:
    (page,) = latex.fit_table(shown, inches)
    return latex.format_table(page).splitlines()


def test_a_table_has_its_rules_names_notes_and_aligned_intervals() -> None:
    cells = {"full": TableCell("1.00x"), "a&b:x=1:y=2": TableCell("17.2x", "16.7\u201317.7")}
    shown = table({"8K": cells}, bold={"a&b:x=1:y=2"}, comments=("one\nline\u2028\x00",), notes=("N^a &.",))
    assert format_fitted(shown, 3.3) == [
        "% one line ?",
        r"\begin{table}",
        r"  \centering",
        r"  \caption{50\% of\_it.}",
        r"  \vspace{3pt}",
        r"  \label{tab:x}",
        r"  \small",
        r"  \setlength{\tabcolsep}{3pt}",
        r"  \begin{tabular}{@{}lr@{\hspace{2pt}}l@{}}",
        r"    \toprule",
        r"    Mechanism & \multicolumn{2}{c}{8K} \\",
        r"    \midrule",
        r"    full & 1.00$\times$ &  \\",
        r"    \textbf{a\&b} {\scriptsize x=1, y=2} & \textbf{17.2$\times$} & {\scriptsize (16.7--17.7)} \\",
        r"    \bottomrule",
        r"  \end{tabular}",
        r"  \par\smallskip\parbox{3.3in}{\footnotesize\raggedright $N^{a}$ \&.}",
        r"\end{table}",
    ]


def test_configurations_are_groups_of_columns() -> None:
    first, second = (
        [TableColumn(n, {"linear": TableCell("1.0x", "0.9\u20131.1")}) for n in ("1K", "8K")] for _ in "ab"
    )
    groups = [(["4 heads", "forward"], first), (["8 heads"], second[:1])]
    shown = table(
        {}, groups=groups, shared=[TableColumn("Error", {"linear": TableCell("0.7"), "b": TableCell("exact")})]
    )
    lines = format_fitted(shown, 6.8)
    assert lines[1] == r"  \centering"
    assert lines[0] == r"\begin{table*}"
    heads = lines[lines.index(r"    \toprule") + 1 : lines.index(r"    \midrule")]
    assert heads == [
        r"     & \multicolumn{4}{c}{\shortstack{4 heads\\forward}} & \multicolumn{2}{c}{\shortstack{8 heads}} &  \\",
        r"    \cmidrule(lr){2-5} \cmidrule(lr){6-7}",
        r"    Mechanism & \multicolumn{2}{c}{1K} & \multicolumn{2}{c}{8K} & \multicolumn{2}{c}{1K} & Error \\",
    ]
    assert r"    b & -- &  & -- &  & -- &  & exact \\" in lines


def lengths_table(lengths: tuple[int, ...]) -> latex.LatexTable:
    cells = {name: TableCell("17.2x", "16.7\u201317.7") for name in ("sliding_window:window=128", "linear")}
    return table({}, groups=[([], [TableColumn(str(n), cells, n) for n in lengths])], notes=("A note.",))


def test_lengths_that_do_not_fit_are_left_out_with_a_note() -> None:
    shown = lengths_table((256, 512, 1024, 2048, 4096, 8192, 16384))
    (wide,) = latex.fit_table(shown, 6.8)
    assert wide.left_out == ()
    assert len(wide.columns) == 7
    (narrow,) = latex.fit_table(shown, 3.3)
    assert [column.length for column in narrow.columns] == [1024, 8192, 16384]
    assert narrow.describe_left_out() == ("Left out for width: N = 256, 512, 2K and 4K.",)
    assert "A note. Left out for width: N = 256, 512, 2K and 4K." in latex.format_table(narrow)
    assert narrow.estimate_width() <= 3.3 * 72.27


def test_a_narrow_table_has_intervals_and_options_below() -> None:
    shown = lengths_table((256, 512, 1024))
    (narrow,) = latex.fit_table(shown, 3.3)
    assert narrow.stacked
    lines = latex.format_table(narrow).splitlines()
    at = next(i for i, line in enumerate(lines) if "sliding" in line)
    value, interval = r"17.2$\times$", r"{\scriptsize (16.7--17.7)}"
    assert lines[at] == rf"    sliding\_window & {value} & {value} & {value} \\"
    assert lines[at + 1] == rf"    {{\scriptsize window=128}} & {interval} & {interval} & {interval} \\"


def test_a_table_that_fits_no_column_spans_the_page() -> None:
    cells = {"linear": TableCell("a text that is about as wide as half a column of a paper")}
    (page,) = latex.fit_table(table({"One": cells, "Two": cells}), 3.3)
    assert latex.format_table(page).startswith(r"\begin{table*}")


def test_many_rows_are_split_over_pages() -> None:
    cells = {f"m{i}": TableCell("1") for i in range(100)}
    pages = latex.fit_table(table({"One": cells}), 3.3)
    assert [label for page in pages for label in page.rows] == list(cells)
    texts = [latex.format_table(page) for page in pages]
    assert len(texts) == 3
    assert r"\label{tab:x-2}" in texts[1]
    assert r"\caption{50\% of\_it (part 2 of 3).}" in texts[1]


def test_lines_of_options_count_for_the_height_of_a_page() -> None:
    options = ":".join(f"option{i}=12345678" for i in range(5))
    cells = {f"m{i}:{options}": TableCell("a value of some width", "1.00\u20132.00") for i in range(12)}
    pages = latex.fit_table(table({"One": cells, "Two": cells}), 3.3)
    assert pages[0].stacked
    assert [len(page.rows) for page in pages] == [4, 4, 4], "six lines each"


@pytest.mark.parametrize("label", ["a|b:x=1", "A: fast one", "x" * 300, ":", "", "a:b", "::=", "\u202e\x00"])
def test_labels_that_are_no_specs_are_names(label: str) -> None:
    (page,) = latex.fit_table(table({"One": {label: TableCell("1")}}), 3.3)
    assert all(len(line) < 200 for line in latex.format_table(page).splitlines())
