"""The cache of timings: damaged files and those of other machines are ignored, unwritable folders are tolerated."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from efficient_attn.kernels.autotuning import cache
from efficient_attn.kernels.autotuning.candidates import TimingTable, Tunable, TuningPoint

POINT = TuningPoint("a", (1, 2))
TUNABLE = Tunable(
    name="toy", implementations=("x", "y"), points=(POINT,), make_candidates=lambda p: {}, rule=lambda p: "x"
)
TABLE = TimingTable(((POINT, {"x": 1.0, "y": 2.0}),), "measured now", 0.5)


@pytest.fixture(autouse=True)
def _cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_written_table_is_read() -> None:
    assert cache.read(TUNABLE, 2) == TimingTable()
    written = cache.write(TUNABLE, 2, TABLE, previous=TimingTable())
    assert "stored in" in written.source
    table = cache.read(TUNABLE, 2)
    assert (table.timings, table.seconds) == (TABLE.timings, 0.5)
    assert not cache.read(TUNABLE, 1).timings


@pytest.mark.parametrize("cut", [0, 1, 30, -1])
def test_truncated_file_is_ignored_and_replaced(cut: int) -> None:
    path = cache.find_file(TUNABLE, 1)
    cache.write(TUNABLE, 1, TABLE, previous=TimingTable())
    path.write_text(path.read_text()[:cut])
    truncated = cache.read(TUNABLE, 1)
    assert not truncated.timings
    assert path.name in truncated.source
    assert str(path) not in truncated.source, "published environments do not name folders of the user"
    assert "replaced" in cache.write(TUNABLE, 1, TABLE, previous=truncated).source
    assert cache.read(TUNABLE, 1).timings == TABLE.timings


def test_file_of_another_machine_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(TUNABLE, 1, TABLE, previous=TimingTable())
    mine = cache.find_file(TUNABLE, 1)
    other = {"machine": "AMD-Zen9-1c-1GiB#000000", "torch": "9.9"}
    monkeypatch.setattr(cache, "describe_environment", lambda: other)
    theirs = cache.find_file(TUNABLE, 1)
    assert theirs != mine
    mine.rename(theirs)  # as in a shared home folder or a copied cache
    table = cache.read(TUNABLE, 1)
    assert not table.timings
    assert "another machine" in table.source


def test_second_writer_gets_the_stored_table() -> None:
    cache.write(TUNABLE, 1, TABLE, previous=TimingTable())
    late = TimingTable(((POINT, {"x": 9.0, "y": 1.0}),))
    assert cache.write(TUNABLE, 1, late, previous=TimingTable()).timings == TABLE.timings


def test_concurrent_writes_leave_one_complete_file() -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: cache.write(TUNABLE, 1, TABLE, previous=TimingTable()), range(40)))
    assert cache.read(TUNABLE, 1).timings == TABLE.timings
    assert len(list(cache.folder().iterdir())) == 1


def test_unusable_cache_folder_is_tolerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # root may write to folders that are read-only
    assert not cache.read(TUNABLE, 1).timings
    table = cache.write(TUNABLE, 1, TABLE, previous=cache.read(TUNABLE, 1))
    assert "not stored" in table.source
    assert table.timings == TABLE.timings


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_cache_folder_is_tolerated(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "not stored" in cache.write(TUNABLE, 1, TABLE, previous=TimingTable()).source
