"""The whole site: complete, linked, reproducible, and safe with hostile names."""

from __future__ import annotations

import csv
import gzip
import html
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hostile
import pytest
import report_runs as runs
import sites
from made_once import make_once

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
    scripts = {name for name in files if name.endswith(".js")}
    assert set(files) - reached == {"files.json", *scripts}
    assert scripts == {"answers-m0.js", "answers-m1.js", *json.loads(files["index.json"])["leaderboard"]["blocks"]}
    assert {name: len(data) for name, data in files.items() if len(data) > run_pages.MAX_PAGE_BYTES} == {}


@pytest.mark.sampled(4)
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
    assert marks["runs.html"] == [("second", "protocol 3, older code")]
    assert {mark for found in marks.values() for mark in found if "protocol" in mark[1]} == set(marks["runs.html"])


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


@pytest.mark.sampled(4)
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
    assert json.loads((out / "index.json").read_text())["leaderboard"]["lines"] == 8
    assert [path.name for path in out.glob("answers-*.js")] == ["answers-m0.js"]


def test_the_index_matches_its_schema_and_the_files(site: Path) -> None:
    said = json.loads((site / "index.json").read_text())
    index = Index.model_validate(said)
    schema = json.loads((site / said["$schema"]).read_text())
    assert set(schema["properties"]) == set(said)
    assert [run.name for run in index.runs] == ["first", "second"]
    listed = [*index.runs, *index.mechanisms, *index.claims, index.leaderboard, *index.tasks]
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
    libraries = (site / "libraries.html").read_text()
    assert "start with <code>peer_</code> are the other libraries' implementations" in libraries
    assert re.search(r"@misc\{katharopoulos2020,\n  title = ", text), "one field a line"
    assert "reading a prompt, bidirectional, 8K<small>Xeon (2 cores), float32, 1 thread" in text
    assert text.count("<figure") == 3
    assert "Xeon (2 cores), cpu, float32" in text


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
    listed = (site / "claims.html").read_text()
    (measured,) = re.findall(r'>mqa-decode-v2</a>: .*?Measured: (.*?) in <a href="r/(\w+)/', listed)
    first, _ = json.loads((site / "index.json").read_text())["runs"]
    assert measured == ("speedup 1.67x, worst of 3 tests, Xeon (2 cores)", first["digest"])
    assert "others are on the claim's page" in html.unescape(listed)
    assert listed.index("<h2>Claims</h2>") < listed.index("<h2>Arithmetic: true") < listed.index("<h2>From memory:")


def test_task_pages_list_the_variants_with_a_result_of_the_task_only(site: Path) -> None:
    (page,) = (site / "t").glob("speed-????????.html")
    row = page.read_text().rpartition("Variants with a result")[2]
    assert "sliding_window" in row
    assert "taylor" not in row, "it failed"


def test_task_pages_list_scores_or_leaderboards(site: Path) -> None:
    (fidelity,), (speed,) = (list((site / "t").glob(f"{name}-????????.html")) for name in ("fidelity", "speed"))
    text = fidelity.read_text()
    rows = re.findall(r'<tr(?: class="\w+")?><th scope="row" class="text">(.*?)<td>(.*?)(?=<t[dr]|</table)', text)
    assert [re.sub("<.*?>", "", name) for name, _ in rows[:2]] == ["full baseline", "sliding_window:window=128"]
    assert re.findall(r'href="\.\./m/[a-z-]+[0-9a-f]{8}\.html"', rows[1][0])
    assert rows[1][1].startswith("0.0")
    assert "Relative error (lower is better)" in text
    assert 'href="../leaderboard.html"' in speed.read_text()


@pytest.mark.sampled(4)
def test_task_pages_start_with_what_the_task_measures(two: list[Path], site: Path, tmp_path: Path) -> None:
    sentence = "How far each mechanism is <b>from</b> exact attention."
    told = publish(two, tmp_path / "site", task_sentences={"fidelity": sentence}).site
    for folder, text in ((told, html.escape(sentence)), (site, "Results of the task fidelity.")):
        (page,) = (folder / "t").glob("fidelity-*.html")
        assert re.findall(r"</h1>\s*<p>(.*?)</p>", page.read_text()) == [text]
        assert text in (folder / "tasks.html").read_text()


