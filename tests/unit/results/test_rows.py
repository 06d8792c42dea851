"""Rows and their lines: a line is read as it was written, or refused."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_lines import body, line

from efficient_attn.results.migrations import MIGRATIONS
from efficient_attn.results.rows import (
    COLUMNS,
    SCHEMA_VERSION,
    NewerSchemaError,
    Record,
    Row,
    finite_or_none,
)

DATA = Path(__file__).parents[2] / "data"

FIXED = (
    "run_id suite case_key variant backend family options device dtype batch heads kv_heads seq_len kv_len "
    "head_dim causal mode status reason threads compiled machine backend_used latency_ms latency_ms_low "
    "latency_ms_high speedup speedup_low speedup_high tokens_per_s flops tflops_per_s roofline_share pairs "
    "pairs_computed peak_memory_bytes output_bytes saved_bytes workspace_bytes state_bytes task inputs layer "
    "relative_error oracle_error cosine_similarity total_variation missed_mass effective_keys metric accuracy "
    "loss steps parameters seed stop_reason cache cuda_graph graph_breaks retained_bytes rounds processes contaminated "
    "energy_j clamped_rows bytes_moved bandwidth_share memory_budget_bytes longest_context part baseline "
    "gate_len read_from fill choices budget kernels kept_between_calls_bytes process_peak_bytes "
    "gpu_ms launches gpu_busy_ms launch_bound idle_watts extra schema "
)

VALUES = {
    "str": st.text(max_size=12),
    "int": st.integers(1, 2**40),
    "float": st.floats(1e-50, 1e50),
    "bool": st.booleans(),
    "Status": st.sampled_from(["ok", "oom", "timeout"]),
}
EXTRA = st.one_of(*VALUES.values(), st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(-1e50, 1e50))
VALUES["dict[str,"] = st.dictionaries(VALUES["str"], EXTRA, max_size=3)


def _cells() -> dict[str, st.SearchStrategy[object]]:
    kinds = {f.name: str(f.type).split(" ") for f in fields(Row) if f.name != "schema"}
    return {name: VALUES[kind[0]] | (st.none() if kind[-1] == "None" else st.nothing()) for name, kind in kinds.items()}


def _order_intervals(cells: dict[str, Any]) -> dict[str, Any]:
    """With each value within its interval, as it is refused otherwise."""
    for names in (("latency_ms_low", "latency_ms", "latency_ms_high"), ("speedup_low", "speedup", "speedup_high")):
        known = [name for name in names if cells.get(name) is not None]
        cells |= dict(zip(known, sorted(cells[name] for name in known), strict=True))
    return cells


rows = st.fixed_dictionaries({}, optional=_cells()).map(lambda cells: Row(**_order_intervals(cells)))
numbers = st.lists(st.floats(-1e50, 1e50), max_size=4)
records = st.builds(
    Record, rows, st.dictionaries(st.text(max_size=5), numbers | st.lists(numbers, max_size=3), max_size=3)
)


def test_columns_are_the_contract() -> None:
    assert list(COLUMNS) == FIXED.split()


@pytest.mark.slow
@given(records)
def test_line_and_back(record: Record) -> None:
    line = record.to_line()
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    assert Record.from_line(line) == record
    assert json.loads(line)["crc"] == zlib.crc32((line.rpartition(',"crc":')[0] + "}").encode())


@given(records, st.data())
def test_an_altered_byte_is_detected(record: Record, data: st.DataObject) -> None:
    line = record.to_line().rstrip("\n")
    at = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.characters(min_codepoint=32, max_codepoint=126).filter(lambda c: c != line[at]))
    with pytest.raises(ValueError, match=r"not a complete record|the record was altered"):
        Record.from_line(line[:at] + other + line[at + 1 :])


@pytest.mark.parametrize("at", [0, 1, -1, -2, -3])
def test_the_ends_of_a_line_are_checked_too(at: int) -> None:
    line = list(Record(Row(case_key="x")).to_line().rstrip("\n"))
    line[at] = "~"
    with pytest.raises(ValueError, match=r"not a complete record|the record was altered"):
        Record.from_line("".join(line))


@given(records, st.data())
def test_a_torn_line_is_detected(record: Record, data: st.DataObject) -> None:
    line = record.to_line().rstrip("\n")
    cut = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises(ValueError, match=r"not a complete record|the record was altered"):
        Record.from_line(line[:cut])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    for record in (Record(Row(latency_ms=bad)), Record(Row(), {"times": [1.0, bad]})):
        with pytest.raises(ValueError, match="JSON compliant"):
            record.to_line()
    with pytest.raises(ValueError, match="JSON compliant"):
        Record(Row(extra={"seconds": bad})).to_line()
    assert finite_or_none(bad) is None


@pytest.mark.parametrize("extra", [None, [1], "text", {"times": [1.0, 2.0]}, {"inner": {"a": 1}}])
def test_values_of_tasks_must_be_plain(extra: Any) -> None:
    with pytest.raises(ValueError, match=r"^extra"):
        Record(Row(extra=extra)).to_line()
    with pytest.raises(ValueError, match=r"^extra"):
        Record.from_line(line(body(extra=extra)))


def test_finite_keeps_numbers() -> None:
    assert finite_or_none(0.0) == 0.0
    assert finite_or_none(-1e300) == -1e300


def test_newer_schemas_are_refused_and_not_counted_as_damage() -> None:
    message = (
        rf"^schema {SCHEMA_VERSION + 1} is newer than this version reads \({SCHEMA_VERSION}\); upgrade efficient-attn$"
    )
    for newer in (Record(Row(schema=SCHEMA_VERSION + 1)).to_line(), line({"schema": SCHEMA_VERSION + 1, "all": "new"})):
        with pytest.raises(NewerSchemaError, match=message):
            Record.from_line(newer)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (body(colour="red"), "unknown column colour"),
        ({name: value for name, value in body().items() if name != "variant"}, "missing column variant"),
        ({name: value for name, value in body().items() if name != "samples"}, "missing column samples"),
        (body(schema=0), "unknown schema 0"),
        (body(schema=None), "no schema"),
        (body(schema="2"), "no schema"),
        (body(schema=True), "no schema"),
        ({"variant": "full"}, "no schema"),
    ],
)
def test_invalid_lines_are_reported(wrong: object, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        Record.from_line(line(wrong))
    assert not isinstance(caught.value, NewerSchemaError)


def test_every_schema_has_a_migration() -> None:
    assert sorted(MIGRATIONS) == list(range(2, SCHEMA_VERSION + 1))


# what each schema added to the one before it
ADDED = {
    2: ("cache", "cuda_graph", "graph_breaks", "retained_bytes", "rounds", "processes", "contaminated", "energy_j"),
    3: ("clamped_rows",),
    4: ("bytes_moved", "bandwidth_share", "memory_budget_bytes", "longest_context"),
    5: ("part", "baseline", "extra"),
    6: ("gate_len", "read_from", "fill"),
    7: ("choices",),
    8: ("budget",),
    9: ("kernels", "kept_between_calls_bytes", "process_peak_bytes"),
    10: ("gpu_ms", "launches", "gpu_busy_ms", "launch_bound", "idle_watts"),
}


def older(schema: int, **changed: object) -> dict[str, Any]:
    """A record of an earlier schema."""
    later = {name for number, names in ADDED.items() if number > schema for name in names}
    return {name: value for name, value in body(schema=schema, **changed).items() if name not in later}


@pytest.mark.parametrize(("mode", "cache"), [("decode", "warm"), (None, None)])
def test_schema_1_becomes_the_present_one(mode: str | None, cache: str | None) -> None:
    record = Record.from_line(line(older(1, mode=mode, variant="full", samples={"latency_ms": [[1.5]]})))
    assert record == Record(Row(mode=mode, variant="full", cache=cache, fill="full"), {"latency_ms": [[1.5]]})
    assert record.row.schema == SCHEMA_VERSION
    assert Record.from_line(record.to_line()) == record


@pytest.mark.parametrize(("schema", "known"), [(2, {"energy_j": 2.5}), (3, {"clamped_rows": 7, "state_bytes": 64})])
def test_later_schemas_become_the_present_one_too(schema: int, known: dict[str, Any]) -> None:
    record = Record.from_line(line(older(schema, variant="full", **known)))
    assert record == Record(Row(variant="full", fill="full", **known))
    assert [getattr(record.row, name) for name in ADDED[4]] == [None] * 4


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("quickstart/length/forward/full/n512#a1", "length"),
        ("sparse/against full/forward/full", "against full"),
        ("alone", None),
        ("", None),
    ],
)
def test_the_part_of_schema_4_is_read_from_the_key(key: str, part: str | None) -> None:
    record = Record.from_line(line(older(4, case_key=key, variant="full")))
    assert record == Record(Row(case_key=key, variant="full", part=part, baseline=None, extra={}, fill="full"))


@pytest.mark.parametrize(("kernels", "column"), [(["a", "b"], "a b"), ([], None), (None, None)])
def test_the_kernels_of_schema_8_are_read_from_the_samples(kernels: list[str] | None, column: str | None) -> None:
    samples = {} if kernels is None else {"kernels": kernels}
    assert Record.from_line(line(older(8, variant="full", samples=samples))).row.kernels == column


@pytest.mark.parametrize(
    ("verdict", "high", "now"),
    [
        ("contradicted: grows more slowly", 1.2, "reproduced: grows more slowly"),
        ("inconclusive", 1.5, "reproduced"),
        ("inconclusive", 1.6, "inconclusive"),  # the suite's tolerance is not in the row
        ("inconclusive: less than 4 octaves", 1.2, "inconclusive: less than 4 octaves"),
        ("contradicted: grows faster", 2.2, "contradicted: grows faster"),
    ],
)
def test_slower_growth_no_longer_contradicts_claims_of_schema_8(verdict: str, high: float, now: str) -> None:
    for quantity in ("time", "memory"):
        columns = {f"{quantity}_verdict": verdict, f"{quantity}_high": high, f"{quantity}_claimed": 1.5}
        extra = Record.from_line(line(older(8, extra=columns))).row.extra
        assert extra == columns | {f"{quantity}_verdict": now}
    kept = body(extra={"time_verdict": verdict, "time_high": high, "time_claimed": 1.5})
    assert Record.from_line(line(kept)).row.extra["time_verdict"] == verdict


def test_an_unknown_column_of_an_older_schema_is_reported_too() -> None:
    with pytest.raises(ValueError, match="unknown column colour"):
        Record.from_line(line(older(1, colour="red")))


@pytest.mark.parametrize("schema", [1, 3, 4])
def test_a_published_run_of_an_older_schema_is_read(schema: int) -> None:
    lines = (DATA / f"rows_schema_{schema}.jsonl").read_text().splitlines()
    old, new = [json.loads(each) for each in lines], [Record.from_line(each) for each in lines]
    assert {each["schema"] for each in old} == {schema}
    assert {each["mode"] for each in old} == {"forward", "forward_backward", "decode", None} | (
        {"prefill"} if schema == 4 else set()
    )
    for before, after in zip(old, new, strict=True):
        assert after.samples == before.pop("samples")
        assert asdict(after.row).items() >= {k: v for k, v in before.items() if k not in ("schema", "crc")}.items()
        assert after.row.part == before["case_key"].split("/")[1]
        assert (after.row.baseline, after.row.extra) == (None, {})
        assert after.row.cache == before.get("cache", None if after.row.mode is None else "warm")


# -- what plug-ins may say -----------------------------------------------------------------------------------------

GARBLED, SHOWN = "red \x1b[31m\nhalf \ud800\x00", "red [31m half "


def test_texts_are_sanitized_when_records_are_created_and_written() -> None:
    record = Record(Row(case_key=GARBLED, reason=GARBLED, extra={GARBLED: GARBLED, "n": 1}))
    assert (record.row.case_key, record.row.reason, record.row.extra) == (SHOWN, SHOWN, {SHOWN: SHOWN, "n": 1})
    record.row.reason = GARBLED  # set later
    assert Record.from_line(record.to_line()).row.reason == SHOWN


@pytest.mark.parametrize("path", sorted(DATA.glob("rows_schema_*.jsonl")), ids=lambda path: path.stem)
def test_texts_of_old_rows_are_sanitized_when_read(path: Path) -> None:
    body = json.loads(path.read_text().splitlines()[0].rpartition(',"crc":')[0] + "}") | {"reason": GARBLED}
    text = json.dumps(body, separators=(",", ":"))
    row = Record.from_line(f'{text[:-1]},"crc":{zlib.crc32(text.encode())}}}\n').row
    assert row.reason == SHOWN


def test_numpys_numbers_are_numbers_and_nothing_else_is() -> None:
    row = Record.from_line(Record(Row(pairs=np.int64(7), flops=np.float32(0.5))).to_line()).row  # pyright: ignore
    assert (row.pairs, row.flops) == (7, 0.5)
    assert type(row.pairs) is int
    for wrong, error in ((np.float32("nan"), ValueError), (np.ones(2), TypeError), (object(), TypeError)):
        with pytest.raises(error):
            Record(Row(pairs=wrong)).to_line()  # pyright: ignore


def test_a_failure_keeps_the_case_and_nothing_that_was_measured() -> None:
    row = Row(case_key="a/b", variant="full", batch=2, seq_len=8, causal=True, latency_ms=-1.0, extra={"x": 1})
    failure = Record(row, {"latency_ms": [[-1.0]]}).as_failure("why")
    changed = {"latency_ms": None, "extra": {}, "status": "error", "reason": "why"}
    assert failure == Record(Row(**asdict(row) | changed))
    assert Record.from_line(failure.to_line()) == failure
