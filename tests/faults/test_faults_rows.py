"""Rows that something else broke: readers leave them out and say so, resuming measures them again, nothing is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from shell import TINY, run

import efficient_attn as ea
from efficient_attn.results.rows import SCHEMA_VERSION, Record, Row
from efficient_attn.results.shards import DamagedRecord

# what becomes of the lines of a run, how many damaged lines that makes, and how many records it costs
BROKEN: dict[str, tuple[Callable[[list[str]], str], int, int]] = {
    "torn in the middle of the last": (lambda x: "".join(x)[: -len(x[3]) // 2], 1, 1),
    "torn within the checksum": (lambda x: "".join(x)[:-3], 1, 1),
    "a number changed": (lambda x: x[0] + x[1].replace('"heads":2', '"heads":3') + x[2] + x[3], 1, 1),
    "a line emptied": (lambda x: x[0] + "\n" + x[2] + x[3], 1, 1),
    "two lines run together": (lambda x: x[0].rstrip("\n") + x[1] + x[2] + x[3], 1, 2),
    "two lines of four": (lambda x: "hello\n" + x[1] + x[2] + x[3][:9], 2, 2),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of four cases; never change what is in its folder."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.toml").write_text(TINY)
    done = run("run", "tiny.toml", "--out", "out", cwd=folder)
    assert done.code == 0, done.err
    return folder


def _broken(finished: Path, folder: Path, how: str) -> tuple[Path, list[str], int, int]:
    """A copy whose rows are broken, its good lines, and what was broken."""
    shutil.copytree(finished, folder, dirs_exist_ok=True)
    path = folder / "out" / "rows.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 4
    breaks, damaged, lost = BROKEN[how]
    path.write_text(breaks(lines))
    return path, [line for line in lines if line in path.read_text().splitlines(keepends=True)], damaged, lost


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_record_is_left_out_and_named(how: str, finished: Path, tmp_path: Path) -> None:
    path, good, damaged, lost = _broken(finished, tmp_path, how)
    before = path.read_bytes()
    with pytest.warns(DamagedRecord) as told:
        rows = ea.load(path.parent)
    assert list(rows.case_key) == [json.loads(line)["case_key"] for line in good]
    assert len(rows) == 4 - lost
    assert len(told) == damaged
    assert all(str(warning.message).startswith(f"{path}:") for warning in told)
    assert path.read_bytes() == before


@pytest.mark.parametrize("how", ["a number changed", "two lines of four"])
def test_a_report_says_what_it_leaves_out(how: str, finished: Path, tmp_path: Path) -> None:
    path, good, damaged, _ = _broken(finished, tmp_path, how)
    before = path.read_bytes()
    done = run("report", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.err.count("left out (`--resume` measures it again)") == damaged
    for page in ("report.html", "report.md"):
        text = (path.parent / page).read_text()
        assert f"{damaged} damaged line{'s were' if damaged > 1 else ' was'} left out of this report: out/rows" in text
    assert (path.parent / "rows.csv").read_text().count("\n") == 1 + len(good)
    assert path.read_bytes() == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", BROKEN)
def test_resuming_measures_what_was_broken_again(how: str, finished: Path, tmp_path: Path) -> None:
    path, good, damaged, _ = _broken(finished, tmp_path, how)
    done = run("run", "tiny.toml", "--out", "out", "--resume", cwd=tmp_path)
    assert done.code == 0, done.err
    assert path.read_text().startswith("".join(good)), "good lines stay as they are"
    assert len((path.parent / "quarantine.jsonl").read_text().splitlines()) == damaged
    rows = ea.load(path.parent)
    assert rows.case_key.is_unique
    assert set(rows.case_key) == set(ea.load(finished / "out").case_key)
    assert "left out of this report" not in (path.parent / "report.html").read_text()


@pytest.mark.parametrize("line", ["run tiny.toml --out out --resume", "report out"])
def test_a_newer_versions_record_is_stated_in_one_line_and_left_alone(
    line: str, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "out" / "rows.jsonl"
    path.write_text(path.read_text() + Record(Row(schema=SCHEMA_VERSION + 1)).to_line() + "torn")
    before = path.read_bytes()
    done = run(*line.split(), cwd=tmp_path)
    told = f"schema {SCHEMA_VERSION + 1} is newer than this version reads ({SCHEMA_VERSION}); upgrade efficient-attn"
    assert (done.code, done.err) == (2, f"efficient-attn: out/rows.jsonl:5: {told}\n")
    assert path.read_bytes() == before
    assert not (path.parent / "quarantine.jsonl").exists()
