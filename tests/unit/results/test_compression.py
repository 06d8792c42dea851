"""Compressed rows: lines are unchanged, are read as before, and are read only."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from efficient_attn.errors import UsageError
from efficient_attn.results.checkpoints import CHECKPOINT_FOLDER
from efficient_attn.results.compression import compress_rows
from efficient_attn.results.exchange import read_run
from efficient_attn.results.gathered import load
from efficient_attn.results.rows import Record, Row
from efficient_attn.results.shards import DamagedRecord, list_shards
from efficient_attn.results.store import RunWriter, read


def write(folder: Path, *keys: str, shard: str = "rows.jsonl", resume: bool = False) -> Path:
    with RunWriter(folder, shard=shard, resume=resume) as writer:
        writer.write_session({"run_id": "one", "environment": {"machine": "here"}})
        for key in keys:
            writer.write(Record(Row(case_key=key, variant="full"), {"latency_ms": [[1.0, 2.0]]}))
    return folder


def test_compressed_rows_read_as_before(tmp_path: Path) -> None:
    run = write(tmp_path, "a", "b")
    write(tmp_path, "c", shard="rows-2.jsonl", resume=True)
    lines = {path.name: path.read_bytes() for path in list_shards(run)}
    records, frame = read(run), load(run)
    packed = compress_rows(run)
    assert [path.name for path in packed] == ["rows.jsonl.gz", "rows-2.jsonl.gz"]
    assert list_shards(run) == packed
    assert {path.name.removesuffix(".gz"): gzip.decompress(path.read_bytes()) for path in packed} == lines
    assert read(run) == records
    assert load(run).equals(frame)
    assert load(packed[0]).case_key.tolist() == ["a", "b"]
    assert read_run(run).environments == read_run(packed[0]).environments == [{"machine": "here"}]


def test_a_published_run_holds_no_checkpoints(tmp_path: Path) -> None:
    run = write(tmp_path, "a", "b")
    (run / CHECKPOINT_FOLDER).mkdir()
    (run / CHECKPOINT_FOLDER / "0123456789ab.pt").write_text("of a case that failed")
    compress_rows(run)
    assert not (run / CHECKPOINT_FOLDER).exists()


def test_compression_is_idempotent_and_deterministic(tmp_path: Path) -> None:
    first, second = (compress_rows(write(tmp_path / name, "a", "b"))[0] for name in ("one", "two"))
    before = first.read_bytes()
    assert before == second.read_bytes()
    assert compress_rows(first.parent) == [first]
    assert first.read_bytes() == before


def test_an_interrupted_compression_loses_nothing(tmp_path: Path) -> None:
    run = write(tmp_path, "a", "b")
    rows = (run / "rows.jsonl").read_bytes()
    compress_rows(run)
    (run / "rows.jsonl").write_bytes(rows)  # as if it had been stopped before the plain file went
    assert [record.row.case_key for record in read(run)] == ["a", "b"]
    compress_rows(run)
    assert not (run / "rows.jsonl").exists()
    (run / "rows.jsonl").write_bytes(rows.splitlines(keepends=True)[0])
    with pytest.raises(UsageError, match=r"rows.jsonl.gz: contains other rows than rows.jsonl; keep one of the two"):
        compress_rows(run)
    assert (run / "rows.jsonl").exists()


def test_resuming_a_compressed_run_is_refused_until_it_is_unpacked(tmp_path: Path) -> None:
    (packed,) = compress_rows(write(tmp_path / "run", "a"))
    before = packed.read_bytes()
    with pytest.raises(UsageError, match=r"run: published, .* compressed .*; choose another --out, or unpack"):
        RunWriter(tmp_path / "run", resume=True)
    assert packed.read_bytes() == before
    packed.with_suffix("").write_bytes(gzip.decompress(before))
    packed.unlink()
    write(tmp_path / "run", "b", resume=True)
    assert [record.row.case_key for record in read(tmp_path / "run")] == ["a", "b"]


def test_a_locked_or_damaged_run_is_not_compressed(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "busy"), pytest.raises(UsageError, match="in use by process"):
        compress_rows(tmp_path / "busy")
    run = write(tmp_path / "torn", "a", "b")
    torn = (run / "rows.jsonl").read_bytes()[:-5]
    (run / "rows.jsonl").write_bytes(torn)
    with pytest.raises(UsageError, match=r"rows.jsonl:2: .*; repair the run first"):
        compress_rows(run)
    assert (run / "rows.jsonl").read_bytes() == torn
    assert list_shards(run) == [run / "rows.jsonl"]


@pytest.mark.parametrize("damage", ["cut", "changed", "no gzip"])
def test_a_damaged_archive_is_reported_and_read_partly(damage: str, tmp_path: Path) -> None:
    (packed,) = compress_rows(write(tmp_path, *map(str, range(200))))
    data = packed.read_bytes()
    middle = len(data) // 2
    changed = data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]
    packed.write_bytes({"cut": data[:middle], "changed": changed, "no gzip": b"rows"}[damage])
    with pytest.warns(DamagedRecord, match=r"rows.jsonl.gz:\d+: "):
        found = read(tmp_path)
    assert len(found) < 200
    numbers = [int(record.row.case_key) for record in found]
    assert numbers == sorted(set(numbers))  # the remaining rows are in order and distinct
    assert damage == "no gzip" or numbers[0] == 0
