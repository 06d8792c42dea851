"""Training tasks: planned groups, a row for each seed and rate, resumed runs and failures."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import tiny_suites
import tiny_training as tiny
from inline_measurement import measure_cases

from efficient_attn.bench import task_registry
from efficient_attn.bench.case import Case, group_cases
from efficient_attn.bench.measuring import scratch
from efficient_attn.bench.measuring.parallel import is_parallel
from efficient_attn.bench.run import RunOutcome
from efficient_attn.bench.task_registry import register_task
from efficient_attn.errors import UsageError
from efficient_attn.results import durable
from efficient_attn.results.checkpoints import CHECKPOINT_FOLDER
from efficient_attn.results.learning_rates import choose_rate
from efficient_attn.results.rows import Record
from efficient_attn.results.store import read
from efficient_attn.tasks.training import learning, plateau
from efficient_attn.tasks.training.attempts import list_attempts, list_tried
from efficient_attn.tasks.training.learners import make_learner
from efficient_attn.tasks.training.learning import COLUMNS, list_earlier, make_task

TEXT = """
title    = "Tiny training"
measure  = ["tiny"]
baseline = "full"
axes     = { seq_len = [16], threads = [1] }
vocab    = 32
pairs    = 2
examples = 8
steps    = 3
[[variant]]
name = "full"
[[variant]]
name    = "sliding_window"
options = { window = 3 }
"""
NAMED = tiny.NAMED
ATTEMPTS = list(list_attempts(NAMED, tiny.keys(), quick=False))
ATTEMPTS_BY_LABEL = {attempt.label: attempt for attempt in ATTEMPTS}


@pytest.fixture(autouse=True)
def _registered_task() -> Iterator[None]:
    with tiny.registered():
        yield


def _run(folder: Path, text: str = TEXT, **options: Any) -> RunOutcome:
    return tiny.run_inline(folder, text, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """The records of a whole run of two mechanisms."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    with tiny.registered():
        assert _run(folder).failed == 0
    assert not (folder / CHECKPOINT_FOLDER).exists()
    scratch.set_folder(None)
    return read(folder)


# -- the plan --------------------------------------------------------------------------------------------------------


def test_mechanisms_are_trained_interleaved() -> None:
    groups = group_cases(tiny_suites.plan(TEXT))
    assert [group.config.inputs for group, _ in groups] == [attempt.label for attempt in ATTEMPTS]
    assert all([c.variant for c in members] == ["full", "sliding_window:window=3"] for _, members in groups)
    assert len({case.key for _, members in groups for case in members}) == 2 * len(ATTEMPTS)


def test_quick_runs_have_a_smaller_budget_and_one_attempt() -> None:
    (case,) = tiny_suites.plan(TEXT, quick=True, variants=["full"], keys={"steps": 40})
    assert (case.keys.steps, case.keys.seconds) == (10, None)
    (case,) = tiny_suites.plan(TEXT.replace("steps    = 3\n", ""), quick=True, variants=["full"], keys={"seconds": 8.0})
    assert (case.keys.steps, case.keys.seconds) == (None, 2.0)


def test_case_keys_do_not_depend_on_the_checkpoint_interval() -> None:
    text = TEXT + "[[variant]]\nname='linear'\n"
    often = tiny_suites.plan(text, keys={"checkpoint_s": 1.0})
    assert [case.keys.checkpoint_s for case in often] == [1.0] * len(often)
    assert [case.key for case in often] == [case.key for case in tiny_suites.plan(text)]


def test_heads_divide_the_models_width() -> None:
    (case,) = tiny_suites.plan(TEXT, quick=True, variants=["full"], keys={"heads": 4})
    assert (case.group.config.heads, case.group.config.head_dim) == (4, 4)
    model = make_learner(NAMED, case.keys, "full", length=tiny.LENGTH, seed=0).model
    assert model.layers[0].attention.heads == 4  # type: ignore[index, union-attr]


