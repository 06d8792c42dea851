"""Uptraining: conversion of trained models, planned attempts, rows, and interrupted runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_suites
import tiny_training as tiny
import torch

from efficient_attn.bench.measuring import scratch
from efficient_attn.bench.run import RunOutcome
from efficient_attn.bench.task_registry import register_task
from efficient_attn.errors import UnsupportedError, UsageError
from efficient_attn.results.checkpoints import MODEL_SUFFIX, list_files
from efficient_attn.results.compression import compress_rows
from efficient_attn.results.rows import Record, Row
from efficient_attn.results.store import read
from efficient_attn.tasks.training import plateau
from efficient_attn.tasks.training.learners import make_learner
from efficient_attn.tasks.training.learning import identify_chain, make_task
from efficient_attn.tasks.training.uptraining import SAME_REASON, convert_model, count_uptraining_steps

TEXT = """
title    = "Tiny uptraining"
measure  = ["tiny"]
baseline = "full"
axes     = { seq_len = [16], threads = [1] }
heads    = 4
vocab    = 32
pairs    = 2
examples = 16
steps    = 10
seeds    = 2
rates    = { full = 4e-3, "gqa:kv_heads=2" = 2e-3, mqa = 2e-3 }
uptrained_from = "full"
shares   = [0.0, 0.3]
variant  = [{ name = "full" }, { name = "gqa:kv_heads=2" }, { name = "mqa" }]
"""
NAMED = tiny.NAMED


@pytest.fixture(autouse=True)
def _registered_task() -> Iterator[None]:
    with tiny.registered():
        yield


def _run(folder: Path, text: str = TEXT, **options: Any) -> RunOutcome:
    return tiny.run_inline(folder, text, **options)


def _comparable(records: list[Record]) -> list[Any]:
    return tiny.make_comparable(sorted(records, key=lambda record: record.row.case_key))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run."""
    path = tmp_path_factory.mktemp("whole") / "out"
    with tiny.registered():
        assert _run(path).failed == 0
    scratch.set_folder(None)
    return path


def _find(folder: Path, variant: str, inputs: str) -> Row:
    (row,) = (r.row for r in read(folder) if (r.row.variant, r.row.inputs) == (variant, inputs))
    return row


# -- conversion ------------------------------------------------------------------------------------------------------


def _make_models(variant: str, *, heads: int = 4) -> tuple[Any, Any]:
    keys = tiny.keys(heads=heads, uptrained_from="full")
    original, model = (make_learner(NAMED, keys, v, length=17, seed=0).model for v in ("full", variant))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in original.parameters():  # biases are zero at first
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return original, model


@pytest.mark.parametrize(("variant", "groups"), [("gqa:kv_heads=2", [[0, 1], [2, 3]]), ("mqa", [[0, 1, 2, 3]])])
@pytest.mark.parametrize("how", ["mean", "first"])
def test_heads_of_a_group_are_averaged_or_the_first_is_kept(variant: str, groups: list[list[int]], how: Any) -> None:
    original, model = _make_models(variant)
    convert_model(original, model, how, seed=0)
    before, after = original.state_dict(), model.state_dict()
    assert before.keys() == after.keys()
    pooled = {name for name in before if ".k_proj." in name or ".v_proj." in name}
    assert {name.rpartition(".")[2] for name in pooled} == {"weight", "bias"}
    for name in pooled:
        heads = before[name].chunk(4)
        want = [sum(heads[i] for i in g) / len(g) if how == "mean" else heads[g[0]] for g in groups]
        torch.testing.assert_close(after[name], torch.cat(want))  # type: ignore[arg-type]
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - pooled)


def test_random_heads_depend_on_the_seed_and_nothing_else_changes() -> None:
    original, model = _make_models("mqa")
    states = []
    for seed in (0, 0, 1):
        convert_model(original, model, "random", seed=seed)
        states.append({name: x.clone() for name, x in model.state_dict().items()})
    drawn = [name for name in states[0] if ".k_proj.weight" in name or ".v_proj.weight" in name]
    for name in drawn:
        assert torch.equal(states[0][name], states[1][name])
        assert not torch.equal(states[0][name], states[2][name])
    rest = [name for name in states[0] if ".k_proj." not in name and ".v_proj." not in name]
    assert all(torch.equal(original.state_dict()[name], states[2][name]) for name in rest)


