"""Rows and their lines: what was written is what is read, or it is refused."""

from __future__ import annotations

import json
import zlib
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.results.rows import COLUMNS, SCHEMA, Record, Row, finite

FIXED = (
    "run_id suite case_key variant backend family options device dtype batch heads kv_heads seq_len kv_len "
    "head_dim causal mode status reason threads compiled machine backend_used latency_ms latency_ms_low "
    "latency_ms_high speedup speedup_low speedup_high tokens_per_s flops tflops_per_s roofline_share pairs "
    "pairs_computed peak_memory_bytes output_bytes saved_bytes workspace_bytes state_bytes task inputs layer "
    "relative_error oracle_error cosine_similarity total_variation missed_mass effective_keys metric accuracy "
    "loss steps parameters seed stop_reason schema "
)

VALUES = {
    "str": st.text(max_size=12),
    "int": st.integers(-(2**40), 2**40),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "Status": st.sampled_from(["ok", "oom", "timeout"]),
}


def _cells() -> dict[str, st.SearchStrategy[object]]:
    kinds = {f.name: str(f.type).split(" ") for f in fields(Row) if f.name != "schema"}
    return {name: VALUES[kind[0]] | (st.none() if "None" in kind else st.nothing()) for name, kind in kinds.items()}


rows = st.fixed_dictionaries({}, optional=_cells()).map(lambda cells: Row(**cells))  # pyright: ignore
numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4)
records = st.builds(
    Record, rows, st.dictionaries(st.text(max_size=5), numbers | st.lists(numbers, max_size=3), max_size=3)
)


def test_columns_are_the_contract() -> None:
    assert list(COLUMNS) == FIXED.split()


@given(records)
def test_line_and_back(record: Record) -> None:
    line = record.to_line()
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    assert Record.from_line(line) == record
    assert json.loads(line)["crc"] == zlib.crc32((line.rpartition(',"crc":')[0] + "}").encode())


@given(records, st.data())
def test_an_altered_byte_is_seen(record: Record, data: st.DataObject) -> None:
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
def test_a_torn_line_is_seen(record: Record, data: st.DataObject) -> None:
    line = record.to_line().rstrip("\n")
    cut = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises(ValueError, match=r"not a complete record|the record was altered"):
        Record.from_line(line[:cut])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_not_written(bad: float) -> None:
    for record in (Record(Row(latency_ms=bad)), Record(Row(), {"times": [1.0, bad]})):
        with pytest.raises(ValueError, match="JSON compliant"):
            record.to_line()
    assert finite(bad) is None


def test_finite_keeps_numbers() -> None:
    assert finite(0.0) == 0.0
    assert finite(-1e300) == -1e300


def test_newer_schemas_are_refused() -> None:
    line = Record(Row(schema=SCHEMA + 1)).to_line()
    with pytest.raises(ValueError, match=rf"schema {SCHEMA + 1} is newer than this version reads \({SCHEMA}\)"):
        Record.from_line(line)
