"""A run's folder: nothing is overwritten, nothing altered goes unseen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from efficient_attn.errors import UsageError
from efficient_attn.results.rows import Record, Row
from efficient_attn.results.store import ROWS, RUN, Writer, about, read


def record(key: str, **cells: object) -> Record:
    return Record(Row(case_key=key, **cells), {"times": [1.0, 2.0]})  # pyright: ignore[reportArgumentType]


def write(folder: Path, *keys: str, resume: bool = False) -> set[str]:
    with Writer(folder, resume=resume) as writer:
        for key in keys:
            writer.write(record(key))
        return set(writer.done)


def test_what_was_written_is_read_in_order(tmp_path: Path) -> None:
    write(tmp_path / "a" / "run", "x", "y")
    assert list(read(tmp_path / "a" / "run")) == [record("x"), record("y")]
    assert list(read(tmp_path / "a" / "run" / ROWS)) == [record("x"), record("y")]


def test_every_record_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    with Writer(tmp_path / "run") as writer:
        writer.write(record("x"))
        assert [r.row.case_key for r in read(tmp_path / "run")] == ["x"]


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "run", "x")
    with pytest.raises(UsageError, match=rf"run: not empty \(holds {ROWS}\); choose another --out, or add --resume"):
        Writer(tmp_path / "run")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"not empty \(holds notes.txt\)"):
        Writer(tmp_path)
    assert [r.row.case_key for r in read(tmp_path / "run")] == ["x"]


def test_resuming_knows_what_is_done_and_appends(tmp_path: Path) -> None:
    write(tmp_path, "x", "y")
    assert write(tmp_path, "z", resume=True) == {"x", "y", "z"}
    assert [r.row.case_key for r in read(tmp_path)] == ["x", "y", "z"]


def test_resuming_an_absent_or_empty_folder_starts_the_run(tmp_path: Path) -> None:
    assert write(tmp_path / "new", "x", resume=True) == {"x"}
    assert write(tmp_path / "new", "y", resume=True) == {"x", "y"}


def test_resuming_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=rf"holds no run to resume \(no {ROWS}\)"):
        Writer(tmp_path, resume=True)


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file: cannot be written: .*; choose another --out"):
        Writer(tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written"):
        Writer(tmp_path / "file" / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_forbidden_folder_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written: Permission denied"):
        Writer(tmp_path / "run")


def test_an_altered_record_is_told_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, "x", "y")
    text = (tmp_path / ROWS).read_text()
    (tmp_path / ROWS).write_text(text.replace('"case_key":"y"', '"case_key":"z"'))
    with pytest.raises(UsageError, match=rf"{ROWS}:2: the checksum does not match: the record was altered"):
        list(read(tmp_path))


def test_a_foreign_line_is_told(tmp_path: Path) -> None:
    (tmp_path / ROWS).write_text("hello\n")
    with pytest.raises(UsageError, match=f"{ROWS}:1: not a complete record"):
        list(read(tmp_path))


def test_reading_nothing_is_told(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent", tmp_path / "absent.jsonl"):
        with pytest.raises(UsageError, match="no run here"):
            list(read(place))


def test_sessions_are_described_beside_earlier_ones(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.describe({"run_id": "one", "threads": 1})
        writer.write(record("x"))
    with Writer(tmp_path, resume=True) as writer:
        writer.describe({"run_id": "two", "threads": 2})
    assert about(tmp_path) == [{"run_id": "one", "threads": 1}, {"run_id": "two", "threads": 2}]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([ROWS, RUN])
    assert about(tmp_path / "absent") == []
