"""The whole site: complete, linked, reproducible, and safe with hostile names."""

from __future__ import annotations

import csv
import gzip
import html
import io
import json
import re
from pathlib import Path
from typing import Any

import hostile
import pytest
import report_runs as runs
import sites

from efficient_attn.errors import UsageError
from efficient_attn.report.sections.section_blocks import SectionBlock
from efficient_attn.report.site import run_pages
from efficient_attn.report.site.build import publish
from efficient_attn.report.site.site_data import MechanismDetails
from efficient_attn.report.site.site_index import Index

DETAILS = {
    "linear": MechanismDetails({"eps": "1e-06"}, "N d^2", "d^2", ("decodes step by step",), ("chunked", "dense"))
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sites.write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def site(two: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(two, tmp_path_factory.mktemp("out") / "site", details=DETAILS).site


def _read(site: Path) -> dict[str, bytes]:
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def test_every_page_is_linked_and_no_link_is_broken(site: Path) -> None:
    files = _read(site)
    reached, lost = sites.follow(files)
    assert lost == []
    assert {name for name in files if name.endswith(".html")} - reached == set()
    assert len(reached) > 100, "mechanisms and claims have a page each"
    assert set(files) - reached == {"files.json"}
    assert max(map(len, files.values())) < run_pages.MAX_PAGE_BYTES


def test_runs_of_older_protocols_are_marked_where_they_are_linked(tmp_path: Path) -> None:
    first, second = sites.write_runs(tmp_path / "runs")
    about = runs.about("Other-x8", run_id="other-1", protocol=3)
    (second / "run.json").write_text(json.dumps({"sessions": [about]}))
    files = _read(publish([first, second], tmp_path / "site", details=DETAILS).site)
    marks = {
        name: re.findall(r">(\w+)</a> <small class=\"soft\">\((.*?)\)</small>", data.decode())
        for name, data in files.items()
        if name.endswith(".html")
    }
    assert marks["index.html"] == [("second", "protocol 3, older code")]
    assert {mark for found in marks.values() for mark in found if "protocol" in mark[1]} == set(marks["index.html"])


def test_heads_titles_and_policies(site: Path) -> None:
    titles = []
    for name, data in _read(site).items():
        if name.endswith(".html"):
            text, seen = data.decode(), sites.line_style(data.decode())
            titles += re.findall(r"<title>(.*?)</title>", text)[:1] if not name.startswith("r/") else []
            assert seen.tags.count("h1") == 1, name
            assert "default-src 'none'" in text, name
            assert 'a class="skip"' in text, name
            assert len(set(seen.ids)) == len(seen.ids), name
    assert len(set(titles)) == len(titles)


def test_publishing_again_gives_the_same_bytes(two: list[Path], site: Path, tmp_path: Path) -> None:
    before = _read(site)
    publish(two, site, details=DETAILS)
    assert _read(site) == before
    assert [path.name for path in site.parent.iterdir()] == ["site"]


def test_pages_of_removed_runs_disappear(two: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "site"
    publish(two[1:], out)
    (one,) = (out / "r").iterdir()
    assert json.loads((out / "index.json").read_text())["runs"][0]["digest"] == one.name
    assert not list(out.glob("b/quickstart-xeon*"))


def test_the_index_matches_its_schema_and_the_files(site: Path) -> None:
    said = json.loads((site / "index.json").read_text())
    index = Index.model_validate(said)
    schema = json.loads((site / said["$schema"]).read_text())
    assert set(schema["properties"]) == set(said)
    assert [run.name for run in index.runs] == ["first", "second"]
    listed = [*index.runs, *index.mechanisms, *index.claims, *index.leaderboards, *index.tasks]
    assert [one.page for one in listed if not (site / one.page).is_file()] == []
    assert {claim.group for claim in index.claims if claim.counts} == {"published"}
    assert {claim.group for claim in index.claims} == {"published", "arithmetic", "from memory"}
    for run in index.runs:
        lines = gzip.decompress((site / run.rows).read_bytes()).decode().splitlines()
        assert len(lines) == 1 + run.cases


def test_mechanism_pages_show_details_and_measurements(site: Path) -> None:
    (page,) = (site / "m").glob("linear-????????.html")
    text = page.read_text()
    assert "<code>eps=1e-06</code>" in text
    assert "decodes step by step" in text
    assert "@misc{katharopoulos2020," in text
    assert "forward, bidirectional, 8K" in text


def test_claim_pages_state_where_the_figures_are_from(site: Path) -> None:
    (page,) = (site / "c").glob("nystrom-six-steps*.html")
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html.unescape(page.read_text())))
    assert facts["As published"] == "about 6 iterations in all experiments"
    assert facts["Place"].startswith('after equation 14: "about 6 iterations')
    assert facts["Rule"].endswith("replaces the rule of <code>nystrom-six-steps</code>")
    assert facts["Source check"].startswith('O(n): the abstract. Six iterations: "For all our')
    (arithmetic,) = (site / "c").glob("mqa-cache*.html")
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html.unescape(arithmetic.read_text())))
    assert facts["Not counted"] == "Arithmetic: true by construction, not counted"
    front = (site / "index.html").read_text()
    assert front.index("<h3>Claims</h3>") < front.index("<h3>Arithmetic: true by") < front.index("<h3>From memory:")


