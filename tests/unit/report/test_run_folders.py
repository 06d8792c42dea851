"""What may go from a run's folder, and what never does."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_runs as runs

from efficient_attn.errors import UsageError
from efficient_attn.report import run_folders, write_report
from efficient_attn.results.lock import FolderLock


def _make(folder: Path, *, finished: bool = True) -> Path:
    described = runs.about() | ({"finished": "2026-11-23T10:00:00+00:00"} if finished else {"finished": None})
    runs.write_run(folder, runs.speed(lengths=(512, 1024)), described)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "0123456789ab.safetensors").write_bytes(b"x")
    return folder


def test_runs_are_listed_the_latest_first(tmp_path: Path) -> None:
    _make(tmp_path / "a")
    (tmp_path / "notes").mkdir()
    (found,) = run_folders.list_runs(tmp_path)
    assert (found.folder.name, found.suite, found.finished) == ("a", "quickstart", True)
    assert found.statuses == {"ok": len(list(runs.speed(lengths=(512, 1024))))}
    assert found.size > 1000
    with pytest.raises(UsageError, match="no such folder"):
        list(run_folders.list_runs(tmp_path / "nowhere"))


def test_only_what_can_be_made_again_goes(tmp_path: Path) -> None:
    folder = _make(tmp_path / "a")
    before = {path.name: path.read_bytes() for path in folder.glob("r*.json*")}
    write_report([folder], folder)
    (folder / "mine.txt").write_text("notes")
    (folder / "plots" / "mine.png").write_bytes(b"not ours")
    gone = run_folders.remove_derived_files(run_folders.describe_run(folder))
    assert {"report.html", "report.md", "rows.csv", "0123456789ab.safetensors"} <= {path.name for path in gone}
    left = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and "lock" not in p.name}
    assert left == {"mine.txt", "plots/mine.png", "rows.jsonl", "run.json"}
    assert {path.name: path.read_bytes() for path in folder.glob("r*.json*")} == before
    write_report([folder], folder)  # made again


def test_of_a_run_that_was_stopped_checkpoints_stay(tmp_path: Path) -> None:
    folder = _make(tmp_path / "a", finished=False)
    run_folders.remove_derived_files(run_folders.describe_run(folder))
    assert (folder / "checkpoints" / "0123456789ab.safetensors").is_file()


def test_a_run_that_is_written_to_is_left_alone(tmp_path: Path) -> None:
    folder = _make(tmp_path / "a")
    lock = FolderLock(folder)
    try:
        with pytest.raises(UsageError, match="in use by process"):
            run_folders.remove_derived_files(run_folders.describe_run(folder))
    finally:
        lock.release()
    assert (folder / "checkpoints" / "0123456789ab.safetensors").is_file()
