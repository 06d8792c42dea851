"""Fidelity as a task: which cells it plans, and what a worker makes of a case."""

from __future__ import annotations

from collections.abc import Iterator

import planted
import pytest

from efficient_attn.bench.cell import measure
from efficient_attn.bench.conditions import Conditions
from efficient_attn.engines.local import Local
from efficient_attn.results.rows import Record

TEXT = planted.TINY.replace('"forward"', '"fidelity"')


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with planted.undone():
        yield


def judged(variant: str) -> Record:
    """The record of a mechanism on the first layer."""
    case = planted.plan(TEXT, variants=[variant])[0]
    (record,) = measure(case.cell, [case], Conditions(engine=Local("inline")))
    return record


def test_exact_attention_has_no_error_and_nothing_is_timed() -> None:
    record = judged("full")
    assert (record.row.status, record.row.task, record.row.mode, record.row.latency_ms) == (
        "ok",
        "fidelity",
        None,
        None,
    )
    assert (record.row.relative_error or 1) < 1e-5
    assert record.samples["mean_value_error"] > 0.1
    assert record.row.inputs.startswith("minilm@")  # type: ignore[union-attr]


def test_a_wrong_mechanism_gets_no_numbers() -> None:
    row = judged(planted.plant("zz_off", lambda out: out * 1.1)).row
    assert (row.status, row.relative_error) == ("invalid", None)
    assert "not the oracle's" in (row.reason or "")