def test_keys_can_be_set_to_their_defaults() -> None:
    assert tiny_suites.plan(TEXT, keys={"noise": False}) == tiny_suites.plan(TEXT)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"axes": {"seq_len": [15]}}, "need an even length"),
        ({"keys": {"test_len": [6]}}, "need an even length of at least 8, not 6"),
        ({"keys": {"seeds_between": (0.9, 0.1)}}, "tiny: seeds_between must be two increasing scores"),
        ({"keys": {"shortest": 18}}, "tiny: shortest=18 is above the length, 16"),
        ({"keys": {"heads": 3}}, "tiny: heads=3 does not divide the model's width, 16"),
        ({"keys": {"architecture": "recurrent"}}, "architecture recurrent is for sequence to sequence only"),
        ({"axes": {"dtype": ["float64"]}}, "models are run with dtype float32, not float64"),
        ({"axes": {"device": ["mps"]}}, "models are run with device cpu or cuda, not mps"),
        ({"seed": 3}, "so seed must be 0, not 3"),
    ],
)
def test_invalid_settings_are_refused_when_planning(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny_suites.plan(TEXT, **changed)


def test_models_are_trained_in_float32_on_a_gpu_too() -> None:
    cases = tiny_suites.plan(TEXT, axes={"device": ["cpu", "cuda"]})
    assert {(c.group.config.device, c.group.config.dtype) for c in cases} == {("cpu", "float32"), ("cuda", "float32")}
    assert all(is_parallel(case.group) for case in cases)


def test_the_file_of_the_problem_is_the_tasks_source() -> None:
    task = make_task(NAMED)
    assert task.source is NAMED.draw
    assert inspect.getsourcefile(task.source) == inspect.getsourcefile(tiny.TINY.draw)


# -- rows ------------------------------------------------------------------------------------------------------------


def test_there_is_a_row_for_each_seed_and_rate(whole: list[Record]) -> None:
    rows = [record.row for record in whole]
    full = [row for row in rows if row.variant == "full" and row.status == "ok"]
    further = [(r.seed, r.extra["train.attempt"]) for r in full if r.seed]
    assert further[:2] == [(1, "best"), (2, "best")]
    assert further[2:] in ([], [(3, "more"), (4, "more")])  # if the scores disagree
    assert [r.extra["train.learning_rate"] for r in full[:3]] == [1e-3, 2e-3, 4e-3]
    assert len(rows) == len({row.case_key for row in rows}) == 2 * len(ATTEMPTS)


def test_rows_have_the_declared_columns_and_no_others(whole: list[Record]) -> None:
    names = {name for record in whole for name in record.row.extra}
    assert all(any(fnmatchcase(name, known) for known in COLUMNS) for name in names)
    usual = {name for name in COLUMNS if not name.endswith("*")}
    for record in whole:
        assert (usual <= record.row.extra.keys()) == (record.row.status == "ok")


def test_rows_contain_settings_scores_and_curves(whole: list[Record]) -> None:
    row, extra = whole[0].row, whole[0].row.extra
    assert (row.mode, row.metric, row.steps, row.stop_reason) == ("train", "accuracy", 3, plateau.NOT_LEARNED)
    assert (extra["train.budget"], extra["train.batch"], extra["train.examples"]) == (3, 4, 8)
    assert row.accuracy == extra["train.score"]
    assert extra["train.low"] <= extra["train.score"] <= extra["train.high"]  # type: ignore[operator]
    assert extra["train.chance"] == 1 / 16
    assert row.parameters == sum(extra[f"train.{part}"] for part in ("attention", "mixer", "embeddings"))  # type: ignore
    samples = whole[0].samples
    assert samples["steps"] == [1, 2, 3]
    assert len(samples["loss"]) == len(samples["validation"]) == 3
    assert samples["validation"][-1] == extra["train.validation"]


def test_other_seeds_use_the_best_rate_and_budget(whole: list[Record]) -> None:
    for variant in ("full", "sliding_window:window=3"):
        rows = [r.row for r in whole if r.row.variant == variant and r.row.status == "ok"]
        first = [row for row in rows if row.extra["train.attempt"] != "best"]
        tried = list_tried([(ATTEMPTS_BY_LABEL[str(row.inputs)], row) for row in first], NAMED)
        best = next(row for row in first if row.extra["train.learning_rate"] == choose_rate(tried).rate)  # type: ignore
        others = [row for row in rows if row.extra["train.attempt"] == "best"]
        assert len(others) == 2
        for row in others:
            assert row.extra["train.learning_rate"] == best.extra["train.learning_rate"]
            assert row.extra["train.budget"] == best.extra["train.budget"]


def test_rows_of_windows_have_the_score_within_their_reach(whole: list[Record]) -> None:
    full, window = (record.row.extra for record in whole[:2])
    assert full["train.reach"] is None
    assert full["train.chance"] < window["train.reach"] < 1  # type: ignore[operator]


# -- earlier rows ----------------------------------------------------------------------------------------------------


def _case(label: str, text: str = TEXT, **changed: Any) -> Case:
    return next(c for c in tiny_suites.plan(text, variants=["full"], **changed) if c.group.config.inputs == label)


def test_earlier_rows_have_the_same_mechanism_and_keys(tmp_path: Path) -> None:
    _run(tmp_path)
    scratch.set_folder(tmp_path)
    earlier = list_earlier(NAMED, _case("seed 1, best"))
    assert {row.variant for _, row in earlier} == {"full"}
    assert all(row.inputs == attempt.label for attempt, row in earlier)
    before = list(ATTEMPTS_BY_LABEL)[: list(ATTEMPTS_BY_LABEL).index("seed 1, best")]
    assert [attempt.label for attempt, _ in earlier] == before  # not the later ones, which depend on it
    for changed in ({"steps": 4}, {"pairs": 1}, {"test_len": [8]}):
        assert list_earlier(NAMED, _case("seed 1, best", keys=changed)) == []
    assert list_earlier(NAMED, _case("seed 1, best", TEXT.replace("threads = [1]", "threads = [2]"))) == []
    scratch.set_folder(None)
    assert list_earlier(NAMED, _case("seed 1, best")) == []


def test_resumed_runs_have_the_same_records(tmp_path: Path, whole: list[Record]) -> None:
    for stop in (3, 8):
        with pytest.raises(KeyboardInterrupt):
            _run(tmp_path, resume=True, progress=_interrupt_after(stop))
        scratch.set_folder(None)  # as in a new process
    _run(tmp_path, resume=True)
    assert tiny.make_comparable(read(tmp_path)) == tiny.make_comparable(whole)


def _interrupt_after(count: int) -> Any:
    def progress(record: Record, done: int, total: int) -> None:
        if done == count:
            raise KeyboardInterrupt

    return progress


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [label for label in ATTEMPTS_BY_LABEL if "rate" in label])
@pytest.mark.sampled(3)
def test_attempts_after_one_that_is_retried_are_decided_again(
    label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[Record]
) -> None:
    """Those that would be the same keep their rows, and are not trained again."""
    train, trained, fails = learning._train, list[str](), True

    def refuse(case: Case, row: Any, learner: Any, setup: Any, report_stage: Any) -> Record:
        if fails and case.group.config.inputs == label:
            raise RuntimeError("its process ended")
        trained.append(case.key)
        return train(case, row, learner, setup, report_stage)

    monkeypatch.setattr(learning, "_train", refuse)
    failed = _run(tmp_path).failed
    before, fails = {record.row.case_key: record.row for record in read(tmp_path)}, False
    trained.clear()
    assert _run(tmp_path, resume=True, retry_failed=True).failed == 0
    records = {record.row.case_key: record for record in read(tmp_path)}
    assert tiny.make_comparable(records[r.row.case_key] for r in whole) == tiny.make_comparable(whole)
    replaced = {key for key, record in records.items() if record.row.run_id != before[key].run_id}
    assert set(trained) == {key for key in replaced if records[key].row.status == "ok"}
    assert failed <= len(trained) < sum(record.row.status == "ok" for record in whole)


