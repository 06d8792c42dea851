"""LaTeX tables: names are escaped and never executed."""

from __future__ import annotations

import re
import string

from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.report.drawing.figures import Panel
from efficient_attn.report.paper import latex
from efficient_attn.report.paper.paper_figures import PaperFigure, TableCell

PANEL = Panel(name="p", kind="k", title="t", caption="c", xlabel="", ylabel="", unit="ratio", lines=(), ticks={})
WORDS = "textbackslash textasciitilde textasciicircum textless textgreater textbar textquotedblright textquotesingle"
KNOWN = set(f"{WORDS} textasciigrave textmu textperiodcentered texttimes texttt".split())


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
    assert latex.escape("a--b") == "a{-}{-}b", "no dash"


def test_a_table_has_its_rules_names_and_intervals() -> None:
    body = ((TableCell("full"), TableCell("1.00x")), (TableCell("a&b"), TableCell("17.2x", "16.7\u201317.7")))
    shown = PaperFigure(PANEL, "50% of_it", ("Mechanism", "At 8K"), body)
    names = {"full": "full", "a&b": "Ours"}
    text = latex.format_table(shown, names, "tab:x", bold={"a&b"}, head=("one\nline\u2028\x00",))
    assert text.splitlines() == [
        "% one line ?",
        r"\begin{table}",
        r"  \centering",
        r"  \small",
        r"  \caption{50\% of\_it}",
        r"  \label{tab:x}",
        r"  \begin{tabular}{lr}",
        r"    \toprule",
        r"    Mechanism & At 8K \\",
        r"    \midrule",
        r"    full & 1.00x \\",
        r"    \textbf{Ours} & \textbf{17.2x {\scriptsize (16.7--17.7)}} \\",
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
