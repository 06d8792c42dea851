"""Fidelity as a task: which cells it plans, and what a worker makes of a case."""

from __future__ import annotations

from collections.abc import Iterator

import planted
import pytest
from measured import measure_cases
from planted import SEVERAL, values_of

from efficient_attn.errors import UsageError
from efficient_attn.results.rows import Record


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with planted.undone():
        yield


def test_fidelity_has_a_case_for_every_layer_and_takes_sizes_from_the_file() -> None:
    cases = planted.plan(
        SEVERAL.replace('"forward", "peak_memory"', '"fidelity"').replace(", causal", ", batch = [5], causal")
    )
    assert len(cases) == 3 * 2 * 4
    assert values_of(cases, "layer") == [0, 2, 5]
    assert {
        (c.cell.place.seq_len, c.cell.place.heads, c.kv_heads, c.cell.place.head_dim, c.cell.place.batch) for c in cases
    } == {(384, 12, 1 if c.family == "shared_kv" else 12, 32, 1) for c in cases}
    assert {c.cell.place.inputs.split("@")[0] for c in cases} == {"minilm"}
    assert {c.cell.place.mode for c in cases} == {None}


def test_activations_for_a_suite_without_fidelity_are_refused() -> None:
    with pytest.raises(UsageError, match="--set activations: the suite trial measures nothing that takes this key"):
        planted.plan(SEVERAL, keys={"activations": "mine.npz"})


def test_missing_activations_are_refused_while_planning() -> None:
    with pytest.raises(UsageError, match=r"gone\.npz: no such file"):
        planted.plan(SEVERAL.replace('"forward"', '"fidelity"'), keys={"activations": "gone.npz"})


def _measure_fidelity(*variants: str) -> list[Record]:
    cases = planted.plan(planted.TINY.replace('"forward"', '"fidelity"'), variants=variants)
    return measure_cases([c for c in cases if c.cell.place.layer == 2])


def test_fidelity_rows_hold_errors_and_no_times() -> None:
    full, window = _measure_fidelity("full", "sliding_window:window=8")
    assert (full.row.status, full.row.task, full.row.layer, full.row.mode) == ("ok", "fidelity", 2, None)
    assert (full.row.inputs or "").startswith("minilm@")
    assert (full.row.relative_error or 1) < 1e-5
    assert (window.row.relative_error or 0) > 0.1
    assert (window.row.missed_mass or 0) > 0.1
    assert full.row.effective_keys == pytest.approx(window.row.effective_keys)
    assert full.row.latency_ms is None
    assert 0.1 < full.samples["mean_value_error"] == window.samples["mean_value_error"]


def test_fidelity_is_gated_too() -> None:
    wrong, failing, full = _measure_fidelity(
        planted.plant("zz_wrong", lambda out: out * 1.1),
        planted.plant("zz_failing", planted.raising(RuntimeError("boom"))),
        "full",
    )
    assert wrong.row.status == "invalid"
    assert wrong.row.relative_error is None
    assert (failing.row.status, full.row.status) == ("error", "ok")
