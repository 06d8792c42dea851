"""A site of small runs: every link leads somewhere, it is swapped whole, and hostile names stay text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_runs as runs

from efficient_attn.errors import UsageError
from efficient_attn.report.site.publishing import publish

HOSTILE = '"><script>alert(1)</script>/../../etc'


class Reader(HTMLParser):
    """Links, names that can be linked to, what would be loaded, and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.loads: list[str] = []
        self.scripts = 0
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        self.names.add(told.get("id", ""))
        self.scripts += tag == "script" and told.get("type") != "application/json"
        self.handlers += [name for name in told if name.startswith("on")]
        if tag == "a" and "href" in told:
            self.links.append(told["href"])
        self.loads += [told[name] for name in ("src",) if name in told]
        self.loads += [told["href"]] if tag == "link" and "href" in told else []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    one = runs.write_run(folder / "one", [*runs.speed(), *runs.decode(), *runs.fidelity()])
    hostile = runs.speed(lengths=(512, 1024), run_id="other-1", suite=HOSTILE, machine=HOSTILE)
    two = runs.write_run(folder / "two", hostile, runs.about(HOSTILE))
    publish([one, two], folder / "out")
    return folder / "out"


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {path.relative_to(site): Reader(path.read_text()) for path in site.rglob("*.html")}
    seen = set()
    for name, page in pages.items():
        for link in [*page.links, *page.loads]:
            if link.startswith("data:"):  # an empty icon, so that none is asked for
                continue
            if re.match(r"https?:", link):
                assert link not in page.loads  # a page may point elsewhere, and loads nothing from there
                continue
            address, _, fragment = link.partition("#")
            target = (site / name.parent / address).resolve() if address else (site / name).resolve()
            assert target.is_file(), f"{name}: {link}"
            assert target.is_relative_to(site.resolve())
            seen.add(target)
            if fragment and target.suffix == ".html":
                assert fragment in pages[target.relative_to(site.resolve())].names, f"{name}: {link}"
    assert {(site / name).resolve() for name in pages} - seen <= {(site / "index.html").resolve()}


def test_hostile_names_are_text(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text()
        page = Reader(text)
        assert "<script>alert" not in text
        assert page.scripts <= 1
        assert page.handlers == []
        assert "Content-Security-Policy" in text
    assert all(re.fullmatch(r"[\w./-]+", path.relative_to(site).as_posix()) for path in site.rglob("*"))


def test_the_index_lists_what_there_is(site: Path) -> None:
    index = json.loads((site / "index.json").read_text())
    assert json.loads((site / "index.schema.json").read_text())
    assert len(index["runs"]) == 2
    assert {one["name"] for one in index["mechanisms"]} >= {"full", "linear", "sliding_window"}
    for one in (*index["runs"], *index["mechanisms"], *index["leaderboards"], *index["tasks"]):
        assert (site / one["page"].partition("#")[0]).is_file()


def test_a_run_that_is_taken_away_takes_its_pages(tmp_path: Path) -> None:
    lengths = {"a": 1024, "b": 2048}
    made = [runs.write_run(tmp_path / k, runs.speed(lengths=(512, n), run_id=k)) for k, n in lengths.items()]
    out = tmp_path / "out"
    publish(made, out)
    assert len(list((out / "r").iterdir())) == 2
    publish(made[:1], out)
    assert len(list((out / "r").iterdir())) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []  # nothing is left beside it


@pytest.mark.parametrize("name", ["notes.txt", "r/mine.html"])
def test_foreign_files_stop_it_before_anything_is_written(name: str, tmp_path: Path) -> None:
    made, out = runs.write_run(tmp_path / "a", runs.speed(lengths=(512,))), tmp_path / "out"
    publish([made], out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (out / name).write_text("mine")
    with pytest.raises(UsageError, match=f"holds {name}, not made by efficient-attn"):
        publish([made], out)
    assert (out / name).read_text() == "mine"
    assert {path: path.read_bytes() for path in before} == before
