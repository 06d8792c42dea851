"""Recommendations from synthetic rows: order, shared ranks, and reasons for leaving mechanisms out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import recommendation_accuracy
import report_runs as runs
from learned_runs import attempt

from efficient_attn.errors import UsageError
from efficient_attn.report.answers import recommendation_text
from efficient_attn.report.answers.recommendation import (
    Candidate,
    Recommendation,
    recommend,
)
from efficient_attn.report.answers.recommendation_data import RecommendationData, check_rows
from efficient_attn.report.answers.requirements import Requirements
from efficient_attn.report.gather import gather
from efficient_attn.results.gathered import load
from efficient_attn.results.rows import Record

WINDOW = "sliding_window:window=128"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> RecommendationData:
    folder = tmp_path_factory.mktemp("run")
    records = [*runs.speed(lengths=(512, 1024, 4096)), *runs.decode(), *runs.fidelity()]
    records += [*runs.speed(lengths=(512,), machine="Other-1c-2GiB")]
    known = {"task": "mqar", "seq_len": 2048, "causal": False}
    records += [attempt("full", 0.99, "given", **known), attempt("linear", 0.5, "given", **known)]
    return RecommendationData.of(gather([runs.write_run(folder, records)]).rows)


def _list_all(found: Recommendation) -> tuple[Candidate, ...]:
    """The mechanisms that satisfy the requirements on cost, whether or not their quality is known."""
    return found.choices + found.not_verified


def _recommend(prepared: RecommendationData, here: str | None = None, **given: Any) -> Any:
    return recommend(
        prepared, Requirements(**({"seq_len": 4096, "causal": False, "machine": "Xeon"} | given)), local_machine=here
    )


PERFORMER = "performer:kind=positive:n_features=256"


@pytest.mark.parametrize("bound", [{}, {"max_error": 0.5}])
def test_only_verified_mechanisms_are_ranked(prepared: RecommendationData, bound: dict[str, float]) -> None:
    found = _recommend(prepared, **bound)
    assert [choice.label for choice in found.choices] == ["full"]
    assert not found.left_out
    unverified = {entry.label: entry.reasons["error"] for entry in found.not_verified}
    assert [*unverified] == ["linear", WINDOW, PERFORMER]  # the fastest first
    assert unverified["linear"] == "error not verified at 4,096 (measured at 256, bidirectional, in MiniLM)"
    assert unverified[PERFORMER] == "error not verified at 4,096 (not measured)"


def test_errors_are_reported_with_their_inputs(prepared: RecommendationData) -> None:
    found = {choice.label: choice.error_text for choice in _list_all(_recommend(prepared))}
    assert found["full"] == "exact"
    conditions = "MiniLM, N = 256, bidirectional, mean over 3 layers"
    assert found[WINDOW] == f"relative error 0.108 ({conditions}); not verified at 4,096"


def test_interpolated_and_measured_costs_are_distinguished(prepared: RecommendationData) -> None:
    measured, between = (_list_all(_recommend(prepared, seq_len=length)) for length in (4096, 2048))
    assert {choice.cost.basis for choice in measured} == {"measured"}
    assert {(choice.cost.basis, choice.cost.between) for choice in between} == {("interpolated", (1024, 4096))}
    width = {c.label: c.cost.speedup.high / c.cost.speedup.low for c in measured}
    assert all(c.cost.speedup.high / c.cost.speedup.low > width[c.label] for c in between)


def test_beyond_the_measured_lengths_all_are_left_out(prepared: RecommendationData) -> None:
    found = _recommend(prepared, seq_len=65536)
    assert not found.choices
    assert set(found.left_out.values()) == {"timed only at 512, 1K, 4K"}


def test_whole_intervals_satisfy_bounds_on_memory_and_time(prepared: RecommendationData) -> None:
    free = {choice.label: choice.cost for choice in _list_all(_recommend(prepared))}
    least, most = (f(taken.memory.value for taken in free.values()) for f in (min, max))
    assert least < most
    within = _recommend(prepared, memory=int(least))
    assert [free[choice.label].memory.value for choice in _list_all(within)] == [least]
    assert all(why.startswith("memory ") for why in within.left_out.values())
    quick = min(taken.latency.high for taken in free.values())
    assert len(_list_all(_recommend(prepared, latency_ms=quick))) == 1
    assert not _list_all(_recommend(prepared, latency_ms=quick * 0.999))


def test_accuracies_of_trained_models_bound_the_choice(prepared: RecommendationData) -> None:
    found = _recommend(prepared, min_accuracy={"mqar": 0.95})
    assert [choice.label for choice in found.choices] == ["full"]
    assert found.left_out == {"linear": "50.0% of mqar"}
    reasons = {entry.label: entry.reasons["mqar"] for entry in found.not_verified}
    assert reasons[WINDOW] == "accuracy of mqar not verified at 4,096 (not measured)"


def test_an_unknown_task_is_an_error(prepared: RecommendationData) -> None:
    with pytest.raises(UsageError, match="unknown task of --min-accuracy 'mqra'; did you mean 'mqar'"):
        _recommend(prepared, min_accuracy={"mqra": 0.9})


def test_different_machines_are_never_ranked_together(prepared: RecommendationData) -> None:
    asked = {"seq_len": 512, "machine": None}
    assert _recommend(prepared, **asked).config["machine"] == "Xeon-x2-15GiB"
    assert _recommend(prepared, here="Other-1c-2GiB", **asked).config["machine"] == "Other-1c-2GiB"
    assert _recommend(prepared, seq_len=512, machine="Other").config["machine"] == "Other-1c-2GiB"
    assert set(_recommend(prepared, **asked).machines) == {"Xeon-x2-15GiB", "Other-1c-2GiB"}
    with pytest.raises(UsageError, match="unknown machine 'Zen9'"):
        _recommend(prepared, machine="Zen9")


def test_a_machine_with_one_mechanism_is_not_preferred(prepared: RecommendationData, tmp_path: Path) -> None:
    alone = runs.row(
        "full", machine="Lone-1c", mode="forward", seq_len=4096, latency_ms=1.0, latency_ms_low=0.9, latency_ms_high=1.1
    )
    both = RecommendationData.of(gather([runs.write_run(tmp_path, [*runs.speed(lengths=(4096,)), Record(alone)])]).rows)
    found = _recommend(both, here="Lone-1c", machine=None)
    assert found.config["machine"] == "Xeon-x2-15GiB"
    assert any(
        line.startswith("This machine, Lone-1c, has timings of fewer than two")
        for line in recommendation_text.list_notes(found)
    )
    assert _recommend(both, here="Lone-1c", machine="Lone").config["machine"] == "Lone-1c"


def test_measured_configurations_are_preferred(tmp_path: Path) -> None:
    wide = [
        record for record in runs.speed(lengths=(1024,), heads=16, kv_heads=16) if "performer" not in record.row.variant
    ]
    found = _known_of(tmp_path, [*runs.speed(lengths=(512, 2048)), *wide])
    assert _recommend(found, seq_len=1024).config["heads"] == 16  # three at that length, four around it
    assert _recommend(found, seq_len=1024, heads=4).choices[0].cost.basis == "interpolated"


def test_compiled_mechanisms_are_not_mixed_with_others(tmp_path: Path) -> None:
    rows = [*runs.speed(lengths=(4096,)), *runs.speed(lengths=(4096,), compiled=True)]
    for record in rows[4:]:
        for name in ("latency_ms", "latency_ms_low", "latency_ms_high"):
            setattr(record.row, name, 0.1 * getattr(record.row, name))
        record.row.case_key += "-compiled"
    found = _recommend(RecommendationData.of(gather([runs.write_run(tmp_path, rows)]).rows))
    assert not found.config["compiled"]
    assert all(choice.cost.latency.value > 1 for choice in found.choices if choice.label == "full")
    assert len(_list_all(found)) == 4


def test_the_memory_bound_applies_to_the_state_when_decoding(prepared: RecommendationData) -> None:
    asked = {"mode": "decode", "causal": None, "seq_len": 4096}
    states = {choice.label: choice.cost.state.value for choice in _list_all(_recommend(prepared, **asked))}
    least = min(states.values())
    kept = {choice.label for choice in _list_all(_recommend(prepared, **asked, memory=int(least)))}
    assert kept == {label for label, state in states.items() if state == least}
    assert len(kept) < len(states)


def test_loaded_and_gathered_rows_give_the_same_recommendation(tmp_path: Path) -> None:
    folder = runs.write_run(tmp_path, [*runs.speed(lengths=(512, 2048)), *runs.fidelity()])
    asked = Requirements(seq_len=1024, causal=False, max_error=0.5)
    gathered, loaded = (
        recommend(RecommendationData.of(gather([folder]).rows), asked),
        recommend(RecommendationData.of(load(folder)), asked),
    )
    assert [(c.rank, c.label, c.cost.latency) for c in gathered.choices] == [
        (c.rank, c.label, c.cost.latency) for c in loaded.choices
    ]
    assert loaded.choices


def test_mechanisms_are_ranked_by_ratios_if_groups_drift(tmp_path: Path) -> None:
    """A second session in which all took 1.1 times as long: nobody becomes slower by the hour of its session."""
    first, second = list(runs.speed(lengths=(4096,))), list(runs.speed(lengths=(4096,), run_id="quickstart-2"))
    for record in second:
        for name in ("latency_ms", "latency_ms_low", "latency_ms_high"):
            setattr(record.row, name, getattr(record.row, name) * 1.1)
        record.row.case_key += "-again"
    window = [record for record in first if record.row.variant != "linear"]
    linear = [record for record in second if record.row.variant in ("full", "linear")]
    found = {c.label: c.cost for c in _list_all(_recommend(_known_of(tmp_path / "both", [*window, *linear])))}
    alone = {c.label: c.cost for c in _list_all(_recommend(_known_of(tmp_path / "one", first)))}
    ratio, true = (x[WINDOW].latency.value / x["linear"].latency.value for x in (found, alone))
    assert ratio == pytest.approx(true, rel=0.03)


def _known_of(folder: Path, records: list[Record]) -> RecommendationData:
    return RecommendationData.of(gather([runs.write_run(folder, records)]).rows)


def test_shared_key_value_heads_must_be_required(prepared: RecommendationData) -> None:
    decode = {"mode": "decode", "causal": None, "seq_len": 4096, "max_error": 0.1}
    assert {choice.label for choice in _recommend(prepared, **decode).choices} == {"full"}
    shared = _recommend(prepared, **decode, kv_heads=1)
    assert {choice.label.partition(":")[0] for choice in shared.choices} == {"mqa"}
    assert shared.choices[0].error_text == "exact"


NEAR = {"linear": (2.0, 0.4), "cosformer": (1.95, 0.3), PERFORMER: (1.000001, 0.2), "full": (None, 0.0)}


def _list_near() -> list[Record]:
    """Times with an interval of 5%, and errors that are lower the slower a mechanism is."""
    timed = [
        runs.row(
            name, mode="forward", seq_len=512, latency_ms=1.0, latency_ms_low=0.9, latency_ms_high=1.1,
            speedup=ratio, speedup_low=ratio and ratio * 0.95, speedup_high=ratio and ratio * 1.05,
        )
        for name, (ratio, _) in NEAR.items()
    ]  # fmt: skip
    errors = [
        runs.row(name, task="fidelity", inputs="minilm", layer=0, seq_len=512, relative_error=error)
        for name, (_, error) in NEAR.items()
    ]
    return [Record(made) for made in (*timed, *errors)]


def test_mechanisms_that_differ_insignificantly_share_a_rank(tmp_path: Path) -> None:
    answer = recommend(_known_of(tmp_path, _list_near()), Requirements(seq_len=512, max_error=0.5))
    ranks = [(choice.rank, choice.label) for choice in answer.choices]
    assert ranks == [(1, "linear"), (1, "cosformer"), (3, "full"), (3, PERFORMER)]
    assert [choice.label for choice in answer.best] == ["linear", "cosformer"]


def test_without_a_bound_the_pareto_set_is_ranked(tmp_path: Path) -> None:
    """The performer is as fast as exact attention, but for rounding, and worse; a slow one of a huge error goes too."""
    slow = runs.row("retention", mode="forward", seq_len=512, latency_ms=0.8, latency_ms_low=0.7, latency_ms_high=0.9)
    bad = runs.row("retention", task="fidelity", inputs="minilm", layer=0, seq_len=512, relative_error=309.0)
    answer = recommend(_known_of(tmp_path, [*_list_near(), Record(slow), Record(bad)]), Requirements(seq_len=512))
    assert [choice.label for choice in answer.choices] == ["linear", "cosformer", "full"]
    assert answer.left_out == {
        PERFORMER: "not better than full, which is faster",
        "retention": "not better than linear, which is faster",
    }
    assert answer.quality_notes == ("Quality (error) was compared in MiniLM, N = 512, bidirectional, 1 layer.",)


@pytest.mark.parametrize(
    ("second", "expected"), [((0.41, 0.52, 0.63), True), ((0.41,), True), ((0.93, 0.94, 0.95), False)]
)
def test_insignificant_differences_leave_nothing_out(second: tuple[float, ...], expected: bool, tmp_path: Path) -> None:
    """Times overlap; errors over three layers too, have no interval, or differ in each layer."""
    known = {"mode": "forward", "seq_len": 512}
    timed = [
        runs.row(name, **known, latency_ms=ms, latency_ms_low=0.8, latency_ms_high=1.3)
        for name, ms in (("linear", 1.0), ("cosformer", 1.01))
    ]
    errors = [
        runs.row(name, task="fidelity", inputs="minilm", layer=layer, seq_len=512, relative_error=error)
        for name, pair in (("linear", (0.4, 0.5, 0.6)[: len(second)]), ("cosformer", second))
        for layer, error in enumerate(pair)
    ]
    answer = recommend(_known_of(tmp_path, [Record(made) for made in (*timed, *errors)]), Requirements(seq_len=512))
    assert ("cosformer" in [choice.label for choice in answer.choices]) == expected


def test_the_same_label_with_other_key_value_heads_stays(tmp_path: Path) -> None:
    """One is dominated by the other, which is not left out with it."""
    known = {"mode": "forward", "seq_len": 512, "heads": 8}
    timed = [runs.row("linear", **known, kv_heads=heads, latency_ms=ms) for heads, ms in ((8, 2.0), (2, 1.0))]
    error = runs.row("linear", task="fidelity", inputs="minilm", layer=0, seq_len=512, relative_error=0.5)
    answer = recommend(_known_of(tmp_path, [Record(made) for made in (*timed, error)]), Requirements(seq_len=512))
    assert [(choice.label, choice.cost.latency.value) for choice in answer.choices] == [("linear", pytest.approx(1.0))]
    assert answer.left_out == {}


def test_runs_without_timings_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="these runs contain no timings"):
        check_rows(RecommendationData.of(gather([runs.write_run(tmp_path, runs.fidelity())]).rows))


def test_runs_with_only_disturbed_rows_are_an_error(tmp_path: Path) -> None:
    records = list(runs.speed(lengths=(512,)))
    for record in records:
        record.row.rounds, record.row.contaminated = 8, 8
    found = RecommendationData.of(gather([runs.write_run(tmp_path, records)]).rows)
    with pytest.raises(UsageError, match="all 4 timed rows were disturbed by other programs"):
        check_rows(found)


def test_only_disturbed_rows_that_match_are_counted(tmp_path: Path) -> None:
    records = list(runs.speed(lengths=(512,), dtype="bfloat16"))
    for record in records:
        record.row.rounds, record.row.contaminated, record.row.compiled = 8, 8, None
        record.row.case_key += "/bfloat16"
    prepared = _known_of(tmp_path, [*runs.speed(lengths=(512,)), *records])
    notes = [
        next(recommendation_text.list_notes(_recommend(prepared, dtype=dtype, seq_len=512, machine=machine)))
        for dtype, machine in (("float16", None), ("bfloat16", None), ("bfloat16", "Xeon"))
    ]
    assert notes[0] == "No matching configuration was timed."
    assert all("(4 matching rows left out, as other programs disturbed them" in note for note in notes[1:])


def test_recommendations_agree_with_published_groups() -> None:
    """A sample of the trial."""
    results = Path(__file__).parents[4] / "results"
    named = [results / name for name in ("quickstart_zen4", "linear_xeon", "decode_zen4")]
    for found in recommendation_accuracy.main(named, 60, 5).values():
        assert found.questions == 30
        assert found.right >= 0.9 * (found.questions - found.unanswered)
        assert found.unanswered <= 6
        assert found.broken == 0


@pytest.mark.parametrize("mode", ["forward", "prefill", "decode"])
@pytest.mark.parametrize("causal", [None, True])
def test_data_for_one_question_give_the_answer_of_all_data(mode: Any, causal: bool | None, tmp_path: Path) -> None:
    records = [*runs.speed(lengths=(512, 1024)), *runs.speed(causal=True, lengths=(512,)), *runs.decode()]
    rows = gather([runs.write_run(tmp_path, [*records, *runs.fidelity()])]).rows
    for seq_len in (512, 700, 4096):
        question = Requirements(seq_len=seq_len, mode=mode, causal=causal)
        answers = [recommend(RecommendationData.of(rows, requirements=x), question) for x in (None, question)]
        assert answers[0] == answers[1]
