"""Published runs: the files kept of each, the index, and the runs published in this repository."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_runs as runs
import tiny_suites
from matplotlib.figure import Figure
from PIL import Image

from efficient_attn.bench.planning.plan import make_plan
from efficient_attn.errors import UsageError
from efficient_attn.report.published import MOST_PICTURES, ChangedSources, ReplacedRun, shrink_png, update_published
from efficient_attn.report.write import write_report
from efficient_attn.results import file_marks, store
from efficient_attn.results.gathered import load
from efficient_attn.results.shards import strip_digest
from efficient_attn.results.store import RunWriter, read

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[3] / "results"
MOST_BYTES = 9_000_000
# why an attempt of a training was not made: results of others, or a computed bound, decided it
NOT_NEEDED = (
    "the best learning rate lies within the grid",
    "the scores of all seeds are within 0.05",
    "no model that sees so few keys does better than chance: computed, not trained",
)
# measured with uncommitted changes before this was forbidden; new runs must be clean
UNCLEAN = ("quickstart-20261122-000811-4a95",)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, one of them with its report, and files of the user; tests must not change them."""
    results = tmp_path_factory.mktemp("published") / "results"
    speed = runs.write_run(results / "speed", [*runs.speed(lengths=(512, 1024)), *runs.decode(), *runs.fidelity()])
    runs.write_run(results / "decode", runs.decode(), runs.about("M2-x8", command=["run", "--out", "/tmp/x"]))
    write_report([speed], speed)
    (speed / "plots" / "mine.png").write_bytes(b"mine")
    (results / "local" / "own").mkdir(parents=True)
    return results


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of ``finished``."""
    return shutil.copytree(finished, tmp_path / "results")


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.sampled(6)
def test_publishing_keeps_rows_and_removes_derived_files(folder: Path) -> None:
    before = {run: (read(folder / run), load(folder / run)) for run in ("speed", "decode")}
    metadata = (folder / "speed" / "run.json").read_bytes()
    assert [run.name for run in update_published(folder)] == ["decode", "speed"]
    kept = names(folder / "speed") - {"lock", "lock.json"}
    plots = {name for name in kept if name.startswith("plots/")} - {"plots/mine.png"}
    assert kept - plots == {"rows.jsonl.gz", "run.json", "report.md", "plots/mine.png"}
    assert (folder / "speed" / "run.json").read_bytes() == metadata
    for run, (records, frame) in before.items():
        assert read(folder / run) == records
        assert load(folder / run).equals(frame)
    text = (folder / "speed" / "report.md").read_text()
    assert {f"plots/{name}.png" for name in re.findall(r"\(plots/([\w-]+)\.png\)", text)} == plots
    assert len(plots) == MOST_PICTURES
    assert {name.partition("-")[0] for name in plots} == {"plots/front", "plots/speedup", "plots/decode"}
    assert "efficient-attn report results/speed --out page" in text
    assert not re.search(r"rows\.csv|/tmp", text + (folder / "decode" / "report.md").read_text())


@pytest.mark.sampled(6)
def test_publishing_is_idempotent_and_reports_can_be_rebuilt(folder: Path, tmp_path: Path) -> None:
    update_published(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock.json"}
    update_published(folder)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock.json"}
    assert after == before
    written = write_report([folder / "speed"], tmp_path / "page")
    assert len(written.plots) > 2 * MOST_PICTURES
    assert written.page.exists()
    write_report([folder / "speed"], folder / "speed")  # into the run's own folder as well
    update_published(folder)
    assert names(folder) == {path.relative_to(folder).as_posix() for path in before} | {
        f"{run}/lock.json" for run in ("speed", "decode")
    }


def test_the_index_lists_every_run(folder: Path) -> None:
    update_published(folder)
    text = (folder / "README.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| [")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [line[0] for line in cells] == ["[decode](decode/report.md)", "[speed](speed/report.md)"]
    count = len(read(folder / "speed"))
    assert cells[1][1:] == [
        *(
            "quickstart",
            runs.TITLE,
            "Xeon-x2-15GiB",
            "float32",
            "1",
            "4 to 12",
            "32, 64",
            f"{count} of {count}",
            "2026-01-02",
        ),
        *("2.13.0", "7e97230", "`efficient-attn run quickstart --out 'my results'`"),
    ]
    assert cells[0][-1] == "`run`"
    assert file_marks.MARK in text


def test_older_and_replaced_runs_are_marked(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for name, machine, protocol in (("old", "Zen5", 2), ("new", "Zen4", 5), ("alone", "Zen5", 3)):
        suite = {"name": name if name == "alone" else "quickstart", "title": "", "baseline": "full"}
        about = runs.about(machine, protocol=protocol, suite=suite, started=f"2026-01-0{protocol}T03:04:05+00:00")
        runs.write_run(folder / name, runs.speed(lengths=(512,), machine=machine), about)
    with pytest.warns(ReplacedRun, match=r"results/old: replaced by new; remove it: git rm -r \S+results/old$") as seen:
        assert len(update_published(folder)) == 3
    assert [warning.category for warning in seen] == [ReplacedRun]
    text = (folder / "README.md").read_text()
    for cell in (
        "[alone](alone/report.md) (protocol 3, older code)",
        "[new](new/report.md)",
        "[old](old/report.md) (protocol 2, older code; replaced by new)",
    ):
        assert f"| {cell} |" in text
    assert (
        "Not comparable with present results: old (protocol 2, older code)." in (folder / "old/report.md").read_text()
    )


def test_uncommitted_changes_are_reported(tmp_path: Path) -> None:
    about = runs.about()
    about["environment"]["git"] |= {"changed": True, "digest": "0edf2297d9d6"}
    runs.write_run(tmp_path / "results" / "speed", runs.speed(lengths=(512,)), about)
    with pytest.warns(ChangedSources, match=r"speed: measured from changes that are in no commit \(on 7e97230\)"):
        update_published(tmp_path / "results")
    assert "| 7e97230, changed |" in (tmp_path / "results" / "README.md").read_text()


def _break(folder: Path, problem: str) -> None:
    if problem == "unfinished":
        with RunWriter(folder / "speed", resume=True) as writer:
            writer.write_session(runs.about(finished=None))
    elif problem == "damaged":
        with (folder / "speed" / "rows.jsonl").open("a") as file:
            file.write("torn")
    else:
        (folder / problem).write_text("mine")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("unfinished", "speed: has not finished; go on with it first"),
        ("damaged", r"rows.jsonl:\d+: cut off.*; repair the run first"),
        ("README.md", "README.md: exists, and was not written by efficient-attn"),
        ("speed/rows.csv", "rows.csv: exists, and was not written by efficient-attn"),
    ],
)
def test_unpublishable_runs_are_refused_and_unchanged(problem: str, message: str, folder: Path) -> None:
    _break(folder, problem)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock.json"}
    with pytest.raises(UsageError, match=message):
        update_published(folder)
    assert {path: path.read_bytes() for path in before} == before


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no runs; name the folder that holds the runs' folders"):
        update_published(tmp_path)


# -- runs published in this repository -------------------------------------------------------------------------------


def _published() -> list[Path]:
    return sorted(path.parent for path in RESULTS.glob("*/run.json"))


def _git(session: dict[str, Any]) -> dict[str, Any] | None:
    return (session.get("environment") or {}).get("git")


@pytest.mark.parametrize("run", _published(), ids=lambda run: run.name)
def test_a_published_run_is_finished_and_of_a_clean_commit(run: Path) -> None:
    sessions = store.read_sessions(run)
    assert sessions[-1]["finished"]
    if not all(session["finished"] for session in sessions):  # one was interrupted: the last must have done the rest
        rows = {strip_digest(record.row.case_key): record.row for record in read(run)}
        planned = {
            strip_digest(case.key) for case in make_plan(tiny_suites.parse(sessions[-1]["suite_text"], run.name))
        }
        assert rows.keys() == planned
        assert all(row.status == "ok" or row.reason in NOT_NEEDED for row in rows.values())
    for session in sessions:
        git = _git(session)
        assert git, "the session names no commit"
        assert session["run_id"] in UNCLEAN or not git["digest"], "measured with uncommitted changes"


@pytest.mark.parametrize("run", _published(), ids=lambda run: run.name)
def test_a_published_run_has_rows_a_report_and_few_plots(run: Path) -> None:
    assert len(load(run))
    text = (run / "report.md").read_text()
    plots = re.findall(r"\(plots/([\w-]+\.png)\)", text)
    assert len(plots) <= MOST_PICTURES
    assert all((run / "plots" / name).is_file() for name in plots)
    assert "/tmp" not in text
    assert f"[{run.name}]({run.name}/report.md)" in (RESULTS / "README.md").read_text()


def test_shrunk_plots_look_the_same() -> None:
    figure, big = Figure(figsize=(4, 3)), io.BytesIO()
    for n in range(6):
        figure.subplots().plot(range(9), [n * x for x in range(9)])
    figure.savefig(big, format="png", dpi=150, metadata={"Software": file_marks.MARK}, pil_kwargs={"compress_level": 2})
    small = shrink_png(big.getvalue())
    assert len(small) < 0.6 * len(big.getvalue())
    assert file_marks.MARK.encode() in small
    before, after = (np.asarray(Image.open(io.BytesIO(x)).convert("RGB"), float) for x in (big.getvalue(), small))
    assert abs(before - after).max() < 24


def test_committed_results_are_small() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "."], cwd=RESULTS, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no checkout")
    files = [RESULTS / name for name in listed.stdout.split("\0") if name and (RESULTS / name).exists()]
    kinds = {path.name if path.parent.parent == RESULTS else path.suffix for path in files} - {".md"}
    assert kinds <= {"rows.jsonl.gz", "run.json", "report.md", ".png", "quarantine.jsonl"}
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