def test_equal_heads_give_the_same_predictions() -> None:
    original, model = _make_models("mqa")
    with torch.no_grad():
        for name, x in original.named_parameters():
            if ".k_proj." in name or ".v_proj." in name:
                x.copy_(x.chunk(4)[0].repeat(4, *[1] * (x.ndim - 1)))
    tokens = torch.arange(16)[None]
    for how in ("mean", "first"):
        convert_model(original, model, how, seed=0)
        torch.testing.assert_close(model(tokens), original(tokens), rtol=1e-4, atol=1e-4)
    convert_model(original, model, "random", seed=0)
    assert not torch.allclose(model(tokens), original(tokens), atol=1e-2)


def test_mechanisms_with_other_parameters_are_unsupported() -> None:
    original, model = _make_models("mla")
    with pytest.raises(UnsupportedError, match=r"no conversion of the original has the parameter blocks\.0\.attention"):
        convert_model(original, model, "mean", seed=0)


def test_a_share_has_at_least_one_step_unless_it_is_zero() -> None:
    assert [count_uptraining_steps(share, 300) for share in (0.0, 0.001, 0.01, 0.05, 1.0)] == [0, 1, 3, 15, 300]


# -- the plan --------------------------------------------------------------------------------------------------------


def test_seeds_shares_and_conversions_come_after_all_trainings() -> None:
    cases = tiny_suites.plan(TEXT, variants=["full", "mqa"])
    labels = list(dict.fromkeys(case.group.config.inputs for case in cases))
    assert labels[:4] == ["seed 0, given", "seed 1, best", "seed 2, more", "seed 3, more"]
    ways = ("mean", "first", "random")
    want = [f"seed {n}, uptrain, {way}, share {share}" for n in (0, 1) for share in ("0", "0.3") for way in ways]
    assert labels[4:] == want
    quick = tiny_suites.plan(TEXT, quick=True, variants=["full", "mqa"])
    assert {case.group.config.inputs for case in quick} == {"seed 0, given", *want[:6]}


def test_trainings_do_not_depend_on_the_shares() -> None:
    usual, other = (
        {c.group.config.inputs + str(c.variant): c.key for c in tiny_suites.plan(text)}
        for text in (TEXT, TEXT.replace("0.3]", "0.3, 0.5]\nconversions = ['mean']"))
    )
    same = {name for name in usual.keys() & other.keys() if usual[name] == other[name]}
    assert same == {name for name in usual if "uptrain" not in name}
    without = tiny_suites.plan(TEXT[: TEXT.index("uptrained")] + TEXT[TEXT.index("variant") :])
    assert {case.key for case in without}.isdisjoint(usual.values())  # their models have other sizes


