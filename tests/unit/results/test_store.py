"""A run's folder: nothing is overwritten, changes are detected, and later records supersede earlier ones."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from efficient_attn.errors import UsageError
from efficient_attn.results import durable
from efficient_attn.results.lock import HOLDER_FILE, LOCK_FILE
from efficient_attn.results.rows import Record, Row
from efficient_attn.results.shards import ROWS_FILE, list_shards, strip_digest
from efficient_attn.results.store import ORDER_KEY, RUN_FILE, RunWriter, StoreError, read, read_sessions


def record(key: str, **cells: object) -> Record:
    return Record(Row(case_key=key, **cells), {"times": [1.0, 2.0]})  # pyright: ignore[reportArgumentType]


def write(folder: Path, *keys: str, resume: bool = False, shard: str = ROWS_FILE) -> set[str]:
    with RunWriter(folder, resume=resume, shard=shard) as writer:
        for key in keys:
            writer.write(record(key))
        return set(writer.statuses)


def keys(run: Path) -> list[str]:
    return [r.row.case_key for r in read(run)]


def test_written_records_are_read_in_order(tmp_path: Path) -> None:
    write(tmp_path / "a" / "run", "x", "y")
    assert read(tmp_path / "a" / "run") == [record("x"), record("y")]
    assert read(tmp_path / "a" / "run" / ROWS_FILE) == [record("x"), record("y")]


def test_records_of_several_jobs_are_read_in_the_order_of_the_plan(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.write_session({"run_id": "first", ORDER_KEY: ["a", "b", "c"]})
        for key in ("w#c", "y#other", "x#a", "z#b", "w#c"):
            writer.write(record(key))
    assert keys(tmp_path) == ["y#other", "x#a", "z#b", "w#c"]


def test_every_record_is_on_disk_when_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    with RunWriter(tmp_path / "run") as writer:
        synced.clear()
        writer.write(record("x"))
        assert synced == [(tmp_path / "run" / ROWS_FILE).stat().st_size] != [0]
        assert keys(tmp_path / "run") == ["x"]


def test_new_names_are_synced_with_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync_folder", synced.append)
    with RunWriter(tmp_path / "a" / "run") as writer:
        assert set(synced) == {tmp_path, tmp_path / "a", tmp_path / "a" / "run"}
        synced.clear()
        writer.write_session({"run_id": "one"})
        assert synced == [tmp_path / "a" / "run"]


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "run", "x")
    with pytest.raises(
        UsageError, match=rf"run: not empty \(contains {ROWS_FILE}\); choose another --out, or add --resume"
    ):
        RunWriter(tmp_path / "run")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"not empty \(contains notes.txt\)"):
        RunWriter(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "run"], "not even a lock is left there"
    assert keys(tmp_path / "run") == ["x"]


def test_resuming_reads_statuses_and_appends(tmp_path: Path) -> None:
    write(tmp_path, "x", "y")
    assert write(tmp_path, "z", resume=True) == {"x", "y", "z"}
    assert keys(tmp_path) == ["x", "y", "z"]


def test_resuming_an_absent_or_empty_folder_starts_the_run(tmp_path: Path) -> None:
    assert write(tmp_path / "new", "x", resume=True) == {"x"}
    assert write(tmp_path / "new", "y", resume=True) == {"x", "y"}


def test_resuming_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=rf"contains no run to resume \(no {ROWS_FILE}\)"):
        RunWriter(tmp_path, resume=True)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_in_the_way_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file: cannot be written: .*; choose another --out"):
        RunWriter(tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written"):
        RunWriter(tmp_path / "file" / "below")


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_a_forbidden_folder_is_reported() -> None:
    with tempfile.TemporaryDirectory() as name:  # not pytest's, which is closed to all but its owner
        Path(name).chmod(0o555)
        with _unprivileged_user(), pytest.raises(UsageError, match="cannot be written: Permission denied"):
            RunWriter(Path(name) / "run")


@contextmanager
def _unprivileged_user() -> Iterator[None]:
    """Run as another user, because root may write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_reading_a_path_without_rows_is_reported(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "absent.jsonl", tmp_path / "other.csv"):
        with pytest.raises(UsageError, match="no run here"):
            read(path)


# -- shards and superseding ----------------------------------------------------------------------------------------


def test_all_shards_are_read_by_name_the_default_one_first(tmp_path: Path) -> None:
    write(tmp_path, "b", shard="rows-2.jsonl")
    write(tmp_path, "c", shard="rows_3.jsonl", resume=True)
    assert write(tmp_path, "a", resume=True) == {"a", "b", "c"}
    assert [p.name for p in list_shards(tmp_path)] == [ROWS_FILE, "rows-2.jsonl", "rows_3.jsonl"]
    assert keys(tmp_path) == ["a", "b", "c"]
    assert keys(tmp_path / "rows-2.jsonl") == ["b"]
    (tmp_path / ROWS_FILE).unlink()
    assert keys(tmp_path) == ["b", "c"]


