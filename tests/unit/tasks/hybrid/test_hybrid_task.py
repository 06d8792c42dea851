"""The task hybrid: planned stages, and a run of a tiny model compared with swaps by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_suites

pytest.importorskip("transformers")

import torch
from tiny_models import llama, save_tiny

from efficient_attn.bench import run as run_module
from efficient_attn.bench import session as session_module
from efficient_attn.bench.measuring import scratch
from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.errors import UsageError
from efficient_attn.integrations.bundled import load
from efficient_attn.integrations.segments import cut_segment
from efficient_attn.integrations.swapping import swap
from efficient_attn.integrations.texts import Text
from efficient_attn.results.rows import Record
from efficient_attn.results.store import read

LAYERS, CHOSEN_AT, LENGTH = 3, 40, 72
SPEC = "attention_sinks:n_sink=1:window=6"
SUITE = f"""
title    = "trial"
measure  = ["hybrid"]
rounds   = 2
limits   = [0.005, 0.5]
axes     = {{ seq_len = [{LENGTH}], threads = [1] }}
variant  = [{{ name = "{SPEC}" }}]
"""


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session_module, "_inspect", lambda device, planned, conditions: {"device": device})
    with tiny_suites.isolated_registry():
        yield
    scratch.set_folder(None)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("hybrid")
    torch.manual_seed(3)
    model = save_tiny(folder / "tiny", llama, num_hidden_layers=LAYERS)
    words = "four score and seven years ago our fathers brought forth on this continent a new nation. "
    (folder / "mine.txt").write_text("".join(f"\f{i}\n{words[5 * i :] * 2}" for i in range(6)))
    return {"model": str(model), "text": str(folder / "mine.txt"), "chosen_at": CHOSEN_AT}


@pytest.fixture(scope="module")
def folder(keys: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("run") / "out"
    with pytest.MonkeyPatch.context() as patch, tiny_suites.isolated_registry():
        patch.setattr(session_module, "_inspect", lambda device, planned, conditions: {"device": device})
        loaded = tiny_suites.parse(SUITE)
        run_module.run(loaded, make_plan(loaded, Overrides(keys=keys)), folder, start_method="inline")
    scratch.set_folder(None)
    return folder


def _find(folder: Path, **columns: Any) -> Record:
    (record,) = (r for r in read(folder) if all(r.row.extra.get(name) == x for name, x in columns.items()))
    return record


def _measure(keys: dict[str, Any], layers: dict[int, str], length: int, number: int) -> float:
    """The loss by hand: a new model, a whole pass, and torch's own cross entropy."""
    loaded = load(keys["model"])
    tokens = cut_segment(loaded, Text.find(keys["text"]), length, number)
    loaded.model.set_attn_implementation("eager")
    if layers:
        swap(loaded.model, layers)
    with torch.inference_mode():
        logits = loaded.model(tokens).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).item()


def test_each_step_and_each_rule_with_its_limits_is_a_group(keys: dict[str, Any]) -> None:
    cases = tiny_suites.plan(SUITE, keys=keys)
    stages = [case.group.config.inputs.rpartition(":")[2] for case in cases]
    assert stages[:LAYERS] == ["step 0", "step 1", "step 2"]
    assert stages[LAYERS:] == [
        *("greedy 0.005", "greedy 0.5", "linear 0.005", "linear 0.5", "spaced 0.005", "spaced 0.5"),
        *("ends 0.005", "ends 0.5", "everywhere", "uniform 0.005", "uniform 0.5"),
    ]
    assert [case.group.config.seq_len for case in cases] == [CHOSEN_AT] * LAYERS + [LENGTH] * 11
    assert len({case.key for case in cases}) == len(cases)


def test_lengths_share_a_choice_and_limits_do_not_change_it(keys: dict[str, Any]) -> None:
    steps = {case.key for case in tiny_suites.plan(SUITE, keys=keys)[:LAYERS]}
    longer = tiny_suites.plan(SUITE.replace(f"[{LENGTH}]", f"[{LENGTH}, 100]"), keys=keys)
    others = tiny_suites.plan(SUITE.replace("[0.005, 0.5]", "[0.1]"), keys=keys)
    assert len(longer) == LAYERS + 2 * 11
    for cases in (longer, others):
        assert steps < {case.key for case in cases}
    assert steps.isdisjoint(case.key for case in tiny_suites.plan(SUITE, keys=keys | {"chosen_at": 41}))


