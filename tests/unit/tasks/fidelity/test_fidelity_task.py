"""The fidelity task: planned groups, rows, verification and estimated cost."""

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
from efficient_attn.tasks.fidelity import activations, exact, fidelity_task


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


def test_each_layer_has_cases_with_the_sizes_of_the_file() -> None:
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


def test_missing_activations_are_refused_when_planning() -> None:
    with pytest.raises(UsageError, match=r"gone\.npz: no such file"):
        tiny_suites.plan(SEVERAL.replace('"forward"', '"fidelity"'), keys={"activations": "gone.npz"})


def _measure_fidelity(*variants: str) -> list[Record]:
    cases = tiny_suites.plan(tiny_suites.TINY.replace('"forward"', '"fidelity"'), variants=variants)
    return measure_cases([c for c in cases if c.group.config.layer == 2])


def test_fidelity_rows_contain_errors_and_no_times() -> None:
    full, window = _measure_fidelity("full", "sliding_window:window=8")
    assert (full.row.status, full.row.task, full.row.layer, full.row.mode) == ("ok", "fidelity", 2, None)
    assert (full.row.inputs or "").startswith("minilm@")
    assert (full.row.relative_error or 1) < 1e-5
    assert (window.row.relative_error or 0) > 0.1
    assert (window.row.missed_mass or 0) > 0.1
    assert full.row.effective_keys == pytest.approx(window.row.effective_keys)
    assert full.row.latency_ms is None
    assert 0.1 < full.samples["mean_value_error"] == window.samples["mean_value_error"]


def test_fidelity_cases_are_verified() -> None:
    wrong, failing, full = _measure_fidelity(
        tiny_suites.register_modified("zz_wrong", lambda out: out * 1.1),
        tiny_suites.register_modified("zz_failing", tiny_suites.raising(RuntimeError("boom"))),
        "full",
    )
    assert wrong.row.status == "invalid"
    assert wrong.row.relative_error is None
    assert (failing.row.status, full.row.status) == ("error", "ok")


NOT_APPLICABLE = {
    "linformer:rank=8": "it has 3,072 parameters",
    "cosine": "it has 12 parameters",
    "reformer:bucket_size=16": "its queries are its keys",
    "random_feature:gated=true:n_features=8": "it takes further inputs: gate",
}


@pytest.mark.parametrize("causal", [False, True])
def test_mechanisms_that_have_to_be_trained_are_not_applicable(causal: bool) -> None:
    """Also with a mask that they do not support."""
    text = tiny_suites.TINY.replace('"forward"', '"fidelity"')
    cases = tiny_suites.plan(text, variants=tuple(NOT_APPLICABLE), axes={"causal": [causal]})
    records = measure_cases([c for c in cases if c.group.config.layer == 2])
    assert {r.row.variant: (r.row.status, r.row.reason) for r in records} == {
        variant: ("unsupported", f"not applicable: {variant} has to be trained ({reason})")
        for variant, reason in NOT_APPLICABLE.items()
    }
    assert {r.row.relative_error for r in records} == {r.row.oracle_error for r in records} == {None}


def test_mechanisms_that_are_not_trained_are_measured_whatever_their_buffers() -> None:
    """Random features and drawn patterns are no parameters."""
    records = _measure_fidelity("performer:n_features=8", "random_feature:n_features=8", "random_blocks:block_size=16")
    assert [record.row.status for record in records] == ["ok"] * 3


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


def test_causal_and_grouped_activations_are_measured(captured: str) -> None:
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


def test_exact_attention_is_computed_once_per_group(captured: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fidelity_task._compute_reference.cache_clear()
    calls, compute = [], exact.compute_exact
    monkeypatch.setattr(exact, "compute_exact", lambda *args: calls.append(args) or compute(*args))
    _measure(captured, "full", "linear", "sliding_window:window=8")
    assert len(calls) == 1
    _measure(captured, "full", causal=False)
    assert len(calls) == 2


def test_a_missing_gradient_is_reported_in_the_row(captured: str) -> None:
    no_gradient = tiny_suites.register_modified("zz_fixed", traits=ea.Traits(decode=False, exact=True, gradient=False))
    (record,) = _measure(captured, no_gradient)
    assert (record.row.status, record.row.extra["gradient_cosine"]) == ("ok", None)
    assert record.row.reason == "no gradient_cosine: the mechanism has no gradient"


def _wrong_from(row: int) -> tiny_suites.Change:
    def change(out: torch.Tensor) -> torch.Tensor:
        return torch.cat([out[:, :, :row], out[:, :, row:] * 1.1], 2)

    return change


def test_some_rows_are_verified_if_all_are_too_many(captured: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MAX_WHOLE_PAIRS", 4 * 20**2)
    full, late = _measure(captured, "full", tiny_suites.register_modified("zz_late", _wrong_from(38)))
    assert (full.row.status, full.row.gate_len) == ("ok", 40)
    assert (late.row.status, late.row.relative_error) == ("invalid", None)


def test_a_prefix_is_verified_if_queries_are_mixed(captured: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MAX_WHOLE_PAIRS", 4 * 20**2)
    mixing = ea.Traits(decode=False, exact=True, mixes_queries=True)
    whole, wrong = _measure(
        captured,
        tiny_suites.register_modified("zz_mixing", traits=mixing),
        tiny_suites.register_modified("zz_wrong", _wrong_from(5), traits=mixing),
    )
    assert (whole.row.status, whole.row.gate_len, whole.row.extra["weight_rows"]) == ("ok", 20, 40)
    assert wrong.row.status == "invalid"


def test_estimated_time_but_not_memory_grows_with_pairs() -> None:
    text = tiny_suites.TINY.replace('"forward"', '"fidelity"')
    roofline = Roofline(gemm_flops_per_s=1e10, bytes_per_s=1e10)
    full, linear = (
        estimate_case(case, roofline)
        for case in tiny_suites.plan(text, variants=["full", "linear"], keys={"activations": "smollm2"})[:2]
    )
    pairs = 9 * 2048**2
    assert full.call_bytes < 8 * pairs * 2  # less than two matrices of all pairs
    assert (
        full.call_s * CALLS > linear.call_s * CALLS + pairs * fidelity_task.SECONDS_PER_PAIR
    )  # full is the baseline, which includes the exact reference
    assert linear.call_s * CALLS > pairs * fidelity_task.SECONDS_PER_PAIR


def test_cases_without_installed_activations_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "find_suites_folder", lambda: tmp_path)
    text = tiny_suites.TINY.replace('"forward"', '"fidelity"')
    cases = tiny_suites.plan(text, variants=["full", "linear"], keys={"activations": "smollm2"})
    assert values_of(cases, "layer") == [5, 20]
    assert {(c.group.config.seq_len, c.kv_heads, c.group.config.inputs) for c in cases} == {(2048, 3, "smollm2")}
    for record in measure_cases([c for c in cases if c.group.config.layer == 5]):
        assert record.row.status == "skipped"
        assert "capture --model smollm2" in (record.row.reason or "")
        assert record.row.relative_error is None
