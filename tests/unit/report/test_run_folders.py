"""Listing runs, and removing derived files from their folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_runs as runs

from efficient_attn.errors import UsageError
from efficient_attn.report import run_folders
from efficient_attn.report.write import write_report
from efficient_attn.results.lock import lock_folder


def _make_run(folder: Path, *, finished: bool = True) -> Path:
    metadata = runs.about() | ({"finished": "2026-11-23T10:00:00+00:00"} if finished else {"finished": None})
    runs.write_run(folder, runs.speed(lengths=(512, 1024)), metadata)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "0123456789ab.pt").write_bytes(b"x")
    return folder


def test_runs_are_listed_with_suite_statuses_and_size(tmp_path: Path) -> None:
    _make_run(tmp_path / "a")
    (tmp_path / "notes").mkdir()
    (run,) = run_folders.list_runs(tmp_path)
    assert (run.folder.name, run.suite, run.finished) == ("a", "quickstart", True)
    assert run.statuses == {"ok": len(list(runs.speed(lengths=(512, 1024))))}
    assert run.size > 1000
    with pytest.raises(UsageError, match="no such folder"):
        run_folders.list_runs(tmp_path / "nowhere")


def test_the_latest_run_is_listed_first(tmp_path: Path) -> None:
    for name, started in (("a", "2026-11-22"), ("b", "2026-11-24"), ("c", "2026-11-23")):
        runs.write_run(tmp_path / name, runs.speed(), runs.about() | {"started": f"{started}T10:00:00+00:00"})
    assert [run.folder.name for run in run_folders.list_runs(tmp_path)] == ["b", "c", "a"]


def test_only_derived_files_are_removed(tmp_path: Path) -> None:
    folder = _make_run(tmp_path / "a")
    before = {path.name: path.read_bytes() for path in folder.glob("r*.json*")}
    write_report([folder], folder)
    (folder / "mine.txt").write_text("notes")
    (folder / "plots" / "mine.png").write_bytes(b"not ours")
    removed = run_folders.remove_derived_files(run_folders.describe_run(folder))
    assert {"report.html", "report.md", "rows.csv", "0123456789ab.pt"} <= {path.name for path in removed}
    kept = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and "lock" not in p.name}
    assert kept == {"mine.txt", "plots/mine.png", "rows.jsonl", "run.json"}
    assert {path.name: path.read_bytes() for path in folder.glob("r*.json*")} == before
    write_report([folder], folder)  # derived files can be written again


def test_checkpoints_of_unfinished_runs_are_kept(tmp_path: Path) -> None:
    folder = _make_run(tmp_path / "a", finished=False)
    run_folders.remove_derived_files(run_folders.describe_run(folder))
    assert (folder / "checkpoints" / "0123456789ab.pt").is_file()


def test_a_run_in_use_is_not_changed(tmp_path: Path) -> None:
    folder = _make_run(tmp_path / "a")
    with lock_folder(folder), pytest.raises(UsageError, match="in use by process"):
        run_folders.remove_derived_files(run_folders.describe_run(folder))
    assert (folder / "checkpoints" / "0123456789ab.pt").is_file()
