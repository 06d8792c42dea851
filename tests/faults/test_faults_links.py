"""A run folder with symbolic links: nothing outside of the folder is written, and no foreign file is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_runs import record, steady, write
from shell import TINY, run

REPORTS = ("report.html", "report.md", "rows.csv", "plots")
RUNS = ("lock", "lock.json", "run.json", "quarantine.jsonl", "rows-x.jsonl")
# names that temporary files had in earlier versions, or that can be guessed
GUESSED = tuple(
    name.format(end)
    for end in (*REPORTS[:3], "run.json", "rows.jsonl", "rows-x.jsonl", "lock.json", "comment.md", "rows.jsonl.gz")
    for name in (".{}.tmp", "{}.tmp", ".{}..tmp", ".{}.0000000000000000.tmp")
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.toml").write_text(TINY)
    done = run("run", "tiny.toml", "--seq-len", "8", "--out", "out", cwd=folder)
    assert done.code == 0, done.err
    for path in [*(folder / "out").glob("report.*"), *(folder / "out" / "plots").glob("*"), folder / "out/rows.csv"]:
        path.unlink(missing_ok=True)
    (folder / "out" / "plots").rmdir()
    return folder


def _copy_with_links(finished: Path, folder: Path, *names: str) -> Path:
    """Copy the run, damage one line, and add links of these names to a file or folder outside; returns the latter."""
    (folder / "tiny.toml").write_text(TINY)
    out, outside = folder / "out", folder / "outside"
    out.mkdir()
    outside.mkdir()
    (outside / "foreign").write_text("not a record\n")
    for path in (finished / "out").iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    with (out / "rows.jsonl").open("a") as rows:
        rows.write("damaged\n")
    if "run.json" in names:
        (outside / "foreign").write_bytes((out / "run.json").read_bytes())
    for name in names:
        (out / name).unlink(missing_ok=True)
        (out / name).symlink_to(outside if name == "plots" else outside / "foreign")
    return outside


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


VERBS = {"report": "report out", "resume": "run tiny.toml --seq-len 8 --out out --resume"}


@pytest.mark.parametrize("verb", VERBS)
def test_links_under_guessed_names_are_ignored(verb: str, finished: Path, tmp_path: Path) -> None:
    outside = _copy_with_links(finished, tmp_path, *GUESSED, *(RUNS if verb == "report" else ()))
    before = _contents(outside)
    done = run(*VERBS[verb].split(), cwd=tmp_path)
    assert done.code == 0, done.err
    assert _contents(outside) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("verb", "name"), [*(("report", name) for name in REPORTS), *(("resume", name) for name in (*REPORTS, *RUNS))]
)
def test_links_in_place_of_output_files_are_refused(verb: str, name: str, finished: Path, tmp_path: Path) -> None:
    outside = _copy_with_links(finished, tmp_path, name)
    before, rows = _contents(outside), (tmp_path / "out" / "rows.jsonl").read_bytes()
    done = run(*VERBS[verb].split(), cwd=tmp_path)
    assert done.code == 2
    last = done.err.splitlines()[-1]
    assert last.startswith(f"efficient-attn: out/{name}: ")
    assert "a link" in last
    assert _contents(outside) == before
    assert (tmp_path / "out" / "rows.jsonl").read_bytes() == rows


@pytest.mark.parametrize("name", ["lock", "rows-x.jsonl", "comment.md", ".comment.md.tmp"])
def test_compare_writes_nothing_through_links(name: str, tmp_path: Path) -> None:
    base = write(tmp_path / "base", [record("full", 64, steady(10)), record("linear", 64, steady(2))])
    (tmp_path / "foreign").write_text("")
    (base / name).unlink(missing_ok=True)
    (base / name).symlink_to(tmp_path / "foreign")
    done = run("compare", "base", "base", "--out", "base/comment.md", cwd=tmp_path)
    assert (tmp_path / "foreign").read_text() == ""
    assert done.code == (2 if name == "comment.md" else 0), done.err


# -- existing files ------------------------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path / "A", [record("full", 64, steady(10)), record("linear", 64, steady(2))])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "line",
    [
        "compare A A --out A/rows.jsonl",
        "compare A A --out A/rows-2.jsonl",
        "compare A A --out A/run.json",
        "compare A A --out notes.md",
        "compare A A --out link.md",
        "compare A exported.json --out exported.json",
        "report A --export pytest-benchmark=A/run.json",
        "report A --export github-action=A/rows.jsonl",
        "report A --export github-action=notes.md",
        "report A --out docs",
        "info sliding_window:window=2 --picture photo.png",
        "list --family sparse --picture photo.png",
    ],
)
def test_foreign_files_are_not_overwritten(line: str, base: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("notes.md", "photo.png", "docs/report.md"):
        (tmp_path / name).write_text("mine: ![](plots/a.png)")
    (tmp_path / "link.md").symlink_to(tmp_path / "notes.md")
    assert run("report", "A", "--export", "pytest-benchmark=exported.json", cwd=tmp_path).code == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = run(*line.split(), cwd=tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert done.out == ""
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.sampled(4)
def test_generated_files_are_overwritten(base: Path, tmp_path: Path) -> None:
    lines = [
        *(f"compare A A --format {form} --out to/{form}" for form in ("text", "markdown", "json")),
        *(f"report A --export {form}=to/{form}" for form in ("pytest-benchmark", "github-action")),
        *(f"info sliding_window:window=2 --picture to/a.{kind}" for kind in ("png", "svg", "pdf")),
        "report A --out to",
    ]
    for line in lines * 2:
        done = run(*line.split(), cwd=tmp_path)
        assert done.code == 0, done.err


def test_a_report_deletes_no_foreign_files(base: Path, tmp_path: Path) -> None:
    """Neither a picture that a foreign report.md shows, nor one with the name of a generated plot."""
    docs = tmp_path / "docs"
    (docs / "plots").mkdir(parents=True)
    (docs / "plots" / "a.png").write_text("mine")
    (docs / "report.html").write_text("mine")
    (docs / "report.md").write_text("# Mine\n\n![](plots/a.png)\n")
    before = {path: path.read_bytes() for path in docs.rglob("*") if path.is_file()}
    assert run("report", "A", "--out", "docs", cwd=tmp_path).code == 2
    assert {path: path.read_bytes() for path in docs.rglob("*") if path.is_file()} == before
    (docs / "report.md").unlink()
    (docs / "report.html").unlink()
    done = run("report", "A", "--out", "docs", cwd=tmp_path)
    assert done.code == 0, done.err
    shown = (docs / "report.md").read_text()
    (docs / "report.md").write_text(shown + "![](plots/a.png)\n")  # linked by the generated report, but not generated
    done = run("report", "A", "--out", "docs", cwd=tmp_path)
    assert done.code == 0, done.err
    assert (docs / "plots" / "a.png").read_text() == "mine"
