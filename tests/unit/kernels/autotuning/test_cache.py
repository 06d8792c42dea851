"""What is kept of timings: nothing torn, nothing of another machine, and no failure where nothing can be kept."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from efficient_attn.kernels.autotuning import cache
from efficient_attn.kernels.autotuning.candidates import TimingTable, Tunable, TuningPoint

POINT = TuningPoint("a", (1, 2))
CONTEST = Tunable(
    name="toy", implementations=("x", "y"), points=(POINT,), make_candidates=lambda p: {}, rule=lambda p: "x"
)
TABLE = TimingTable(((POINT, {"x": 1.0, "y": 2.0}),), "measured now", 0.5)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_was_written_is_read() -> None:
    assert cache.read(CONTEST, 2) == TimingTable()
    written = cache.write(CONTEST, 2, TABLE, previous=TimingTable())
    assert "stored in" in written.source
    found = cache.read(CONTEST, 2)
    assert (found.timings, found.seconds) == (TABLE.timings, 0.5)
    assert not cache.read(CONTEST, 1).timings


@pytest.mark.parametrize("cut", [0, 1, 30, -1])
def test_a_torn_file_counts_for_nothing_and_is_replaced(cut: int) -> None:
    path = cache.find_file(CONTEST, 1)
    cache.write(CONTEST, 1, TABLE, previous=TimingTable())
    path.write_text(path.read_text()[:cut])
    torn = cache.read(CONTEST, 1)
    assert not torn.timings
    assert str(path) in torn.source
    assert "replaced" in cache.write(CONTEST, 1, TABLE, previous=torn).source
    assert cache.read(CONTEST, 1).timings == TABLE.timings


def test_a_file_of_another_machine_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(CONTEST, 1, TABLE, previous=TimingTable())
    mine = cache.find_file(CONTEST, 1)
    other = {"machine": "AMD-Zen9-1c-1GiB#000000", "torch": "9.9"}
    monkeypatch.setattr(cache, "describe_environment", lambda: other)
    theirs = cache.find_file(CONTEST, 1)
    assert theirs != mine
    mine.rename(theirs)  # as a shared home or a copied cache may have it
    found = cache.read(CONTEST, 1)
    assert not found.timings
    assert "another machine" in found.source


def test_who_comes_second_takes_what_the_first_has_kept() -> None:
    cache.write(CONTEST, 1, TABLE, previous=TimingTable())
    late = TimingTable(((POINT, {"x": 9.0, "y": 1.0}),))
    assert cache.write(CONTEST, 1, late, previous=TimingTable()).timings == TABLE.timings


def test_many_at_once_leave_one_whole_file() -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: cache.write(CONTEST, 1, TABLE, previous=TimingTable()), range(40)))
    assert cache.read(CONTEST, 1).timings == TABLE.timings
    assert len(list(cache.folder().iterdir())) == 1


def test_a_home_that_takes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # root may write to folders that are read-only
    assert not cache.read(CONTEST, 1).timings
    kept = cache.write(CONTEST, 1, TABLE, previous=cache.read(CONTEST, 1))
    assert "not stored" in kept.source
    assert kept.timings == TABLE.timings


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_home(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "not stored" in cache.write(CONTEST, 1, TABLE, previous=TimingTable()).source