def test_the_front_page_answers_its_first_question_without_scripts(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert re.findall(r'<option value="(?:prompt|encode|error-0.1)" selected>(.*?)</option>', text) == [
        "reading, not causal",
        "relative error at most 0.1",
    ]
    assert re.findall(r'<option value="m\d">(.*?)</option>', text) == ["Xeon (2 cores)", "Other-x8"]
    rows = re.findall(r'<tr><th scope="row" class="text"><a href="(m/[\w-]+\.html)">(.*?)</a>', text)
    assert [name for _, name in rows] == ["full"]
    assert "Only exact attention is known to satisfy this." in text
    assert "pip install efficient-attn" not in text
    assert "constraints.txt" in text
    assert len(re.sub("<(style|script).*?</(style|script)>|<.*?>", " ", text, flags=re.DOTALL).split()) <= 400


@pytest.mark.parametrize("docs", ["../docs/index.html", "https://example.org/docs?a=1&b=2"])
def test_pages_link_to_the_documentation(docs: str, two: list[Path], tmp_path: Path) -> None:
    files = _read(publish(two[1:], tmp_path / "site", docs=docs).site)
    prefix = "" if "://" in docs else "../"
    assert f'href="{html.escape(docs)}">Documentation</a>'.encode() in files["index.html"]
    (claim,) = (data for name, data in files.items() if name.startswith("c/nystrom-six-steps"))
    assert f'href="{prefix}{html.escape(docs)}">Documentation</a>'.encode() in claim
    run = next(text for name, text in files.items() if name.startswith("r/") and name.endswith("index.html"))
    assert f'href="{prefix * 2}{html.escape(docs)}">Documentation</a>'.encode() in run


@pytest.mark.parametrize("docs", ["javascript:alert(1)", "data:text/html,x", "file:///etc"])
def test_other_addresses_of_the_documentation_are_errors(docs: str, two: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be a relative path, or an address that starts with https"):
        publish(two, tmp_path / "site", docs=docs)
    assert not (tmp_path / "site").exists()


@pytest.mark.sampled(4)
def test_rows_without_conditions_are_published(tmp_path: Path) -> None:
    """Rows of other programs may lack the machine, the model, and the direction."""
    records = [*runs.speed(), *runs.fidelity()]
    for record in records:
        record.row.machine = record.row.inputs = record.row.causal = record.row.family = record.row.heads = None
    files = _read(publish([runs.write_run(tmp_path / "run", records)], tmp_path / "site").site)
    assert sites.follow(files)[1] == []
    (fidelity,) = (data.decode() for name, data in files.items() if name.startswith("t/fidelity"))
    assert "<td>3 layers<td>1 run" in fidelity


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([record for record in runs.speed() if record.row.variant == "full"], "time no two mechanisms"),
        (runs.fidelity(), "time no two mechanisms"),
        (runs.speed(lengths=(1000,)), "3 of 4 mechanisms timed here are faster than exact attention."),
    ],
    ids=["one mechanism", "no times", "one length"],
)
def test_small_runs_are_answered_as_far_as_possible(records: Iterable[runs.Record], text: str, tmp_path: Path) -> None:
    files = _read(publish([runs.write_run(tmp_path / "run", records)], tmp_path / "site").site)
    assert text in files["index.html"].decode()
    _, lost = sites.follow(files)
    assert lost == []


def test_a_repeated_run_counts_once(two: list[Path], tmp_path: Path) -> None:
    assert publish([two[1], two[1]], tmp_path / "site").runs == 1


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        publish([tmp_path], tmp_path / "site")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return make_once(tmp_path_factory, "hostile_pages", _publish_hostile)


def _publish_hostile(folder: Path) -> dict[str, bytes]:
    run = hostile.write_run(folder)
    publish([run], folder / "out" / "site")
    assert {path.name for path in folder.iterdir()} == {run.name, "out"}, "nothing is written outside"
    assert [path.name for path in (folder / "out").iterdir()] == ["site"]
    return _read(folder / "out" / "site")


@pytest.mark.sampled(3, together="build.evil")
def test_hostile_names_create_no_files_and_no_scripts(evil: dict[str, bytes]) -> None:
    assert [name for name in evil if not re.fullmatch(r"[a-z0-9./-]+", name) or ".." in name] == []
    for name, data in evil.items():
        if name.endswith(".html"):
            seen = sites.line_style(data.decode())
            assert not seen.handlers, name
            assert {link for link in seen.links if "example.org" in link or link.startswith("javascript")} == set()
            assert {"iframe", "base", "img"}.isdisjoint(seen.tags), name
            assert all(script.get("type") == "application/json" or not script for script in seen.scripts), name
            expected = {"index.html": 1, "leaderboard.html": 2}.get(name, name.startswith("r/"))
            assert len(seen.scripts) == expected, name
    reached, lost = sites.follow(evil)
    assert lost == []
    assert {name for name in evil if name.endswith(".html")} - reached == set()


@pytest.mark.sampled(3, together="build.evil")
def test_no_cell_is_a_formula(evil: dict[str, bytes]) -> None:
    lines = list(csv.reader(io.StringIO(gzip.decompress(evil["rows.csv.gz"]).decode())))
    cells = [cell for line in lines for cell in line if cell and not re.fullmatch(r"-?[\d.e+-]+", cell)]
    assert [cell for cell in cells if cell[0] in "=+-@\t\r"] == []
    assert any(cell.startswith("'=HYPERLINK") for cell in cells)


@pytest.mark.sampled(6)
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
