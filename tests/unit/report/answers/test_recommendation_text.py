"""Recommendations as text and as data."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import report_runs as runs
from learned_runs import attempt
from shell import run

from efficient_attn.report.answers import recommendation_text
from efficient_attn.report.answers.recommendation import Recommendation, recommend
from efficient_attn.report.answers.recommendation_data import RecommendationData
from efficient_attn.report.answers.requirements import MODES, Mode, Requirements
from efficient_attn.report.gather import gather


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> RecommendationData:
    folder = tmp_path_factory.mktemp("run")
    return RecommendationData.of(
        gather([runs.write_run(folder, [*runs.speed(lengths=(512, 1024, 4096)), *runs.fidelity()])]).rows
    )


def _recommend(prepared: RecommendationData, seq_len: int) -> Recommendation:
    return recommend(prepared, Requirements(seq_len=seq_len, causal=False))


def test_interpolated_costs_are_marked(prepared: RecommendationData) -> None:
    for length, marked in ((4096, False), (2048, True)):
        found = _recommend(prepared, length)
        rows = recommendation_text.as_rows(found) + recommendation_text.list_unverified_rows(found)
        assert len(rows) == 4
        for cells, details in rows:
            assert len(cells) == len(recommendation_text.list_headings(found))
            assert details[-1].endswith("INTERPOLATED between 1,024 and 4,096") is marked


def test_options_and_quality_are_details(prepared: RecommendationData) -> None:
    found = _recommend(prepared, 512)
    rows = {cells[1]: details for cells, details in recommendation_text.as_rows(found)}
    assert rows == {
        "linear": ("relative error 0.837",),
        "sliding_window": ("window=128", "relative error 0.108"),
        "full": ("exact",),
    }
    ((cells, details),) = recommendation_text.list_unverified_rows(found)
    assert cells[:2] == ("?", "performer")
    assert details == ("kind=positive:n_features=256", "error not verified at 512 (not measured)")


def test_notes_name_the_measured_configuration(prepared: RecommendationData) -> None:
    lines = list(recommendation_text.list_notes(_recommend(prepared, 4096)))
    assert (
        lines[0]
        == "Measured configuration: cpu, float32, 1 thread, batch 1, 4 heads of size 64, machine Xeon-x2-15GiB, "
        "bidirectional."
    )
    assert any(line.startswith("Ranked are the mechanisms that no other one beats") for line in lines)
    measured = "The error of mechanisms that are not ranked was measured in MiniLM, N = 256, bidirectional, mean over 3"
    assert f"{measured} layers." in lines
    assert "Timed in quickstart-1: all." in lines
    notes = recommendation_text.list_notes(_recommend(prepared, 9999))
    assert next(notes) == "No measured mechanism satisfies the requirements."
    nowhere = recommend(prepared, Requirements(seq_len=512, device="cuda"))
    assert list(recommendation_text.list_notes(nowhere)) == ["No matching configuration was timed."]


def test_commands_contain_the_requirements() -> None:
    asked = Requirements(
        seq_len=777, mode="decode", kv_heads=2, max_error=0.1, max_ppl_ratio=1.1, min_accuracy={"mqar": 1}
    )
    commands = list(recommendation_text.list_commands(asked))
    assert commands[0].startswith("efficient-attn run decode --seq-len 777 --device cpu --kv-heads 2 ")
    assert "--part 'key-value heads'" in commands[0]
    assert [c.split()[2] for c in commands[1:]] == ["fidelity_long", "swap", "accuracy"]


@pytest.mark.slow
@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", MODES)
def test_commands_can_be_planned(mode: Mode, tmp_path: Path) -> None:
    causal = None if mode in ("decode", "prefill") else True
    asked = Requirements(seq_len=777, mode=mode, causal=causal, kv_heads=2, heads=8)
    words = shlex.split(next(iter(recommendation_text.list_commands(asked))))
    done = run("plan", *words[2 : words.index("--out")], "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    cases = json.loads(done.out)
    assert {(case["seq_len"], case["kv_heads"], case["mode"]) for case in cases} == {(777, 2, mode)}


def test_errors_at_other_lengths_are_marked(prepared: RecommendationData) -> None:
    found = {choice.label: choice.error_text for choice in _recommend(prepared, 4096).not_verified}
    conditions = "MiniLM, N = 256, bidirectional, mean over 3 layers"
    assert found["linear"] == f"relative error 0.837 ({conditions}); not verified at 4,096"
    there = recommend(prepared, Requirements(seq_len=512, causal=False, max_error=0.5)).left_out["linear"]
    assert there == "relative error 0.837"


def test_data_names_the_rows(prepared: RecommendationData) -> None:
    data = json.loads(json.dumps(recommendation_text.as_json(_recommend(prepared, 2048)), allow_nan=False))
    first = data["choices"][0]
    assert (first["how"], first["between"]) == ("interpolated", [1024, 4096])
    assert {row["length"] for row in first["rows"]} == {1024, 4096}
    assert all(row["case_key"] and row["run_id"] == "quickstart-1" for row in first["rows"])
    assert data["commands"] == []
    assert recommendation_text.as_json(_recommend(prepared, 99999))["commands"]


def test_decisions_within_an_interval_are_marked_uncertain(tmp_path: Path) -> None:
    window = "sliding_window:window=128"
    scores = {"full": (0.99, 0.99), "linear": (0.94, 0.96), window: (0.89, 0.91)}
    learned = [
        attempt(name, score, kind, seed, task="mqar", seq_len=4096, causal=False)
        for name, pair in scores.items()
        for seed, (kind, score) in enumerate(zip(("given", "best"), pair, strict=True))
    ]
    rows = gather([runs.write_run(tmp_path, [*runs.speed(lengths=(4096,)), *learned])]).rows
    found = recommend(
        RecommendationData.of(rows), Requirements(seq_len=4096, causal=False, min_accuracy={"mqar": 0.93})
    )
    loses = {cells[1]: details[-1] for cells, details in recommendation_text.as_rows(found)}
    assert {choice.label: choice.quality[0].sure for choice in found.choices} == {"full": True, "linear": False}
    assert "uncertain" not in loses["full"]
    assert loses["linear"].endswith("; uncertain: 82.3%\u2013100%")
    assert found.left_out[window].endswith("; uncertain: 77.3%\u2013100%")
    assert any(line.startswith("uncertain: the value decides") for line in recommendation_text.list_notes(found))
    choices = {choice["mechanism"]: choice["quality"][0] for choice in recommendation_text.as_json(found)["choices"]}
    assert (choices["full"]["sure"], choices["linear"]["sure"]) == (True, False)
    assert choices["linear"]["low"] == pytest.approx(0.823, abs=1e-3)


def test_certain_decisions_are_not_marked(prepared: RecommendationData) -> None:
    assert not [line for line in recommendation_text.list_notes(_recommend(prepared, 4096)) if "uncertain" in line]