def test_a_quick_run_leaves_out_the_greedy_rule_unless_it_is_the_only_one(keys: dict[str, Any]) -> None:
    cases = tiny_suites.plan(SUITE, keys=keys, quick=True)
    stages = [case.group.config.inputs.rpartition(":")[2] for case in cases]
    assert stages[:2] == ["step 0", "linear 0.005"]
    assert not any(stage.startswith("greedy") for stage in stages)
    assert {case.keys.chosen_at for case in cases} == {CHOSEN_AT // 4}
    only = tiny_suites.plan(SUITE, keys=keys | {"rules": ["greedy"]}, quick=True)
    assert [case.group.config.inputs.rpartition(":")[2] for case in only][LAYERS:] == ["greedy 0.005", "greedy 0.5"]


def test_the_greedy_steps_are_those_of_whole_passes(keys: dict[str, Any], folder: Path) -> None:
    replaced: list[int] = []
    own = sum(_measure(keys, {}, CHOSEN_AT, n) for n in range(2)) / 2
    single = {}
    for number in range(LAYERS):
        losses = {}
        for layer in sorted(set(range(LAYERS)) - set(replaced)):
            swapped = dict.fromkeys([*replaced, layer], SPEC)
            losses[layer] = sum(_measure(keys, swapped, CHOSEN_AT, n) for n in range(2)) / 2
        single = single or {layer: loss - own for layer, loss in losses.items()}
        record = _find(folder, step=number)
        assert record.samples["layers"] == list(losses)
        assert record.samples["losses"] == pytest.approx(list(losses.values()), abs=2e-6)
        best = min(losses, key=losses.__getitem__)
        assert record.row.extra["layer"] == best
        replaced.append(best)
        assert record.row.extra["perplexity"] == pytest.approx(math.exp(losses[best] - own), abs=1e-5)
        assert record.row.extra["alone"] == pytest.approx(math.exp(single[best]), abs=1e-5)
        assert record.row.extra["predicted"] == pytest.approx(math.exp(sum(single[n] for n in replaced)), abs=1e-5)


def test_a_rule_is_verified_on_other_documents(keys: dict[str, Any], folder: Path) -> None:
    record = _find(folder, rule="everywhere")
    swapped = dict.fromkeys(range(LAYERS), SPEC)
    own = [_measure(keys, {}, LENGTH, number) for number in (2, 3)]  # layers were chosen on documents 0 and 1
    losses = [_measure(keys, swapped, LENGTH, number) for number in (2, 3)]
    assert record.samples["own_losses"] == pytest.approx(own, abs=2e-6)
    assert record.samples["losses"] == pytest.approx(losses, abs=2e-6)
    mean = math.exp(sum(a - b for a, b in zip(losses, own, strict=True)) / 2)
    assert record.row.extra["perplexity"] == pytest.approx(mean, abs=1e-5)
    assert record.row.extra["own_layers"] == 0
    last = _find(folder, step=LAYERS - 1).row.extra
    assert (record.row.extra["at_choice"], record.row.extra["predicted"]) == (last["perplexity"], last["predicted"])


def test_costs_of_a_choice(folder: Path) -> None:
    whole, greedy = _find(folder, rule="everywhere").row, _find(folder, rule="greedy", limit=0.005)
    row, extra = greedy.row, greedy.row.extra
    own = int(extra["own_layers"] or 0)
    assert own == LAYERS - 1, "the first step stays within the limit"
    cached = 2 * 2 * 16 * LENGTH * 4  # keys and values of a layer: 2 heads of 16
    assert extra["own_state_bytes"] == whole.extra["own_state_bytes"] == LAYERS * cached
    assert whole.state_bytes is not None
    assert row.state_bytes == own * cached + whole.state_bytes // LAYERS
    assert row.pairs == pytest.approx((own * LENGTH * (LENGTH + 1) / 2 + (whole.pairs or 0)) / LAYERS, abs=1)
    assert (row.peak_memory_bytes or 0) > (whole.peak_memory_bytes or 0) > 0
    assert int(whole.extra["own_peak_bytes"] or 0) > LAYERS * cached
    assert len(greedy.samples["ms"]) == len(greedy.samples["own_ms"]) == 2
    assert row.mode is row.speedup is None, "answers about mechanisms must not read hybrids"
    assert extra["speedup_low"] <= extra["speedup"] <= extra["speedup_high"]  # pyright: ignore[reportOperatorIssue]


def test_uniform_has_as_many_pairs_as_the_greedy_choice(folder: Path) -> None:
    for limit in (0.005, 0.5):
        greedy, uniform = (_find(folder, rule=rule, limit=limit).row for rule in ("greedy", "uniform"))
        assert uniform.extra["own_layers"] == 0
        assert greedy.pairs is not None
        assert uniform.pairs is not None
        assert greedy.pairs - LENGTH < uniform.pairs <= greedy.pairs, "one more key would exceed the greedy choice"
        assert "predicted" not in uniform.extra


def test_a_rule_without_all_steps_is_skipped(keys: dict[str, Any], tmp_path: Path) -> None:
    loaded = tiny_suites.parse(SUITE)
    cases = make_plan(loaded, Overrides(keys=keys))
    run_module.run(loaded, [cases[0], cases[2], cases[3]], tmp_path / "out", start_method="inline")
    first, third, rule = (record.row for record in read(tmp_path / "out"))
    assert (first.status, third.status, rule.status) == ("ok", "skipped", "skipped")
    assert third.reason == rule.reason == "the layers are not known, because step 1 of their choice gave no result"


def test_without_the_greedy_rule_only_single_effects_are_measured(keys: dict[str, Any], tmp_path: Path) -> None:
    loaded = tiny_suites.parse(SUITE.replace("0.005", "0.003"))
    chosen = keys | {"rules": ["linear", "ends", "uniform"], "chosen_at": LENGTH}
    cases = make_plan(loaded, Overrides(keys=chosen))
    stages = [case.group.config.inputs.rpartition(":")[2] for case in cases]
    assert stages == ["step 0", "linear 0.003", "linear 0.5", "ends 0.003", "ends 0.5", "uniform 0.003", "uniform 0.5"]
    run_module.run(loaded, cases, tmp_path / "out", start_method="inline")
    step = _find(tmp_path / "out", step=0)
    single = [loss - float(step.row.extra["own_loss"] or 0) for loss in step.samples["losses"]]
    linear, ends, uniform = (_find(tmp_path / "out", rule=r, limit=0.003).row for r in ("linear", "ends", "uniform"))
    count = int(linear.extra["own_layers"] or 0)
    best = sorted(single)[: LAYERS - count]
    assert 0 < count < LAYERS
    assert linear.extra["predicted"] == pytest.approx(math.exp(sum(best)), abs=1e-6)
    assert sum(best) <= math.log1p(0.003) < sum(sorted(single)[: LAYERS - count + 1])
    assert ends.extra["own_layers"] == count
    assert (linear.pairs or 0) - LENGTH < (uniform.pairs or 0) <= (linear.pairs or 0)


def test_a_mechanism_without_a_budget_has_no_uniform_form(keys: dict[str, Any], tmp_path: Path) -> None:
    loaded = tiny_suites.parse(SUITE.replace(SPEC, "linear").replace("[0.005, 0.5]", "[90]"))
    cases = make_plan(loaded, Overrides(keys=keys | {"rules": ["uniform", "greedy"]}))
    run_module.run(loaded, cases, tmp_path / "out", start_method="inline")
    *_, uniform, greedy = (record.row for record in read(tmp_path / "out"))
    assert (greedy.status, greedy.extra["own_layers"]) == ("ok", 0)
    assert uniform.status == "skipped"
    assert "has no rule that fits it to a budget" in str(uniform.reason)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "minilm"}, "--model minilm: it is an encoder, which has no perplexity"),
        ({"chosen_at": LENGTH + 1}, f"chosen_at={LENGTH + 1} is above seq_len {LENGTH}"),
        ({"limits": [0.1, 0.1]}, "each limit may occur once"),
        ({"limits": [-1.0]}, "limits"),
        ({"rules": ["best"]}, "rules"),
    ],
)
def test_unusable_keys_are_refused_when_planning(keys: dict[str, Any], changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny_suites.plan(SUITE, keys=keys | changed)
