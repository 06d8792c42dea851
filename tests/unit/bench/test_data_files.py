"""Digests of data, and what travels to another machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from efficient_attn.bench import data_files
from efficient_attn.bench.data_files import CarriedFiles, digest_files
from efficient_attn.errors import UsageError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with data and a plug-in."""
    folder = tmp_path / "here"
    (folder / "data" / "deep").mkdir(parents=True)
    (folder / "data" / "deep" / "a.txt").write_text("a")
    (folder / "text.txt").write_text("b")
    (folder / "plug.py").write_text("from neighbour import X\n")
    (folder / "neighbour.py").write_text("X = 1\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder


def _case(**keys: Any) -> Any:
    return SimpleNamespace(group=SimpleNamespace(keys=tuple(keys.items())))


def test_small_data_and_plug_ins_travel_with_their_neighbours(here: Path, tmp_path: Path) -> None:
    cases = [_case(text="text.txt"), _case(model=("data", "a name"), text="a name", other="plug.py")]
    files = CarriedFiles.collect([str(here / "plug.py"), "a.module"], cases)
    assert set(files.contents) == {"plug.py", "neighbour.py", "data/deep/a.txt", "text.txt"}
    assert files.plugins == ("plug.py", "a.module")
    assert set(files.data) == {"data", "text.txt"}
    (tmp_path / "there").mkdir()
    files.unpack(tmp_path / "there")
    assert Path.cwd() == tmp_path / "there"
    assert Path("data/deep/a.txt").read_text() == "a"
    assert sys.path[0] == str(tmp_path / "there")


def test_a_plug_in_elsewhere_keeps_its_neighbours(here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    files = CarriedFiles.collect([str(here / "plug.py")], [])
    folders = {str(Path(name).parent) for name in files.contents}
    assert len(folders) == 1
    assert next(iter(folders)).startswith("plugins-")
    assert {Path(name).name for name in files.contents} == {"plug.py", "neighbour.py"}
    assert files.plugins[0] in files.contents


@pytest.mark.parametrize("change", ["missing", "different"])
def test_data_that_is_not_sent_has_to_be_there(here: Path, tmp_path: Path, change: str) -> None:
    path = here / "data"
    files = CarriedFiles.collect([], [_case(data=str(path))])
    assert files.contents == {}
    files.unpack(tmp_path)
    (path / "deep" / "a.txt").write_text("other")
    if change == "missing":
        os.rename(path, here / "moved")
    with pytest.raises(UsageError, match=f"{path}: {change} on this node; put it on a disk that all nodes share"):
        files.unpack(tmp_path)


def test_large_data_and_data_above_the_folder_are_not_sent(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "MOST_CARRIED_BYTES", 0)
    assert CarriedFiles.collect([], [_case(data="data")]).contents == {}
    monkeypatch.undo()
    assert CarriedFiles.collect([], [_case(data="../here/data")]).contents == {}


def test_digests_of_files_and_folders(here: Path) -> None:
    before = digest_files("data"), digest_files("text.txt")
    assert digest_files("data") == before[0]
    (here / "text.txt").write_text("c")
    (here / "data" / "deep" / "b.txt").write_text("")
    assert digest_files("data") != before[0]
    assert digest_files("text.txt") != before[1]