def test_a_mechanism_that_lacks_a_trait_is_unsupported_with_the_reason() -> None:
    (record,) = measure_cases(tiny_suites.plan(TEXT, variants=["linformer"])[:1])
    assert record.row.status == "unsupported"
    assert record.row.reason == "Decoder needs a mechanism that takes causal masks; linformer: no causal masks"


def test_a_nan_loss_is_invalid() -> None:
    nan = tiny_suites.register_modified("zz_nan", lambda out: out * float("nan"))
    (record,) = measure_cases(tiny_suites.plan(TEXT, variants=[nan])[:1])
    assert (record.row.status, record.row.extra) == ("invalid", {})
    assert record.row.reason == "the loss is nan at step 1, at learning rate 0.001"


def test_a_full_disk_fails_the_case_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[Record]
) -> None:
    write, full = durable._write, True

    def refuse(file: int, data: Any, **options: Any) -> None:
        if full and len(data) > 20_000:  # rows are smaller
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, data, **options)

    monkeypatch.setattr(durable, "_write", refuse)
    text = TEXT.replace("steps ", "learning_rates = [1e-3]\nsteps ")
    outcome = _run(tmp_path, text)
    assert outcome.statuses["error"] == 2
    reason = read(tmp_path)[0].row.reason or ""
    assert f"{CHECKPOINT_FOLDER}/" in reason
    assert "No space left on device; free some space and continue with --resume --retry-failed" in reason
    assert "\n" not in reason
    full = False
    assert _run(tmp_path, text, resume=True, retry_failed=True).failed == 0
    assert tiny.make_comparable(read(tmp_path))[0][1] == tiny.make_comparable(whole)[0][1]


def test_a_failed_case_keeps_its_checkpoint_until_it_is_retried(tmp_path: Path, whole: list[Record]) -> None:
    text = TEXT.replace("steps ", "checkpoint_s = 1e-9\nlearning_rates = [1e-3]\nsteps ")
    splits: list[str] = []

    def draw(*args: Any) -> Any:
        splits.append(args[-1])
        if splits == ["train", "validation"] * 2:
            raise RuntimeError("the second validation failed")
        return NAMED.draw(*args)

    task_registry._registered.pop("tiny")
    register_task(make_task(replace(NAMED, draw=draw)))
    _run(tmp_path, text)
    assert [r.row.status for r in read(tmp_path)[:2]] == ["error", "ok"]
    assert len(list((tmp_path / CHECKPOINT_FOLDER).iterdir())) == 1
    assert _run(tmp_path, text, resume=True, retry_failed=True).failed == 0
    assert not (tmp_path / CHECKPOINT_FOLDER).exists()
    records = read(tmp_path)
    assert tiny.make_comparable(records)[0][1] == tiny.make_comparable(whole)[0][1]
    steps = sum(record.row.steps or 0 for record in records)
    assert splits.count("train") == steps + 1  # only the second step was repeated
