"""Damaged rows: readers leave them out with a warning, `--resume` measures them again, and the others are kept."""

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

# damage to the four lines of a run, the number of damaged lines, and the number of records lost
DAMAGE: dict[str, tuple[Callable[[list[str]], str], int, int]] = {
    "last line truncated in the middle": (lambda x: "".join(x)[: -len(x[3]) // 2], 1, 1),
    "last line truncated within the checksum": (lambda x: "".join(x)[:-3], 1, 1),
    "a changed number": (lambda x: x[0] + x[1].replace('"heads":2', '"heads":3') + x[2] + x[3], 1, 1),
    "an emptied line": (lambda x: x[0] + "\n" + x[2] + x[3], 1, 1),
    "two joined lines": (lambda x: x[0].rstrip("\n") + x[1] + x[2] + x[3], 1, 2),
    "two damaged lines": (lambda x: "hello\n" + x[1] + x[2] + x[3][:9], 2, 2),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four cases; tests must not change it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.toml").write_text(TINY)
    done = run("run", "tiny.toml", "--out", "out", cwd=folder)
    assert done.code == 0, done.err
    return folder


def _damage(finished: Path, folder: Path, how: str) -> tuple[Path, list[str], int, int]:
    """Damage the rows of a copy: the rows file, its intact lines, and the numbers of damaged and lost records."""
    shutil.copytree(finished, folder, dirs_exist_ok=True)
    path = folder / "out" / "rows.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 4
    change, damaged, lost = DAMAGE[how]
    path.write_text(change(lines))
    return path, [line for line in lines if line in path.read_text().splitlines(keepends=True)], damaged, lost


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_record_is_left_out_with_a_warning(how: str, finished: Path, tmp_path: Path) -> None:
    path, intact, damaged, lost = _damage(finished, tmp_path, how)
    before = path.read_bytes()
    with pytest.warns(DamagedRecord) as warned:
        rows = ea.load(path.parent)
    assert list(rows.case_key) == [json.loads(line)["case_key"] for line in intact]
    assert len(rows) == 4 - lost
    (warning,) = warned  # one for each file
    assert str(warning.message).startswith(f"{path}:")
    assert ("and 1 other line" in str(warning.message)) == (damaged == 2)
    assert path.read_bytes() == before


@pytest.mark.parametrize("how", ["a changed number", "two damaged lines"])
def test_a_report_counts_damaged_lines(how: str, finished: Path, tmp_path: Path) -> None:
    path, intact, damaged, _ = _damage(finished, tmp_path, how)
    before = path.read_bytes()
    done = run("report", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.err.count("left out (`--resume` measures it again)") == 1
    for page in ("report.html", "report.md"):
        text = (path.parent / page).read_text()
        assert f"{damaged} damaged line{'s were' if damaged > 1 else ' was'} left out of this report: out/rows" in text
    assert (path.parent / "rows.csv").read_text().count("\n") == 1 + len(intact)
    assert path.read_bytes() == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", DAMAGE)
def test_resume_measures_damaged_cases_again(how: str, finished: Path, tmp_path: Path) -> None:
    path, intact, damaged, _ = _damage(finished, tmp_path, how)
    done = run("run", "tiny.toml", "--out", "out", "--resume", cwd=tmp_path)
    assert done.code == 0, done.err
    assert path.read_text().startswith("".join(intact)), "intact lines are unchanged"
    assert len((path.parent / "quarantine.jsonl").read_text().splitlines()) == damaged
    rows = ea.load(path.parent)
    assert rows.case_key.is_unique
    assert set(rows.case_key) == set(ea.load(finished / "out").case_key)
    assert "left out of this report" not in (path.parent / "report.html").read_text()


@pytest.mark.parametrize("line", ["run tiny.toml --out out --resume", "report out"])
def test_a_record_of_a_newer_version_is_an_error(line: str, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "out" / "rows.jsonl"
    path.write_text(path.read_text() + Record(Row(schema=SCHEMA_VERSION + 1)).to_line() + "torn")
    before = path.read_bytes()
    done = run(*line.split(), cwd=tmp_path)
    message = f"schema {SCHEMA_VERSION + 1} is newer than this version reads ({SCHEMA_VERSION}); upgrade efficient-attn"
    assert (done.code, done.err) == (2, f"efficient-attn: out/rows.jsonl:5: {message}\n")
    assert path.read_bytes() == before
    assert not (path.parent / "quarantine.jsonl").exists()
