"""Fidelity as a task: which cells it plans, and what a worker makes of a case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_suites
import torch
from inline_measurement import measure_cases
from tiny_suites import SEVERAL, values_of

import efficient_attn as ea
from efficient_attn.bench.measuring import verification
from efficient_attn.bench.planning.cost_estimate import CALLS, estimate_case
from efficient_attn.errors import UsageError
from efficient_attn.instruments.roofline import Roofline
from efficient_attn.results.rows import Record
from efficient_attn.tasks.fidelity import activations, fidelity_task
from efficient_attn.tasks.fidelity.exact import ExactReference


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


def test_fidelity_has_a_case_for_every_layer_and_takes_sizes_from_the_file() -> None:
    cases = tiny_suites.plan(
        SEVERAL.replace('"forward", "peak_memory"', '"fidelity"').replace(", causal", ", batch = [5], causal")
    )
    assert len(cases) == 3 * 2 * 4
    assert values_of(cases, "layer") == [0, 2, 5]
    assert {
        (c.group.config.seq_len, c.group.config.heads, c.kv_heads, c.group.config.head_dim, c.group.config.batch)
        for c in cases
    } == {(384, 12, 1 if c.family == "shared_kv" else 12, 32, 1) for c in cases}
    assert {c.group.config.inputs.split("@")[0] for c in cases} == {"minilm"}
    assert {c.group.config.mode for c in cases} == {None}


def test_activations_for_a_suite_without_fidelity_are_refused() -> None:
    with pytest.raises(UsageError, match="--set activations: the suite trial has no task with this key"):
        tiny_suites.plan(SEVERAL, keys={"activations": "mine.npz"})


def test_missing_activations_are_refused_while_planning() -> None:
    with pytest.raises(UsageError, match=r"gone\.npz: no such file"):
        tiny_suites.plan(SEVERAL.replace('"forward"', '"fidelity"'), keys={"activations": "gone.npz"})


def _measure_fidelity(*variants: str) -> list[Record]:
    cases = tiny_suites.plan(tiny_suites.TINY.replace('"forward"', '"fidelity"'), variants=variants)
    return measure_cases([c for c in cases if c.group.config.layer == 2])


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


def test_fidelity_is_verified_too() -> None:
    wrong, failing, full = _measure_fidelity(
        tiny_suites.register_modified("zz_wrong", lambda out: out * 1.1),
        tiny_suites.register_modified("zz_failing", tiny_suites.raising(RuntimeError("boom"))),
        "full",
    )
    assert wrong.row.status == "invalid"
    assert wrong.row.relative_error is None
    assert (failing.row.status, full.row.status) == ("error", "ok")


# -- causal, grouped, long -------------------------------------------------------------------------------------------


@pytest.fixture
def captured(tmp_path: Path) -> str:
    """A layer of 4 heads that share 2 keys, 40 positions."""
    generator = np.random.default_rng(1)
    sizes = {"q": (1, 4, 40, 8), "k": (1, 2, 40, 8), "v": (1, 2, 40, 8)}
    arrays: dict[str, Any] = {n: generator.standard_normal(size).astype("float16") for n, size in sizes.items()}
    np.savez(tmp_path / "mine.npz", layers=[7], **arrays)
    return str(tmp_path / "mine.npz")


def _measure(file: str, *variants: str, causal: bool = True) -> list[Record]:
    text = tiny_suites.TINY.replace('"forward"', '"fidelity"')
    return measure_cases(
        tiny_suites.plan(text, variants=variants, axes={"causal": [causal]}, keys={"activations": file})
    )


def test_causal_and_grouped_activations(captured: str) -> None:
    records = _measure(captured, "full", "sliding_window:window=8", "linear", "strided:stride=4", "performer")
    assert [r.row.status for r in records] == ["ok"] * 5
    for record in records:
        row = record.row
        assert (row.causal, row.heads, row.kv_heads, row.seq_len, row.layer) == (True, 4, 2, 40, 7)
        assert (row.gate_len, row.extra["weight_rows"]) == (40, 40)
        assert row.extra.keys() == fidelity_task.FIDELITY.columns.keys()
    full, window = (r.row.extra for r in records[:2])
    assert full["gradient_cosine"] == pytest.approx(1)
    assert full["own_sink_mass"] == pytest.approx(full["sink_mass"], rel=1e-5) == pytest.approx(window["sink_mass"])
    assert float(window["own_sink_mass"] or 0) < float(full["sink_mass"] or 0)


def test_exact_attention_is_worked_out_once_for_a_group(captured: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fidelity_task._compute_reference.cache_clear()
    calls, of = [], ExactReference.compute
    monkeypatch.setattr(ExactReference, "compute", lambda *given: calls.append(given) or of(*given))
    _measure(captured, "full", "linear", "sliding_window:window=8")
    assert len(calls) == 1
    _measure(captured, "full", causal=False)
    assert len(calls) == 2


def test_a_mechanism_without_a_gradient_says_so(captured: str) -> None:
    no_gradient = tiny_suites.register_modified("zz_fixed", traits=ea.Traits(decode=False, exact=True, gradient=False))
    (record,) = _measure(captured, no_gradient)
    assert (record.row.status, record.row.extra["gradient_cosine"]) == ("ok", None)
    assert record.row.reason == "no gradient_cosine: the mechanism has no gradient"


def _wrong_from(row: int) -> tiny_suites.Change:
    def twist(out: torch.Tensor) -> torch.Tensor:
        return torch.cat([out[:, :, :row], out[:, :, row:] * 1.1], 2)

    return twist


def test_some_rows_are_proved_where_all_are_too_many(captured: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MAX_WHOLE_PAIRS", 4 * 20**2)
    full, late = _measure(captured, "full", tiny_suites.register_modified("zz_late", _wrong_from(38)))
    assert (full.row.status, full.row.gate_len) == ("ok", 40)
    assert (late.row.status, late.row.relative_error) == ("invalid", None)


def test_the_first_positions_are_proved_where_rows_cannot_be_taken_alone(
    captured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "MAX_WHOLE_PAIRS", 4 * 20**2)
    mixing = ea.Traits(decode=False, exact=True, mixes_queries=True)
    whole, wrong = _measure(
        captured,
        tiny_suites.register_modified("zz_mixing", traits=mixing),
        tiny_suites.register_modified("zz_wrong", _wrong_from(5), traits=mixing),
    )
    assert (whole.row.status, whole.row.gate_len, whole.row.extra["weight_rows"]) == ("ok", 20, 40)
    assert wrong.row.status == "invalid"


def test_what_is_expected_grows_with_pairs_in_time_and_not_in_memory() -> None:
    text = tiny_suites.TINY.replace('"forward"', '"fidelity"')
    best = Roofline(gemm_flops_per_s=1e10, bytes_per_s=1e10)
    full, linear = (
        estimate_case(case, best)
        for case in tiny_suites.plan(text, variants=["full", "linear"], keys={"activations": "smollm2"})[:2]
    )
    pairs = 9 * 2048**2
    assert full.call_bytes < 8 * pairs * 2  # two matrices of all pairs, as they once were
    assert (
        full.call_s * CALLS > linear.call_s * CALLS + pairs * fidelity_task.SECONDS_PER_PAIR
    )  # the baseline's, exact attention
    assert linear.call_s * CALLS > pairs * fidelity_task.SECONDS_PER_PAIR


def test_activations_that_are_not_installed_are_skipped_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "find_suites_folder", lambda: tmp_path)
    text = tiny_suites.TINY.replace('"forward"', '"fidelity"')
    cases = tiny_suites.plan(text, variants=["full", "linear"], keys={"activations": "smollm2"})
    assert values_of(cases, "layer") == [5, 20]
    assert {(c.group.config.seq_len, c.kv_heads, c.group.config.inputs) for c in cases} == {(2048, 3, "smollm2")}
    for record in measure_cases([c for c in cases if c.group.config.layer == 5]):
        assert record.row.status == "skipped"
        assert "capture --model smollm2" in (record.row.reason or "")
        assert record.row.relative_error is None
