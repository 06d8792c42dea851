"""The copy of large runs' rows in Parquet: equal to what is parsed, of present files, of this user."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pandas as pd
import pytest

import efficient_attn as ea
from efficient_attn.report.gather import gather
from efficient_attn.results import gathered, gathered_cache
from efficient_attn.results.shards import DamagedRecord

pytest.importorskip("pyarrow")
RESULTS = Path(__file__).parents[3] / "results"
RUNS = [RESULTS / name for name in ("quickstart_zen4", "accuracy", "seq2seq", "swap")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gathered_cache, "LEAST_BYTES", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "efficient-attn" / "rows"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runs that were parsed."""
    runs: list[Path] = []
    original = gathered._parse_rows

    def record(paths, damages):
        runs.extend(paths)
        return original(paths, damages)

    monkeypatch.setattr(gathered, "_parse_rows", record)
    return runs


def test_what_is_read_equals_what_was_parsed(parsed: list[Path], cache: Path) -> None:
    """Of speed, trained models with learning curves, alignments, and swapped models."""
    first, again = gather(RUNS), gather(RUNS)
    assert len(parsed) == len(RUNS)
    pd.testing.assert_frame_equal(first.rows, again.rows)
    assert first.rows["curve"].tolist() == again.rows["curve"].tolist()
    assert first.rows["alignment"].tolist() == again.rows["alignment"].tolist()
    assert first.rows["curve"].notna().any()
    assert first.rows["alignment"].notna().any()
    pd.testing.assert_frame_equal(ea.load(RUNS), first.loaded)
    assert len(parsed) == len(RUNS)
    assert len(list(cache.iterdir())) == 1


def copy_run(folder: Path) -> Path:
    run = folder / "run"
    run.mkdir()
    for path in (RESULTS / "quickstart_zen4").glob("r*"):
        if path.is_file():
            (run / path.name).write_bytes(path.read_bytes())
    return run


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "run.json"])
def test_a_changed_file_of_the_same_size_and_time_is_parsed(name: str, tmp_path: Path, parsed: list[Path]) -> None:
    run = copy_run(tmp_path)
    before, path = ea.load(run), run / name
    times, content = path.stat().st_mtime_ns, path.read_bytes()
    changed = content.replace(b"AMD", b"ABC") if name == "run.json" else content[:-1] + bytes([content[-1] ^ 1])
    assert changed != content
    path.write_bytes(changed)
    os.utime(path, ns=(times, times))
    parsed.clear()
    if name == "run.json":
        ea.load(run)
    else:
        with pytest.warns(DamagedRecord):
            ea.load(run)
    assert parsed == [run]
    path.write_bytes(content)
    pd.testing.assert_frame_equal(ea.load(run), before)
    assert parsed == [run]


def test_runs_with_damage_are_parsed_each_time(tmp_path: Path, parsed: list[Path], cache: Path) -> None:
    run = copy_run(tmp_path)
    (run / "rows-2.jsonl").write_bytes(b"{}\n")
    for _ in range(2):
        with pytest.warns(DamagedRecord, match="rows-2.jsonl"):
            ea.load(run)
    assert len(parsed) == 2
    assert list(cache.glob("*.rows")) == []


def test_a_damaged_run_file_is_named_each_time(tmp_path: Path, parsed: list[Path]) -> None:
    run = copy_run(tmp_path)
    (run / "run.json").write_text("{")
    for _ in range(2):
        with pytest.warns(DamagedRecord, match=r"run\.json: damaged"):
            ea.load(run)
    assert len(parsed) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other_columns", "link", "writable"])
def test_a_file_that_cannot_be_trusted_is_replaced(
    damage: str, tmp_path: Path, parsed: list[Path], cache: Path
) -> None:
    run = copy_run(tmp_path)
    want = ea.load(run)
    (path,) = cache.iterdir()
    content = path.read_bytes()
    if damage == "other_columns":
        path.write_bytes(_wrap(pd.DataFrame({"x": [1]}).to_parquet()))
    elif damage == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        path.unlink()
        path.symlink_to(tmp_path / "elsewhere")
    elif damage == "writable":
        path.chmod(0o666)
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:middle], "flipped": flipped, "empty": b""}[damage])
    parsed.clear()
    pd.testing.assert_frame_equal(ea.load(run), want)
    assert parsed == [run]
    pd.testing.assert_frame_equal(ea.load(run), want)
    assert parsed == [run]


def _wrap(content: bytes) -> bytes:
    return hashlib.sha256(content).digest() + content


def test_nothing_fails_without_a_folder(tmp_path: Path, parsed: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(ea.load(RUNS[0])) == len(ea.load(RUNS[0]))
    assert len(parsed) == 2


def test_small_runs_are_parsed_and_files_do_not_pile_up(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(gathered_cache.KEPT_FILES + 2):
        run = tmp_path / f"{number}"
        run.mkdir()
        run = copy_run(run)
        (run / "run.json").write_text((run / "run.json").read_text() + " " * number)
        ea.load(run)
    assert len(list(cache.iterdir())) == gathered_cache.KEPT_FILES
    monkeypatch.setattr(gathered_cache, "LEAST_BYTES", 2**30)
    assert gathered_cache.find_file([RUNS[0]]) is None