def test_the_digest_is_stripped() -> None:
    assert strip_digest("suite/part/full/n8#abc") == "suite/part/full/n8"
    assert strip_digest("no digest") == "no digest"
    assert strip_digest("suite/part #2/full/n8#abc") == "suite/part #2/full/n8"


def test_the_latest_record_has_the_position_of_the_first(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        for key, status in (("a#1", "ok"), ("b#1", "oom"), ("c#1", "ok"), ("a#2", "error"), ("b#1", "ok")):
            writer.write(record(key, status=status))
        assert writer.statuses == {"a#2": "error", "b#1": "ok", "c#1": "ok"}
    expected = [record("a#2", status="error"), record("b#1", status="ok"), record("c#1", status="ok")]
    assert read(tmp_path) == expected
    assert len((tmp_path / ROWS_FILE).read_text().splitlines()) == 5, "the file keeps all"
    with RunWriter(tmp_path, resume=True) as writer:
        assert writer.statuses == {"a#2": "error", "b#1": "ok", "c#1": "ok"}


def test_a_later_shard_supersedes_whenever_it_was_written(tmp_path: Path) -> None:
    write(tmp_path, "a#2", shard="rows-2.jsonl")
    write(tmp_path, "a#1", "b#1", resume=True)
    assert keys(tmp_path) == ["a#2", "b#1"]
    with RunWriter(tmp_path, resume=True) as writer:
        assert set(writer.statuses) == {"a#2", "b#1"}


def test_only_the_samples_that_are_asked_for_are_kept(tmp_path: Path) -> None:
    write(tmp_path, "a#1", "b#1")
    records = read(tmp_path, keep_samples=lambda samples: {name: x[:1] for name, x in samples.items()})
    assert [each.samples for each in records] == [{"times": [1.0]}] * 2
    assert [each.row for each in records] == [each.row for each in read(tmp_path)]


# -- the disk ------------------------------------------------------------------------------------------------------


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.write
    monkeypatch.setattr(os, "write", lambda file, data: really(file, bytes(data[:7])))
    write(tmp_path, "x", "y")
    assert read(tmp_path) == [record("x"), record("y")]


def _full(after: int) -> Callable[[int, bytes], int]:
    """A write function of a disk with so many free bytes."""
    really, room = os.write, [after]

    def write(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = really(file, bytes(data[: room[0]]))
        room[0] -= taken
        return taken

    return write


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_full_disk_keeps_what_was_written_and_is_reported(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunWriter(tmp_path / "run") as writer:
        writer.write(record("x"))
        before = (tmp_path / "run" / ROWS_FILE).read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", _full(room))
            with pytest.raises(StoreError) as caught:
                writer.write(record("y"))
        kept = "No space left on device; what was written so far is saved; free some space and continue with --resume"
        assert str(caught.value) == f"{tmp_path / 'run'}: {kept}"
        assert isinstance(caught.value, UsageError)
        assert (tmp_path / "run" / ROWS_FILE).read_bytes() == before
        assert set(writer.statuses) == {"x"}
        writer.write(record("z"))
    assert keys(tmp_path / "run") == ["x", "z"]


def test_a_record_that_cannot_be_synced_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with RunWriter(tmp_path) as writer:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fails)
            with pytest.raises(StoreError, match="Input/output error; what was written"):
                writer.write(record("x"))
        assert writer.statuses == {}
    assert read(tmp_path) == []


# -- run.json ------------------------------------------------------------------------------------------------------


def test_sessions_are_appended_to_earlier_ones(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.write_session({"run_id": "one", "threads": 1})
        writer.write(record("x"))
    with RunWriter(tmp_path, resume=True) as writer:
        assert read_sessions(tmp_path) == [{"run_id": "one", "threads": 1}]
        writer.write_session({"run_id": "two", "threads": 2})
        writer.write_session({"run_id": "two", "threads": 2, "finished": "now"})
    assert read_sessions(tmp_path) == [
        {"run_id": "one", "threads": 1},
        {"run_id": "two", "threads": 2, "finished": "now"},
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([LOCK_FILE, HOLDER_FILE, ROWS_FILE, RUN_FILE])
    assert read_sessions(tmp_path / "absent") == []


def test_a_failed_write_of_run_json_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunWriter(tmp_path) as writer:
        writer.write_session({"run_id": "one"})
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", _full(5))
            with pytest.raises(StoreError, match="No space left"):
                writer.write_session({"run_id": "two"})
    assert read_sessions(tmp_path) == [{"run_id": "one"}]
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def test_a_damaged_description_is_reported(tmp_path: Path) -> None:
    (tmp_path / RUN_FILE).write_text("{")
    with pytest.raises(UsageError, match=f"{RUN_FILE}: damaged"):
        read_sessions(tmp_path)
