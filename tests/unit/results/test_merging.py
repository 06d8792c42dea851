"""Merged runs: one record a case, the same for every order of the runs, and nothing but copies of lines."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.errors import UsageError
from efficient_attn.results import merging
from efficient_attn.results.repair import QUARANTINE_FILE
from efficient_attn.results.rows import SCHEMA_VERSION, Record, Row, Status
from efficient_attn.results.shards import ROWS_FILE
from efficient_attn.results.store import ORDER_KEY, RUN_FILE, read, read_sessions

MACHINE = {"machine": "A#1", "torch": "2.13.0", "identity": "1"}


def _record(run_id: str, variant: str, length: int, status: Status = "ok", ms: float = 1.0) -> Record:
    key = f"s/speed/forward/{variant}/n{length}-b1-h4-kv4-d64/float32#{length:012x}"
    is_ok = status == "ok"
    return Record(Row(case_key=key, run_id=run_id, variant=variant, status=status, latency_ms=ms if is_ok else None))


def _session(run_id: str, started: str, **known: Any) -> dict[str, Any]:
    entry = {"run_id": run_id, "started": started, "finished": started, "suite": {"name": "s"}, "environment": MACHINE}
    return entry | known


def _write(folder: Path, sessions: Iterable[dict[str, Any]], records: Iterable[Record], extra: bytes = b"") -> Path:
    folder.mkdir(parents=True)
    (folder / ROWS_FILE).write_bytes("".join(record.to_line() for record in records).encode() + extra)
    (folder / RUN_FILE).write_text(json.dumps({"sessions": list(sessions)}))
    return folder


def _list_kept(merged: merging.MergedRun) -> list[tuple[str, str]]:
    """Session and case, without the sizes."""
    return [(line.run_id, "-".join(line.case.split("/")[3:5])[:-14]) for line in merged.lines]


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """The second has results of the group at 64 that the first has not, but failed at 128."""
    first = [_record("a", "full", 64), _record("a", "linear", 64, "timeout"), _record("a", "full", 128)]
    second = [_record("b", "full", 64, ms=2.0), _record("b", "linear", 64, ms=3.0), _record("b", "full", 128, "oom")]
    return [
        _write(tmp_path / "first", [_session("a", "2026-01-02")], first),
        _write(tmp_path / "second", [_session("b", "2026-01-01")], second),
    ]


def test_a_group_comes_from_the_session_with_most_results(two: list[Path]) -> None:
    merged = merging.merge(two)
    assert _list_kept(merged) == [("b", "full-n64"), ("b", "linear-n64"), ("a", "full-n128")]
    assert [str(conflict).rpartition(": ")[2] for conflict in merged.conflicts] == [
        "kept that of a, left out b",
        "kept that of b, left out a",
        "kept that of b, left out a",
    ]


def test_of_equal_sessions_the_latest_counts(tmp_path: Path) -> None:
    runs = [
        _write(tmp_path / name, [_session(name, started)], [_record(name, "full", 64), _record(name, "linear", 64)])
        for name, started in (("a", "2026-01-01"), ("c", "2026-01-03"), ("b", "2026-01-02"))
    ]
    assert {run_id for run_id, _ in _list_kept(merging.merge(runs))} == {"c"}


def test_a_case_that_only_a_smaller_session_has_is_kept(tmp_path: Path) -> None:
    larger = [_record("a", "full", 64), _record("a", "linear", 64), _record("a", "mqa", 64, "interrupted")]
    smaller = [_record("b", "mqa", 64), _record("b", "performer", 64, "crashed")]
    runs = [
        _write(tmp_path / "a", [_session("a", "2026-01-02")], larger),
        _write(tmp_path / "b", [_session("b", "2026-01-01")], smaller),
    ]
    kept = {case: run_id for run_id, case in _list_kept(merging.merge(runs))}
    assert kept == {"full-n64": "a", "linear-n64": "a", "mqa-n64": "b", "performer-n64": "b"}


def test_lines_are_copied_and_a_second_merge_changes_nothing(two: list[Path], tmp_path: Path) -> None:
    before = {path: path.read_bytes() for run in two for path in run.iterdir()}
    out = tmp_path / "out"
    assert merging.write(merging.merge(two), out)
    lines = {line for run in two for line in (run / ROWS_FILE).read_bytes().splitlines()}
    assert lines.issuperset((out / ROWS_FILE).read_bytes().splitlines())
    written = {path: path.read_bytes() for path in out.iterdir()}
    (out / "report.html").write_text("a page")  # which does not matter
    for runs in ([*reversed(two)], [*two, out], [out]):
        assert not merging.write(merging.merge(runs), out)
    assert {path: path.read_bytes() for path in written} == written
    assert {path: path.read_bytes() for path in before} == before


def test_records_are_read_in_the_order_of_the_first_session(two: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    merging.write(merging.merge(two), out)
    assert [record.row.variant for record in read(out)] == ["full", "linear", "full"]
    assert [session["run_id"] for session in read_sessions(out)] == ["b", "a"]


def test_parts_of_a_plan_are_read_in_its_order(tmp_path: Path) -> None:
    order = [f"{length:012x}" for length in (64, 128, 256)]
    parts = [
        _write(tmp_path / str(n), [_session(str(n), "2026-01-01", plan="p", order=order)], [_record(str(n), "full", n)])
        for n in (256, 64, 128)
    ]
    merging.write(merging.merge(parts), tmp_path / "out")
    assert [session[ORDER_KEY] for session in read_sessions(tmp_path / "out")] == [order] * 3
    assert [record.row.run_id for record in read(tmp_path / "out")] == ["64", "128", "256"]


def test_damaged_lines_are_quarantined_and_stay_so(two: list[Path], tmp_path: Path) -> None:
    with (two[0] / ROWS_FILE).open("ab") as file:
        file.write(b"junk\n")
    out, again = tmp_path / "out", tmp_path / "again"
    merging.write(merging.merge(two), out)
    (entry,) = [json.loads(line) for line in (out / QUARANTINE_FILE).read_text().splitlines()]
    assert (entry["line"], entry["text"]) == (4, "junk\n")
    merging.write(merging.merge([out, two[1]]), again)
    assert (again / QUARANTINE_FILE).read_text() == (out / QUARANTINE_FILE).read_text()


def test_records_of_a_newer_version_are_refused(two: list[Path], tmp_path: Path) -> None:
    newer = Record(Row(case_key="x#1", schema=SCHEMA_VERSION + 1), {})
    (two[1] / ROWS_FILE).write_text(newer.to_line())
    with pytest.raises(UsageError, match=r"rows.jsonl:1: .*newer"):
        merging.merge(two)


@pytest.mark.parametrize(
    ("known", "name"),
    [
        ({"suite": {"name": "other"}}, "suite"),
        ({"plan": "1234567890ab"}, "plan"),
        ({"environment": MACHINE | {"machine": "B#2"}}, "machine"),
        ({"environment": MACHINE | {"torch": "2.9.0"}}, "torch"),
        ({"environment": MACHINE | {"gpu_libraries": "triton 3.7.1, fla-core 0.6.0"}}, "gpu libraries"),
    ],
)
def test_unlike_runs_are_refused(known: dict[str, Any], name: str, tmp_path: Path) -> None:
    runs = [
        _write(tmp_path / "a", [_session("a", "2026-01-01")], [_record("a", "full", 64)]),
        _write(tmp_path / "b", [_session("b", "2026-01-02", **known)], [_record("b", "full", 128)]),
    ]
    for ordered in (runs, runs[::-1]):
        with pytest.raises(UsageError, match=f"^merge: the {name} of a is .*, that of b is "):
            merging.merge(ordered)


def test_a_session_without_description_is_refused(two: list[Path]) -> None:
    (two[1] / RUN_FILE).unlink()
    for runs in (two, two[::-1]):
        with pytest.raises(UsageError, match=r"^merge: no run.json has session b, so that its machine is unknown$"):
            merging.merge(runs)


@pytest.mark.parametrize("name", ["notes.txt", ROWS_FILE, RUN_FILE, "rows-2.jsonl"])
def test_a_folder_with_anything_else_is_refused(name: str, two: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        merging.write(merging.merge(two), out)
    assert [path.name for path in out.iterdir() if not path.name.startswith("lock")] == [name]
    assert (out / name).read_text() == "mine"


def test_an_interrupted_merge_is_completed(two: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    merging.write(merging.merge(two), out)
    before = (out / RUN_FILE).read_bytes()
    (out / RUN_FILE).unlink()
    assert merging.write(merging.merge(two), out)
    assert (out / RUN_FILE).read_bytes() == before


def test_copies_of_a_session_that_differ_are_reported(tmp_path: Path) -> None:
    session = _session("a", "2026-01-01")
    runs = [_write(tmp_path / str(ms), [session], [_record("a", "full", 64, ms=ms)]) for ms in (1.0, 2.0)]
    both = [merging.merge(runs), merging.merge(runs[::-1])]
    assert both[0].make_files() == both[1].make_files()
    assert [conflict.chosen for conflict in both[0].conflicts] == ["a"]


STATUSES: list[Status] = ["ok", "ok", "timeout", "interrupted", "skipped"]


def _draw_runs(rng: random.Random, folder: Path) -> Iterator[Path]:
    for name in "abcd":
        records = [
            _record(name, variant, length, rng.choice(STATUSES), ms=rng.uniform(0.1, 9))
            for length in (64, 128)
            for variant in ("full", "linear", "mqa")
            for _ in range(rng.choice([0, 1, 1, 2]))
        ]
        rng.shuffle(records)
        yield _write(folder / name, [_session(name, f"2026-01-0{rng.randint(1, 2)}")], records)


@given(st.integers(0, 10**6))
def test_the_order_of_the_runs_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = list(_draw_runs(rng, folder))
        records = [record for run in runs for record in read(run)]
        first, *others = [merging.merge(order) for order in itertools.islice(itertools.permutations(runs), 0, 24, 5)]
        assert all(other.make_files() == first.make_files() for other in others)
        cases = [line.case for line in first.lines]
        assert sorted(cases) == sorted({record.row.case_key.partition("#")[0] for record in records})
        for line in first.lines:
            of_case = [r.row.status for r in records if r.row.case_key.startswith(f"{line.case}#")]
            assert line.is_measured or not {"ok", "timeout"}.intersection(of_case), "a result was left out for none"
        merging.write(first, folder / "out")
        again = merging.merge([folder / "out", *rng.sample(runs, 2)])
        assert again.make_files() == first.make_files()