def test_uptraining_waits_for_the_original_only() -> None:
    chains: dict[Any, set[str]] = {}
    for case in tiny_suites.plan(TEXT):
        kind = "uptrain" if "uptrain" in case.group.config.inputs else "train"
        chains.setdefault(identify_chain(case), set()).add(f"{kind} {case.variant}")
    uptrainings = {f"uptrain {name}" for name in ("full", "gqa:kv_heads=2", "mqa")}
    assert sorted(chains.values(), key=len) == [{"train gqa:kv_heads=2"}, {"train mqa"}, {"train full", *uptrainings}]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"full"\nshares',
            '"fulll"\nshares',
            "tiny: uptrained_from is fulll, the variants are full, .*; add it to them",
        ),
        ('uptrained_from = "full"\n', "", "tiny: shares is used with uptrained_from only; set it or remove this key"),
        ("0.3]", "1.5]", "shares.1: Input should be less than or equal to 1"),
        ("0.3]", "0.3, 0.3]", "shares: 0.3 occurs twice; remove one"),
        ("0.3]", "0.3]\nconversions = ['median']", "unknown value 'median'; did you mean 'mean'"),
        ("0.3]", "0.3]\nconversions = []", "conversions"),
    ],
)
def test_invalid_keys_are_refused_when_planning(old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny_suites.plan(TEXT.replace(old, new))


def test_the_original_has_to_be_among_the_variants_that_run() -> None:
    with pytest.raises(UsageError, match="uptrained_from is full, the variants are mqa; add it to them"):
        tiny_suites.plan(TEXT, variants=["mqa"])


# -- rows ------------------------------------------------------------------------------------------------------------


def test_models_are_converted_as_they_are_and_trained_for_a_share(folder: Path) -> None:
    original = _find(folder, "full", "seed 1, best")
    for variant in ("gqa:kv_heads=2", "mqa"):
        scratch_row = _find(folder, variant, "seed 1, best")
        for conversion in ("mean", "first", "random"):
            for share in (0.0, 0.3):
                row = _find(folder, variant, f"seed 1, uptrain, {conversion}, share {share:g}")
                extra = row.extra
                steps = round(share * (original.steps or 0))
                assert (row.status, row.seed, row.steps, extra["train.budget"]) == ("ok", 1, steps, steps)
                assert (extra["train.conversion"], extra["train.share"]) == (conversion, share)
                assert extra["train.original"] == original.extra["train.score"]
                assert extra["train.learning_rate"] == 4e-3  # the original's
                assert row.stop_reason == plateau.UPTRAINED
                assert row.parameters == scratch_row.parameters < (original.parameters or 0)
                assert extra["train.size"] == scratch_row.extra["train.size"] == original.extra["train.size"]


def test_the_original_itself_is_trained_further_once(folder: Path) -> None:
    original = _find(folder, "full", "seed 0, given")
    unchanged = _find(folder, "full", "seed 0, uptrain, mean, share 0")
    assert unchanged.extra["train.conversion"] == "none"
    for name in ("train.score", "train.validation", "train.low", "train.high"):
        assert unchanged.extra[name] == original.extra[name]
    assert unchanged.loss == original.loss
    assert _find(folder, "full", "seed 0, uptrain, mean, share 0.3").loss != original.loss
    skipped = _find(folder, "full", "seed 0, uptrain, first, share 0.3")
    assert (skipped.status, skipped.reason) == ("skipped", SAME_REASON)


@pytest.mark.sampled(4)
def test_interrupted_runs_give_the_same_bits(folder: Path, tmp_path: Path) -> None:
    whole = read(folder)
    for stop in (3, 11, 15, 16, 22, 30):

        def interrupt(record: Record, done: int, total: int, stop: int = stop) -> None:
            if done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            _run(tmp_path / "out", resume=True, progress=interrupt)
    assert _run(tmp_path / "out", resume=True).failed == 0
    assert _comparable(read(tmp_path / "out")) == _comparable(whole)


def test_models_are_kept_until_the_run_is_compressed(folder: Path, tmp_path: Path) -> None:
    text = TEXT.replace("shares   = [0.0, 0.3]", "shares = [0.0]\nconversions = ['mean']")
    assert _run(tmp_path / "out", text).failed == 0
    assert all(path.name.endswith(MODEL_SUFFIX) for path in list_files(tmp_path / "out"))
    assert len(list_files(tmp_path / "out")) == len(list_files(folder))  # of the original only, one for each seed
    compress_rows(tmp_path / "out")
    assert list_files(tmp_path / "out") == []


@pytest.mark.sampled(4)
def test_without_the_originals_model_uptraining_fails(folder: Path, tmp_path: Path) -> None:
    def stop(record: Record, done: int, total: int) -> None:
        if "uptrain" in record.row.inputs:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        _run(out, progress=stop)
    models = {path: path.read_bytes() for path in list_files(out)}  # not all of them are of the selected rate
    for path, data in models.items():
        path.write_bytes(data[:-1])
    assert _run(out, resume=True).failed > 0
    reasons = {record.row.reason or "" for record in read(out) if record.row.status == "error"}
    assert reasons
    assert all("MissingOriginal: " in text and text.endswith("; run again with another --out") for text in reasons)
    for path, data in models.items():
        path.write_bytes(data)
    assert _run(out, resume=True, retry_failed=True).failed == 0
    assert _comparable(read(out)) == _comparable(read(folder))


@pytest.mark.sampled(4)
def test_uptraining_is_repeated_after_its_original_failed(tmp_path: Path) -> None:
    fails = True

    def draw(keys: Any, length: int, count: int, generator: Any, split: Any) -> Any:
        if fails:
            raise RuntimeError("not now")
        return NAMED.draw(keys, length, count, generator, split)

    with tiny_suites.isolated_registry():
        tiny_suites.task_registry._registered.pop("tiny")
        register_task(make_task(replace(NAMED, draw=draw)))
        text = TEXT.replace("seeds    = 2", "seeds = 1")
        _run(tmp_path / "out", text)
        rows = [record.row for record in read(tmp_path / "out") if "uptrain" in record.row.inputs]
        (reason,) = {row.reason or "" for row in rows if row.status == "error"}
        assert reason.startswith("MissingOriginal: the training of full, seed 0 did not come to an end; continue with")
        fails = False
        assert _run(tmp_path / "out", text, resume=True, retry_failed=True).failed == 0
