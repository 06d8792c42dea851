"""Damaged rows: skipped with a warning by readers, quarantined when a run is resumed, never returned altered."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.errors import UsageError
from efficient_attn.results import durable
from efficient_attn.results import repair as repairing
from efficient_attn.results.repair import QUARANTINE_FILE
from efficient_attn.results.rows import SCHEMA_VERSION, Record, Row
from efficient_attn.results.shards import ROWS_FILE, Damage, DamagedRecord
from efficient_attn.results.store import RunWriter, read

RECORDS = [Record(Row(case_key=f"case{i}#{i}", latency_ms=0.1 + i), {"latency_ms": [[i + 1, 0.5]]}) for i in range(4)]
LINES = [record.to_line().encode() for record in RECORDS]
WHOLE = b"".join(LINES)
KEYS = [record.row.case_key for record in RECORDS]

# the file's data, its damaged lines, their reasons, and the remaining records
DAMAGED: dict[str, tuple[bytes, list[int], str, list[int]]] = {
    "torn": (WHOLE[: -len(LINES[3]) // 2], [4], "cut off", [0, 1, 2]),
    "without its newline": (WHOLE[:-1], [4], "cut off", [0, 1, 2]),
    "a number changed": (WHOLE.replace(b'"latency_ms":1.1', b'"latency_ms":0.9'), [2], "checksum", [0, 2, 3]),
    "emptied": (WHOLE.replace(LINES[1], b"\n"), [2], "not a complete", [0, 2, 3]),
    "run together": (WHOLE.replace(b"}\n", b"}", 1), [1], "not a complete|checksum", [2, 3]),
    "no text": (WHOLE.replace(b'"variant"', b'"\xffariant"', 1), [1], "no UTF-8", [1, 2, 3]),
    "foreign": (b"hello\n" + WHOLE, [1], "not a complete", [0, 1, 2, 3]),
    "two lines": (WHOLE.replace(LINES[0], b"x\n")[:-3], [1, 4], "not a complete|cut off", [1, 2]),
}


def read_damaged(data: bytes) -> tuple[Path, list[Record], list[Damage]]:
    """The records and damages of a file with this data."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ROWS_FILE
        path.write_bytes(data)
        damages: list[Damage] = []
        records = read(Path(folder), on_damage=damages.append)
        assert path.read_bytes() == data
        return path, records, damages


@pytest.mark.parametrize("kind", DAMAGED)
def test_reading_skips_damage_with_a_warning(kind: str, tmp_path: Path) -> None:
    data, numbers, reason, left = DAMAGED[kind]
    (tmp_path / ROWS_FILE).write_bytes(data)
    with pytest.warns(DamagedRecord, match=reason) as caught:
        assert read(tmp_path) == [RECORDS[i] for i in left]
    (message,) = [str(warning.message) for warning in caught]  # one for each file
    assert message.startswith(f"{tmp_path / ROWS_FILE}:{numbers[0]}: ")
    others = f", and {len(numbers) - 1} other line" if len(numbers) > 1 else ""
    assert message.endswith(f"{others}; left out (`--resume` measures it again)")


def test_intact_files_warn_of_nothing(tmp_path: Path) -> None:
    (tmp_path / ROWS_FILE).write_bytes(WHOLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(tmp_path) == RECORDS


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_flipped_byte_loses_only_its_record(at: int, flip: int) -> None:
    data = bytearray(WHOLE)
    data[at] ^= flip
    path, records, damages = read_damaged(bytes(data))
    hit = WHOLE[:at].count(b"\n")
    lost = {hit, hit + 1} if WHOLE[at : at + 1] == b"\n" else {hit}  # two records without their newline are one line
    assert records == [record for i, record in enumerate(RECORDS) if i not in lost]
    assert (damages[0].path, damages[0].line) == (path, hit + 1)
    assert len(damages) == 1 + (data[at : at + 1] == b"\n")  # a new newline makes two lines of one
    assert b"".join(d.data for d in damages) in data


@given(st.integers(0, len(WHOLE)))
def test_a_truncated_file_keeps_its_complete_lines(at: int) -> None:
    path, records, damages = read_damaged(WHOLE[:at])
    whole = WHOLE[:at].count(b"\n")
    rest = WHOLE[:at].rpartition(b"\n")[2]
    assert records == RECORDS[:whole]
    assert [(d.path, d.line, d.data) for d in damages] == ([(path, whole + 1, rest)] if rest else [])


# -- a writer that resumes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DAMAGED)
def test_resuming_quarantines_damage_and_keeps_intact_lines(kind: str, tmp_path: Path) -> None:
    data, numbers, _, left = DAMAGED[kind]
    (tmp_path / ROWS_FILE).write_bytes(data)
    _, _, damages = read_damaged(data)
    with RunWriter(tmp_path, resume=True) as writer:
        (message,) = writer.repairs  # one for each file
        assert message.startswith(f"{tmp_path / ROWS_FILE}:{numbers[0]}: ")
        assert QUARANTINE_FILE in message
        assert list(writer.statuses) == [KEYS[i] for i in left]
        assert (tmp_path / ROWS_FILE).read_bytes() == b"".join(LINES[i] for i in left)
        writer.write(RECORDS[0])
    entries = [json.loads(line) for line in (tmp_path / QUARANTINE_FILE).read_text().splitlines()]
    assert [(e["file"], e["line"]) for e in entries] == [(ROWS_FILE, number) for number in numbers]
    assert [e["text"] for e in entries] == [d.data.decode("utf-8", "backslashreplace") for d in damages]
    assert [e["reason"] for e in entries] == [d.reason for d in damages]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {r.row.case_key for r in read(tmp_path)} == {KEYS[0], *(KEYS[i] for i in left)}
    with RunWriter(tmp_path, resume=True) as writer:
        assert writer.repairs == []


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_repaired_file_is_intact_and_accepts_records(at: int, flip: int) -> None:
    data = bytearray(WHOLE)
    data[at] ^= flip
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / ROWS_FILE).write_bytes(data)
        left = read(Path(folder), on_damage=lambda _: None)
        with RunWriter(Path(folder), resume=True) as writer:
            missing = [record for record in RECORDS if record.row.case_key not in writer.statuses]
            for record in missing:
                writer.write(record)
        assert missing
        assert (Path(folder) / ROWS_FILE).read_bytes() == b"".join(r.to_line().encode() for r in [*left, *missing])


