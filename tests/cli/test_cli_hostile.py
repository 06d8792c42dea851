"""200 hostile texts in names, options, reasons and folders of rows, in the output of every command.

The pages in a browser: tests/browser/test_site.py and test_page.py.
"""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import hostile
import pytest
from made_once import make_once
from shell import Done, run

NAME = hostile.FOLDER
PRINTING = (
    *(("runs",), ("runs", "--json")),
    *(("claims",), ("claims", "--json")),
    *(("compare",), ("compare", "--all", "--format", "markdown"), ("compare", "--json")),
    *(("recommend", "--seq-len", "64"), ("recommend", "--seq-len", "64", "--json")),
)
DRAWN = [(figure, f"{figure}.{end}") for figure in ("speed", "memory", "crossover") for end in ("svg", "tex")]
WRITTEN = (
    ("report",),
    *(("plot", "--figure", figure, "--out", name) for figure, name in DRAWN),
    *(("report", "--export", f"{form}={form}.json") for form in ("pytest-benchmark", "github-action")),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, with the files that commands write next to it."""
    return make_once(tmp_path_factory, "hostile_command_line", _write_all)


def _write_all(outside: Path) -> Path:
    folder = outside / "inside"
    hostile.write_run(folder)
    before = {*folder.parent.rglob("*")}
    for verb, *options in WRITTEN:
        done = run_verb(folder, verb, *options)
        assert (done.code, done.err) == (0, ""), (verb, options)
    made = {path.relative_to(folder).parts[0] for path in {*folder.parent.rglob("*")} - before}
    made = {re.sub(r"-\d+(?=\.(svg|tex)$)", "", name) for name in made}  # long figures and tables continue in FILE-1
    assert made == {NAME, *(it[-1].partition("=")[2] or it[-1] for it in WRITTEN[1:])}, "nothing outside"
    return folder


def run_verb(folder: Path, verb: str, *options: str) -> Done:
    given = {"compare": (NAME, NAME), "runs": (".",)}
    return run(verb, *given.get(verb, (NAME,)), *options, cwd=folder)


def is_shown(text: str) -> bool:
    """Whether a terminal only displays a text: no control characters, no changes of direction."""
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.sampled(5, together="cli_hostile.folder")
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_terminal_output_contains_only_printable_text(folder: Path, arguments: tuple[str, ...]) -> None:
    before = {*folder.parent.rglob("*")}
    done = run_verb(folder, *arguments)
    assert done.code == 0
    assert done.out
    assert is_shown(done.out + done.err)
    if "--json" in arguments:
        json.loads(done.out)
    if "markdown" in arguments:
        check_markdown(done.out)
    assert {*folder.parent.rglob("*")} == before


def check_markdown(text: str) -> None:
    """Only our own markup: tags are escaped, and links other than those to our pictures."""
    plain = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", plain)  # code: as many backticks as it began with
    assert re.findall(r"<(?!!--|br>|/?details>|/?summary>)[a-zA-Z/!?]", plain) == []
    links = re.findall(r"(?<!\\)\]\(([^)\s]*)", plain)
    assert {link for link in links if not link.startswith(("plots/", "#"))} <= {"rows.csv", "report.html"}


@pytest.mark.sampled(5, together="cli_hostile.folder")
def test_the_markdown_page_escapes_markup(folder: Path) -> None:
    text = (folder / NAME / "report.md").read_text()
    check_markdown(text)
    assert is_shown(text)


@pytest.mark.sampled(5, together="cli_hostile.folder")
def test_no_cell_of_the_table_is_a_formula(folder: Path) -> None:
    table = list(csv.reader(io.StringIO((folder / NAME / "rows.csv").read_text())))
    assert len(table) == 601
    texts = [cell for line in table[1:] for cell in line if not re.fullmatch(r"-?[\d.e+-]+", cell)]
    assert [cell for cell in texts if cell.startswith(("=", "+", "-", "@", "\t", "\r"))] == []
    assert [cell for cell in texts if cell.startswith("'=HYPERLINK")], "it is there, as text"


class Page(HTMLParser):
    """The scripts of a page, what it refers to, and handlers in its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts, self.links, self.handlers = 0, set[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.links |= {value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")}
        self.handlers |= {name for name, _ in attrs if name.startswith("on")}


@pytest.mark.sampled(5, together="cli_hostile.folder")
def test_the_page_has_one_script_and_no_external_resources(folder: Path) -> None:
    found = Page((folder / NAME / "report.html").read_text())
    assert found.scripts == 1
    assert found.handlers == set()
    assert {link for link in found.links if not link.startswith("#")} <= {"rows.csv", "report.md", "data:,"}


@pytest.mark.sampled(5, together="cli_hostile.folder")
def test_pictures_contain_no_scripts_or_links(folder: Path) -> None:
    drawn = [*folder.glob("*.svg"), *(folder / NAME / "plots").glob("*.svg")]
    assert len(drawn) > 5
    for path in drawn:
        every = list(ET.parse(path).getroot().iter())
        tags = {str(it.tag).rpartition("}")[2] for it in every}
        assert not tags & {"script", "foreignObject", "image", "a", "iframe"}
        assert not {name for it in every for name in it.attrib if name.rpartition("}")[2].startswith("on")}
        links = {it.attrib[name] for it in every for name in it.attrib if name.endswith("href")}
        assert all(link.startswith("#") for link in links)


@pytest.mark.sampled(5, together="cli_hostile.folder")
def test_latex_contains_only_known_commands(folder: Path) -> None:
    ours = {"begin", "end", "centering", "small", "caption", "label", "toprule", "midrule", "bottomrule", "scriptsize"}
    ours |= {
        "addlinespace",
        "cmidrule",
        "multicolumn",
        "footnotesize",
        "par",
        "parbox",
        "raggedright",
        "setlength",
        "tabcolsep",
    }
    ours |= {"le", "ge", "times", "hspace", "vspace", "ldots", "shortstack", "smallskip"}
    for path in folder.glob("*.tex"):
        text = path.read_text()
        assert is_shown(text)
        body = "\n".join(line for line in text.split("\n") if not line.startswith("%"))
        assert {it for it in re.findall(r"\\([a-zA-Z]+)", body) if not it.startswith("text")} <= ours
        body = re.sub(r"\$(\\le|\\ge|\\times|\\ldots|N\^\{[0-9a.-]+\})\$", "", body)  # our own mathematics
        assert re.findall(r"(?<!\\)[%#$^~]", body.replace(r"\\", "")) == []


@pytest.mark.sampled(5, together="cli_hostile.folder")
def test_exports_are_json(folder: Path) -> None:
    for form in ("pytest-benchmark", "github-action"):
        assert json.loads((folder / f"{form}.json").read_text())
