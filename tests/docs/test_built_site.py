"""The built site: links and anchors resolve, nothing is loaded from elsewhere, and generated pages are complete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import docs_site
import pytest

from efficient_attn.bench.planning.suite import Suite
from efficient_attn.cli.parser import EXAMPLES, make_parser
from efficient_attn.results.rows import COLUMN_TYPES
from efficient_attn.variants import CATALOGUE

pytestmark = pytest.mark.slow

MOST_BYTES = 14_000_000
LARGEST_PAGE = 600_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return docs_site.build(tmp_path_factory)


@dataclass
class Page(HTMLParser):
    """links: targets that a reader follows. sources: files that the page loads."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("script", "img", "iframe", "source") and "src" in values:
            self.sources.append(values["src"])
        elif tag == "link" and values.get("rel", "") in ("stylesheet", "icon", "preconnect", "preload"):
            self.sources.append(values["href"])


@cache
def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _list_broken(path: Path, targets: list[str]) -> Iterator[str]:
    for target in targets:
        parts = urlsplit(target)
        if parts.scheme in ("http", "https", "mailto"):
            continue
        file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        file = file / "index.html" if file.is_dir() else file
        anchor = unquote(parts.fragment)
        if not file.is_file() or (
            anchor and file.suffix == ".html" and anchor not in _read(file).ids | {"__skip", "__top"}
        ):
            yield target


def test_links_and_anchors_resolve(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    broken = {
        path.relative_to(site): list(_list_broken(path, _read(path).links + _read(path).sources)) for path in pages
    }
    links = sum(len(_read(path).links) for path in pages)
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    with capsys.disabled():
        print(
            f"\ndocs: {len(pages)} pages, {size / 1e6:.1f} MB, {links} links, {sum(map(len, broken.values()))} broken"
        )
    assert {path: targets for path, targets in broken.items() if targets} == {}
    assert links > 2000
    assert size < MOST_BYTES
    assert [path.name for path in pages if path.stat().st_size > LARGEST_PAGE] == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert [source for path in pages for source in _read(path).sources if re.match(r"(https?:)?//", source)] == []
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert [text for style in styles for text in re.findall(r"url\(['\"]?https?:[^)]*\)|@import[^;]*", style)] == []


def test_every_mechanism_has_a_page_with_its_formula(site: Path) -> None:
    for entry in CATALOGUE:
        text = (site / f"reference/mechanisms/{entry.name}.html").read_text(encoding="utf-8")
        assert "<math" in text, entry.name
        assert all(title in text for title in ("Options and cost", "Traits", "Measured")), entry.name
        assert ('class="pattern"' in text) == (entry.family == "sparse"), entry.name
    assert 'class="arithmatex"' not in text


def test_reference_pages_are_complete(site: Path) -> None:
    pages = {name: (site / f"reference/{name}.html").read_text() for name in ("command-line", "suite-files", "columns")}
    text = unescape(re.sub(r"<[^>]+>", "", pages["command-line"]))
    options = {option for verb in make_parser().verbs.values() for option in verb.options if option.startswith("--")}
    assert sorted(option for option in options if option not in text) == []
    assert [line for lines in EXAMPLES.values() for line in lines if f"efficient-attn {line}" not in text] == []
    assert [name for name in Suite.model_fields if f"<code>{name}</code>" not in pages["suite-files"]] == []
    assert [name for name in COLUMN_TYPES if f"<code>{name}</code>" not in pages["columns"]] == []


def test_marked_blocks_name_their_need(site: Path) -> None:
    text = (site / "reference/decoding.html").read_text(encoding="utf-8")
    assert "Not run in tests: takes minutes to hours" in text
    assert "needs:" not in text
    assert '<span class="filename">my_score.py</span>' in (site / "how-to/add-a-score.html").read_text()


def test_the_search_index_covers_pages_but_not_reports(site: Path) -> None:
    script = (site / "search/search_index.js").read_text(encoding="utf-8")
    found = {entry["location"].partition("#")[0] for entry in json.loads(script.removeprefix("var __index = "))["docs"]}
    assert {"reference/mechanisms/performer.html", "tutorial/first-run.html", "reference/columns.html"} <= found
    assert [name for name in found if name.endswith("/report.html")] == []


def test_the_notebook_is_a_page(site: Path) -> None:
    text = (site / "tutorial/first-run.html").read_text(encoding="utf-8")
    assert "One call signature" in text
    assert (site / "tutorial/first-run.ipynb").is_file()
