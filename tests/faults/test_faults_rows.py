"""Rows that something else broke: one clear line that names the file and the line, and hands off the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from shell import TINY, run

import efficient_attn as ea
from efficient_attn.results.rows import Record, Row

LINES = [
    Record(Row(case_key=f"case{i}", variant="full", latency_ms=1.5 + i), {"latency_ms": [i]}).to_line()
    for i in range(3)
]

BROKEN: dict[str, tuple[Callable[[list[str]], str], int]] = {
    "torn in the middle of the last": (lambda x: "".join(x)[: -len(x[2]) // 2], 3),
    "torn within the checksum": (lambda x: "".join(x)[:-3], 3),
    "a number changed": (lambda x: x[0] + x[1].replace("2.5", "2.4") + x[2], 2),
    "a line emptied": (lambda x: x[0] + "\n" + x[2], 2),
    "two lines run together": (lambda x: x[0].rstrip("\n") + x[1] + x[2], 1),
}


def _broken(folder: Path, how: str) -> tuple[Path, int]:
    write, number = BROKEN[how]
    (folder / "out").mkdir()
    (folder / "tiny.toml").write_text(TINY)
    path = folder / "out" / "rows.jsonl"
    path.write_text(write(LINES))
    return path, number


def test_whole_rows_are_read(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(LINES))
    assert list(ea.load(tmp_path).case_key) == ["case0", "case1", "case2"]


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_record_is_named_by_file_and_line(how: str, tmp_path: Path) -> None:
    path, number = _broken(tmp_path, how)
    with pytest.raises(ea.UsageError) as caught:
        ea.load(path.parent)
    assert str(caught.value).startswith(f"{path}:{number}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["run tiny.toml --out out --resume", "report out"])
def test_the_command_says_it_in_one_line_and_leaves_the_file_alone(line: str, tmp_path: Path) -> None:
    path, number = _broken(tmp_path, "torn in the middle of the last")
    before = path.read_bytes()
    done = run(*line.split(), cwd=tmp_path)
    assert done.code == 2
    assert done.err.startswith(f"efficient-attn: out/rows.jsonl:{number}: ")
    assert done.err.count("\n") == 1
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["rows.jsonl"]
