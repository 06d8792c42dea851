"""Checkpoints of unfinished cases: they are removed when they are not needed, and no other files are."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from efficient_attn.results.checkpoints import CHECKPOINT_FOLDER, clear, digest_of, is_resumable, model_path_of, path_of
from efficient_attn.results.rows import Status

ONE, TWO = "0123456789ab", "ba9876543210"


def _create_checkpoints(run: Path, *names: str) -> Path:
    checkpoints = run / CHECKPOINT_FOLDER
    checkpoints.mkdir()
    for name in names or (f"{ONE}.pt", f".{ONE}.pt.00ff.tmp", f"{TWO}.pt"):
        (checkpoints / name).touch()
    return checkpoints


def test_a_case_is_found_by_its_digest() -> None:
    assert digest_of(f"a#b/full/n8#{ONE}") == ONE
    assert path_of(Path("run"), ONE) == Path(f"run/{CHECKPOINT_FOLDER}/{ONE}.pt")


def test_only_the_checkpoint_of_a_digest_is_removed(tmp_path: Path) -> None:
    folder = _create_checkpoints(tmp_path)
    clear(tmp_path, digest=ONE)  # what a killed writer left, too
    assert [path.name for path in folder.iterdir()] == [f"{TWO}.pt"]
    clear(tmp_path, digest=TWO)
    assert list(folder.iterdir()) == [], "other workers may be about to write there"


def test_all_checkpoints_but_the_kept_ones_are_removed(tmp_path: Path) -> None:
    folder = _create_checkpoints(tmp_path)
    clear(tmp_path, {TWO})
    assert [path.name for path in folder.iterdir()] == [f"{TWO}.pt"]
    clear(tmp_path)
    assert not folder.exists()
    clear(tmp_path)


def test_other_files_are_kept(tmp_path: Path) -> None:
    names = {"mine.pt", "0123456789ab.txt", f"x{ONE}.pt"}
    folder = _create_checkpoints(tmp_path, *names, f"{ONE}.pt")
    clear(tmp_path)
    assert {path.name for path in folder.iterdir()} == names


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    folder = _create_checkpoints(tmp_path / "other")
    (tmp_path / CHECKPOINT_FOLDER).symlink_to(folder)
    clear(tmp_path)
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("status", get_args(Status))
def test_failed_cases_but_invalid_ones_are_resumable(status: Status) -> None:
    assert is_resumable(status) is (status in ("oom", "timeout", "crashed", "interrupted", "error"))


def test_models_are_removed_only_on_request(tmp_path: Path) -> None:
    folder = _create_checkpoints(tmp_path, f"{ONE}.pt", f"{ONE}.model.pt", f".{TWO}.model.pt.00ff.tmp")
    clear(tmp_path, digest=ONE)
    clear(tmp_path)
    assert list(folder.iterdir()) == [model_path_of(tmp_path, ONE)]
    clear(tmp_path, models=True)
    assert not folder.exists()