def test_task_pages_list_scores_or_leaderboards(site: Path) -> None:
    (fidelity,), (speed,) = (list((site / "t").glob(f"{name}-????????.html")) for name in ("fidelity", "speed"))
    text = fidelity.read_text()
    rows = re.findall(r'<tr(?: class="\w+")?><th scope="row" class="text">(.*?)<td>(.*?)(?=<t[dr]|</table)', text)
    assert [re.sub("<.*?>", "", name) for name, _ in rows[:2]] == ["full baseline", "sliding_window:window=128"]
    assert re.findall(r'href="\.\./m/[a-z-]+[0-9a-f]{8}\.html"', rows[1][0])
    assert rows[1][1].startswith("0.0")
    assert "Relative error (lower is better)" in text
    assert "../b/quickstart-" in speed.read_text()


def test_the_front_page_has_the_data_of_the_picker(site: Path) -> None:
    text = (site / "index.html").read_text()
    data = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)[0])
    answers = data["answers"]
    assert {answer[0] for answer in answers} == {"prompt", "decode"}
    assert text.count('class="faster"') > 9
    decode = [answer for answer in answers if answer[0] == "decode"]
    lengths = {answer[3]: {data["texts"][case[9]] for case in answer[7]} for answer in decode}
    assert lengths == {1024: {""}, 2048: {"1K and 4K"}, 4096: {""}, 8192: {"4K and 16K"}, 16384: {""}}
    assert text.count("<article") == 6
    assert "quickstart on Other-x8" in text


def test_a_repeated_run_counts_once(two: list[Path], tmp_path: Path) -> None:
    assert publish([two[1], two[1]], tmp_path / "site").runs == 1


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        publish([tmp_path], tmp_path / "site")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("evil")
    run = hostile.write_run(folder)
    publish([run], folder / "out" / "site")
    assert {path.name for path in folder.iterdir()} == {run.name, "out"}, "nothing is written outside"
    assert [path.name for path in (folder / "out").iterdir()] == ["site"]
    return _read(folder / "out" / "site")


def test_hostile_names_create_no_files_and_no_scripts(evil: dict[str, bytes]) -> None:
    assert [name for name in evil if not re.fullmatch(r"[a-z0-9./-]+", name) or ".." in name] == []
    for name, data in evil.items():
        if name.endswith(".html"):
            seen = sites.line_style(data.decode())
            assert not seen.handlers, name
            assert {link for link in seen.links if "example.org" in link or link.startswith("javascript")} == set()
            assert {"iframe", "base", "img"}.isdisjoint(seen.tags), name
            assert all(script.get("type") == "application/json" or not script for script in seen.scripts), name
            assert len(seen.scripts) == {"index.html": 2}.get(name, name.startswith("r/")), name
    reached, lost = sites.follow(evil)
    assert lost == []
    assert {name for name in evil if name.endswith(".html")} - reached == set()


def test_no_cell_is_a_formula(evil: dict[str, bytes]) -> None:
    lines = list(csv.reader(io.StringIO(gzip.decompress(evil["rows.csv.gz"]).decode())))
    cells = [cell for line in lines for cell in line if cell and not re.fullmatch(r"-?[\d.e+-]+", cell)]
    assert [cell for cell in cells if cell[0] in "=+-@\t\r"] == []
    assert any(cell.startswith("'=HYPERLINK") for cell in cells)


def test_pages_above_the_limit_are_split_and_keep_all_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record for threads in range(1, 13) for record in runs.speed(lengths=(512, 1024), threads=threads)]
    run, limit = runs.write_run(tmp_path / "run", records), 60_000
    (page,) = publish([run], tmp_path / "whole").site.glob("r/*/index.html")
    assert len(page.read_bytes()) > 2 * limit
    monkeypatch.setattr(run_pages, "MAX_PAGE_BYTES", limit)
    site = publish([run], tmp_path / "site").site
    pages = {path.name: path.read_text() for path in site.glob("r/*/*.html")}
    assert len(pages) > 2
    assert max(map(len, pages.values())) < limit
    figures = re.findall(r"<svg.*?</svg>", page.read_text(), flags=re.DOTALL)
    assert len(figures) > 6
    assert sorted(figures) == sorted(
        svg for text in pages.values() for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    )
    contents = {re.findall(r"<nav.*?</nav>", text, flags=re.DOTALL)[0] for text in pages.values()}
    assert len(contents) == 1, "each page lists the sections of all"
    reached, lost = sites.follow(_read(site))
    assert lost == []
    assert {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - reached == set()


def test_a_block_with_many_plots_is_split() -> None:
    plots: list[Any] = list(range(100))
    block = SectionBlock("cpu", sentences=["a"], plots=plots, device="cpu")
    first, *others = run_pages._split_block(block)
    assert (first.title, first.sentences, first.plots) == ("cpu", ["a"], plots[:40])
    assert [(other.title, other.sentences, other.device) for other in others] == [
        ("cpu (2 of 3)", [], "cpu"), ("cpu (3 of 3)", [], "cpu"),
    ]  # fmt: skip
    assert [plot for part in (first, *others) for plot in part.plots] == plots
