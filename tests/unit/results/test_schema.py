"""The schema of records and of run.json: what is refused, at reading and at writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from row_lines import body, line

from efficient_attn.errors import UsageError
from efficient_attn.results.rows import COLUMN_TYPES, COLUMNS, MAX_LINE_BYTES, Record, Row
from efficient_attn.results.schema import MAX_RUN_FILE_BYTES, parse_json
from efficient_attn.results.shards import Damage, scan_lines
from efficient_attn.results.store import read_sessions

WRONG: dict[str, list[Any]] = {
    "str": [3, True, [], {}, "x" * 2**17],
    "int": ["3", 2.0, True, -(2**70), 2**63, [], {}],
    "float": ["0.5", True, 1e308, -1e308, 1e90, [], {}],
    "bool": [0, 1, "true", []],
    "Status": ["fine", None, 3, ""],
}


@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in ("extra", "schema")])
def test_a_value_of_another_type_or_beyond_its_range_is_refused(name: str) -> None:
    for value in WRONG[COLUMN_TYPES[name]]:
        with pytest.raises(ValueError, match=rf"^{name}: "):
            Record.from_line(line(body(**{name: value})))


@pytest.mark.parametrize("name", ["case_key", "variant"])
def test_a_record_names_its_case(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: "):
        Record.from_line(line(body(**{name: None})))


@pytest.mark.parametrize(
    "name", ["batch", "heads", "kv_heads", "seq_len", "head_dim", "threads", "latency_ms", "speedup"]
)
def test_sizes_and_times_are_above_zero(name: str) -> None:
    for value in (0, -1, *((1e-320, 1e-90) if name in ("latency_ms", "speedup") else ())):
        with pytest.raises(ValueError, match=rf"^{name}: "):
            Record.from_line(line(body(**{name: value})))


@pytest.mark.parametrize("name", ["latency_ms", "speedup"])
def test_a_value_is_within_its_interval(name: str) -> None:
    def make(low: float | None, value: float | None, high: float | None) -> str:
        return line(body(**{f"{name}_low": low, name: value, f"{name}_high": high}))

    assert getattr(Record.from_line(make(1.0, 1.0, 1.0)).row, name) == 1.0
    assert Record.from_line(make(2.0, 1.0, None)).row.status == "ok"
    for low, value, high in ((1.1, 1.0, 2.0), (0.5, 1.0, 0.9), (2.0, 1.0, 0.5)):
        with pytest.raises(ValueError, match=rf"^{name}: 1 is not within its interval"):
            Record.from_line(make(low, value, high))


SAMPLES = {
    "latency_ms": [3, ["x"], [3.0], [[]], [[0.0]], [[-1.0]], [[None]], [[True]], {"0": [1.0]}],
    "process": ["x", [0.5], [-1], 3],
    "summary": [[1.0, 2.0], [1.0, 2.0, "x"], [1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 2]],
    "steps": [["1"], 3, [0.5]],
    "alignment": [[1.0], [["x"]], "x"],
    "calls": [0, "1", 1.5],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in SAMPLES.items() for value in values])
def test_samples_that_readers_use_have_their_form(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^samples\.{name}"):
        Record.from_line(line(body(samples={name: value})))


def test_rounds_and_processes_are_as_many() -> None:
    with pytest.raises(ValueError, match=r"^samples: 2 rounds in latency_ms, 1 in process"):
        Record.from_line(line(body(samples={"latency_ms": [[1.0], [2.0]], "process": [0]})))


def test_other_samples_are_free() -> None:
    samples = {"mine": [{"a": [1, "x", None]}], "latency_ms": [[1.0, 2.0]], "process": None}
    assert Record.from_line(line(body(samples=samples))).samples == samples


@pytest.mark.parametrize(
    ("task", "name", "value"),
    [
        ("hybrid", "step", "x"),
        ("hybrid", "rule", 3),
        ("swap", "divergence", "high"),
        ("complexity", "time_verdict", 1.0),
        ("mqar", "train.score", "good"),
        ("mine", "train.note", 3),
    ],
)
def test_columns_of_built_in_tasks_are_numbers_or_texts(task: str, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^extra\.{name}: not a (number|text)"):
        Record.from_line(line(body(task=task, extra={name: value})))
    free = Record.from_line(line(body(task="mine", extra={name.replace("train.", "my."): value})))
    assert list(free.row.extra.values()) == [value]


def test_what_cannot_be_read_is_not_written() -> None:
    for row in (Row(batch=0), Row(latency_ms=-1.0), Row(status="fine"), Row(heads="4")):  # pyright: ignore
        with pytest.raises(ValueError, match=r"^(batch|latency_ms|status|heads): "):
            Record(row).to_line()
    with pytest.raises(ValueError, match="store fewer samples"):
        Record(Row(), {"mine": ["x" * 2**20] * 20}).to_line()


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**4, "NaN", "[Infinity]", "1" * 5000, "", "{"])
def test_json_beyond_the_limits_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (the parser's messages)
        parse_json(text)


def test_deeply_nested_text_with_half_a_character_is_refused() -> None:
    with pytest.raises(ValueError, match="nested"):
        parse_json('["\\ud800",' + "[" * 10**5)


def test_a_line_without_an_end_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = Record(Row(case_key="a", variant="full")).to_line().encode()
    path.write_bytes(good + b"x" * (2 * MAX_LINE_BYTES + 5) + b"\n" + good)
    found = list(scan_lines(path))
    assert b"".join(data for data, _ in found) == path.read_bytes()
    damages = [content for _, content in found if isinstance(content, Damage)]
    assert [damage.line for damage in damages] == [2, 2, 2]
    assert damages[0].reason == f"more than {MAX_LINE_BYTES} bytes"
    assert [type(content) for _, content in (found[0], found[-1])] == [Record, Record]


SESSIONS: dict[str, tuple[Any, str]] = {
    "no table": ([], "should be a valid dictionary"),
    "no sessions": ({}, "sessions: Field required"),
    "a number": ({"sessions": 3}, "sessions: should be a valid list"),
    "a session that is a text": ({"sessions": ["x"]}, "sessions.0: should be a valid dictionary"),
    "a suite that is a text": ({"sessions": [{"suite": "x"}]}, "sessions.0.suite: should be a valid dictionary"),
    "a title": ({"sessions": [{"suite": {"title": 3}}]}, "sessions.0.suite.title: should be a valid string"),
    "a machine": ({"sessions": [{"environment": {"machine": []}}]}, "sessions.0.environment.machine: should be"),
    "a revision": ({"sessions": [{"environment": {"git": {"revision": 1}}}]}, "git.revision: should be a valid string"),
    "a command": ({"sessions": [{"command": ["a", 3]}]}, "sessions.0.command.1: should be a valid string"),
    "a protocol": ({"sessions": [{"protocol": "4"}]}, "sessions.0.protocol: should be a valid integer"),
}


@pytest.mark.parametrize("kind", SESSIONS)
def test_a_damaged_run_file_is_reported_in_one_line(kind: str, tmp_path: Path) -> None:
    content, message = SESSIONS[kind]
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(UsageError) as caught:
        read_sessions(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'run.json'}: damaged: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_file_of_a_later_version_may_contain_more(tmp_path: Path) -> None:
    sessions = [{"run_id": "a", "later": {"x": [1]}, "environment": {"machine": "m", "later": 3}}]
    (tmp_path / "run.json").write_text(json.dumps({"sessions": sessions, "later": 1}))
    assert read_sessions(tmp_path) == sessions


def test_a_huge_run_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "run.json").open("wb") as file:
        file.truncate(MAX_RUN_FILE_BYTES + 1)
    with pytest.raises(UsageError, match=f"more than {MAX_RUN_FILE_BYTES}"):
        read_sessions(tmp_path)