def test_an_intact_run_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / ROWS_FILE).write_bytes(WHOLE)
    before = (tmp_path / ROWS_FILE).stat()
    with RunWriter(tmp_path, resume=True) as writer:
        assert writer.repairs == []
    after = (tmp_path / ROWS_FILE).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not (tmp_path / QUARANTINE_FILE).exists()


def test_repaired_files_keep_their_permissions(tmp_path: Path) -> None:
    changed = tmp_path / ROWS_FILE
    changed.write_bytes(LINES[0] + b"x\n")
    changed.chmod(0o640)
    with RunWriter(tmp_path, resume=True) as writer:
        assert len(writer.repairs) == 1
    assert changed.stat().st_mode & 0o777 == 0o640
    assert changed.read_bytes() == LINES[0]


def test_a_later_repair_adds_to_the_quarantine(tmp_path: Path) -> None:
    for text in ("one\n", "two\n"):
        with (tmp_path / ROWS_FILE).open("a") as file:
            file.write(text)
        RunWriter(tmp_path, resume=True).close()
    entries = [json.loads(line) for line in (tmp_path / QUARANTINE_FILE).read_text().splitlines()]
    assert [e["text"] for e in entries] == ["one\n", "two\n"]
    assert (tmp_path / ROWS_FILE).read_bytes() == b""


@pytest.mark.parametrize("data", [WHOLE[:-2], LINES[0] + b"x\n" + LINES[1]])
def test_damage_is_quarantined_before_it_is_removed(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ROWS_FILE).write_bytes(data)
    steps: list[str] = []

    def noted(name: str) -> Callable[..., None]:
        def step(*_: object) -> None:
            steps.append(name)
            assert (tmp_path / ROWS_FILE).read_bytes() == data
            if name != "append":
                raise OSError("power cut")

        return step

    for name in ("append", "replace"):
        monkeypatch.setattr(repairing.durable, name, noted(name))
    with pytest.raises(UsageError, match="power cut"):
        RunWriter(tmp_path, resume=True)
    assert steps == ["append", "replace"]


def test_replacing_keeps_the_old_file_until_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ROWS_FILE).write_bytes(WHOLE)
    monkeypatch.setattr(durable.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("power cut")))
    with pytest.raises(OSError, match="power cut"):
        durable.replace(tmp_path / ROWS_FILE, b"new")
    assert (tmp_path / ROWS_FILE).read_bytes() == WHOLE


# -- newer versions ------------------------------------------------------------------------------------------------


def test_newer_records_stop_the_repair_unchanged(tmp_path: Path) -> None:
    newer = Record(Row(schema=SCHEMA_VERSION + 1)).to_line().encode()
    reads = rf"this version reads \({SCHEMA_VERSION}\)"
    message = rf":5: schema {SCHEMA_VERSION + 1} is newer than {reads}; upgrade efficient-attn$"
    for name, data in ((ROWS_FILE, LINES[0] + b"x\n"), ("rows-2.jsonl", WHOLE + newer + b"torn")):
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=message):
        read(tmp_path)
    with pytest.raises(UsageError, match=message):
        RunWriter(tmp_path, resume=True)
    assert (tmp_path / ROWS_FILE).read_bytes() == LINES[0] + b"x\n"
    assert (tmp_path / "rows-2.jsonl").read_bytes() == WHOLE + newer + b"torn"
    assert not (tmp_path / QUARANTINE_FILE).exists()
