"""The plan: which cases a suite and the command line's overrides come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny_suites
from tiny_suites import SEVERAL, values_of

from efficient_attn.bench.case import group_cases
from efficient_attn.bench.case_config import CaseConfig
from efficient_attn.bench.planning.plan import Overrides
from efficient_attn.bench.task_registry import find_task, register_task
from efficient_attn.errors import UsageError
from efficient_attn.tasks import TABLE


def test_every_combination_is_a_case() -> None:
    cases = tiny_suites.plan(SEVERAL)
    assert len({c.key for c in cases}) == len(cases) == 3 * 2 * 4
    assert values_of(cases, "seq_len") == [16, 32, 64]
    assert {c.group.baseline for c in cases} == {"full"}
    assert all(c.keys.peak_memory for c in cases)


def test_the_mechanisms_of_one_cell_stand_together() -> None:
    found = group_cases(tiny_suites.plan(SEVERAL))
    assert len(found) == 6
    names = ["full", "sliding_window:window=4", "sliding_window:window=8", "linear"]
    assert all([c.variant for c in members] == names for _, members in found)
    assert all(c.group == cell for cell, members in found for c in members)


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("seq_len", [24, 48]),
        ("causal", [True]),
        ("dtype", ["float64", "bfloat16"]),
        ("device", ["cuda"]),
        ("threads", [2, 1]),
        ("batch", [3]),
        ("heads", [4, 6]),
        ("kv_heads", [1, 2]),
        ("head_dim", [16]),
        ("fill", ["half", "packed"]),
    ],
)
def test_an_override_replaces_an_axis_and_no_other(axis: str, values: list[Any]) -> None:
    before, after = tiny_suites.plan(SEVERAL), tiny_suites.plan(SEVERAL, axes={axis: values})
    assert values_of(after, axis) == values
    others = {"seq_len", "causal", "dtype", "device", "threads", "batch", "heads", "kv_heads", "head_dim", "fill"} - {
        axis
    }
    if axis == "heads":
        others.discard("kv_heads")  # it follows heads
    if axis == "device":
        others.discard("dtype")  # a GPU's default is another one
    if axis == "device":
        others.discard("dtype")  # the default of a GPU is another one
    for other in others:
        assert values_of(after, other) == values_of(before, other)


def test_a_value_that_is_given_twice_counts_once() -> None:
    assert values_of(tiny_suites.plan(SEVERAL, axes={"seq_len": [16, 16]}), "seq_len") == [16]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["full"], ["full"]),
        (["linear", "full"], ["linear", "full"]),
        (["sliding_window"], ["sliding_window:window=4", "sliding_window:window=8"]),  # by name: as the suite has them
        (["sliding_window:window=8"], ["sliding_window:window=8"]),  # by spec
        (["sliding_window:window=5"], ["sliding_window:window=5"]),  # one that the suite does not have
        (["mqa"], ["mqa"]),
        (["full", "full"], ["full"]),
        (["sliding_window:window=9|sliding_window:window=7"], ["sliding_window:window=7|sliding_window:window=9"]),
    ],
)
def test_variants_are_chosen_by_name_by_spec_or_from_elsewhere(wanted: list[str], found: list[str]) -> None:
    assert list(dict.fromkeys(c.variant for c in tiny_suites.plan(SEVERAL, variants=wanted))) == found


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("ful", "did you mean 'full'"),
        ("sliding_window:windw=4", "did you mean 'window'"),
        ("sliding_window:window=few", "window='few'"),
        ("sliding_window:window=-1", "window"),
        ("full:4", "expected option=value"),
        ("linear|full", "only patterns"),
        ("gqa:kv_heads=3", "divide"),
    ],
)
def test_variants_that_do_not_exist_are_refused_with_their_place(wanted: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        tiny_suites.plan(SEVERAL, variants=[wanted])
    assert str(caught.value).startswith("trial, part 'all': ")


def test_quick_takes_two_lengths_and_three_rounds() -> None:
    cases = tiny_suites.plan(SEVERAL, quick=True)
    assert values_of(cases, "seq_len") == [16, 32]
    assert values_of(cases, "rounds") == [3]
    assert values_of(cases, "budget_s") == [1.0]
    assert values_of(tiny_suites.plan(SEVERAL, quick=True, axes={"seq_len": [8, 9, 10]}), "seq_len") == [8, 9, 10]


def test_the_seed_can_be_replaced() -> None:
    assert values_of(tiny_suites.plan(SEVERAL), "seed") == [0]
    assert values_of(tiny_suites.plan(SEVERAL, seed=7), "seed") == [7]


# -- baselines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "wanted", "found"),
    [
        ("full", [], "full"),
        ("sliding_window:window=8", [], "sliding_window:window=8"),
        ("sliding_window", [], "sliding_window:window=4"),  # by name: the first
        ("full", ["linear"], None),  # not among those chosen: nothing to compare with
    ],
)
def test_the_baseline_is_a_variant_that_runs(named: str, wanted: list[str], found: str | None) -> None:
    cases = tiny_suites.plan(SEVERAL.replace('= "full"', f'= "{named}"', 1), variants=wanted)
    assert values_of(cases, "baseline") == [found]


def test_a_baseline_that_is_no_variant_is_refused() -> None:
    with pytest.raises(UsageError, match="trial: unknown baseline 'fulll'; did you mean 'full'"):
        tiny_suites.plan(SEVERAL.replace('= "full"', '= "fulll"', 1))


@pytest.mark.parametrize("order", [[2, 4, 1], [4, 2, 1], [1, 2, 4]])
def test_of_several_key_value_heads_the_most_are_the_baselines(order: list[int]) -> None:
    text = SEVERAL.replace("heads = 2", "heads = 4")
    cases = tiny_suites.plan(text, axes={"kv_heads": order, "seq_len": [16], "causal": [True]})
    assert len(group_cases(cases)) == 1
    assert values_of(cases, "kv_heads") == order
    assert [(c.variant, c.kv_heads) for c in cases if c.is_baseline] == [("full", 4)]
    assert all(c.group.baseline_kv_heads == 4 for c in cases)


def test_the_baselines_heads_are_its_own_not_those_of_others() -> None:
    text = SEVERAL.replace('baseline = "full"', 'baseline = "mqa"') + '[[variant]]\nname = "mqa"\n'
    cases = tiny_suites.plan(text, axes={"seq_len": [16], "causal": [True]})
    assert [(c.variant, c.kv_heads) for c in cases if c.is_baseline] == [("mqa", 1)]


def test_fewer_heads_to_compare_with_are_another_case() -> None:
    """Its speedup is over another case: one that is there already must be measured again."""
    text = SEVERAL.replace("heads = 2", "heads = 4")
    one, other = (tiny_suites.plan(text, axes={"kv_heads": heads}, variants=["full"]) for heads in ([4, 1], [2, 1]))
    alone = [{c.key for c in cases if c.kv_heads == 1} for cases in (one, other)]
    assert alone[0].isdisjoint(alone[1])


def test_a_suite_may_have_no_baseline() -> None:
    assert values_of(tiny_suites.plan(SEVERAL.replace('baseline = "full"', "")), "baseline") == [None]


# -- what is planned once, and what is left out --------------------------------------------------------------------


@pytest.mark.parametrize("twin", ['name = "full"', 'name = "sliding_window:window=4"'])
def test_a_case_that_is_planned_twice_is_refused(twin: str) -> None:
    with pytest.raises(UsageError, match="the same case"):
        tiny_suites.plan(SEVERAL + f"[[variant]]\n{twin}\n")


def test_a_default_that_is_written_out_is_the_same_case() -> None:
    text = tiny_suites.TINY + '[[variant]]\nname = "sliding_window"\n[[variant]]\nname = "sliding_window:window=128"\n'
    with pytest.raises(UsageError, match="sliding_window:window=128 and sliding_window are the same case"):
        tiny_suites.plan(text)


def test_options_of_a_union_belong_into_its_name() -> None:
    variant = '[[variant]]\nname = "sliding_window:window=1|sliding_window:window=2"\noptions = { window = 3 }\n'
    with pytest.raises(UsageError, match="options of a union belong to its parts"):
        tiny_suites.plan(tiny_suites.TINY + variant)


def test_key_value_heads_come_from_the_cell_the_mechanism_or_the_heads() -> None:
    def heads(variant: str, **axes: Any) -> int:
        return tiny_suites.case(variant, heads=4, **axes).kv_heads

    assert heads("full") == 4
    assert heads("mqa") == 1
    assert heads("gqa:kv_heads=2") == 2
    assert heads("full", kv_heads=2) == 2
    with pytest.raises(UsageError, match="key-value heads"):
        heads("mqa", kv_heads=2)


def test_gpus_compute_in_half_precision_unless_the_suite_says_otherwise() -> None:
    both = {"device": ["cpu", "cuda"]}
    found = {(c.group.config.device, c.group.config.dtype) for c in tiny_suites.plan(axes=both)}
    assert found == {("cpu", "float32"), ("cuda", "float16"), ("cuda", "bfloat16")}
    assert {c.group.config.dtype for c in tiny_suites.plan(axes=both | {"dtype": ["float32"]})} == {"float32"}


def test_rounds_are_spread_over_processes_and_bounded() -> None:
    (case,) = tiny_suites.plan(tiny_suites.TINY.replace("max_rounds=2\n", ""))
    assert (case.group.sampling.rounds, case.group.sampling.max_rounds, case.group.sampling.processes) == (2, 6, 2)
    with pytest.raises(UsageError, match=r"max_rounds \(2\) is less than rounds \(3\)"):
        tiny_suites.plan(tiny_suites.TINY.replace("rounds   = 2", "rounds   = 3"))


def test_caches_and_compilation_are_axes_that_the_key_shows() -> None:
    cases = tiny_suites.plan(axes={"cache": ["warm", "cold"], "compiled": [False, True]})
    assert len({c.key for c in cases}) == 4
    ends = [c.key.split("#")[0].rpartition("-t1-")[2] for c in cases]
    assert ends == ["all", "all-compiled", "all-cold", "all-cold-compiled"]


def test_how_full_rows_are_is_an_axis_that_the_key_shows_where_they_are_not() -> None:
    cases = tiny_suites.plan(axes={"fill": ["full", "half", "drawn", "packed"]})
    assert [c.key.split("#")[0].rpartition("-t1-")[2] for c in cases] == ["all", "all-half", "all-drawn", "all-packed"]
    assert len({c.digest for c in cases}) == 4


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_steps_are_taken_by_full_rows_only(mode: str) -> None:
    with pytest.raises(
        UsageError, match=f"trial, part 'all': {mode}: rows decode one step at a time, so fill can only"
    ):
        tiny_suites.case("full", mode, fill="half")


def test_what_is_asked_for_by_name_stands_where_its_key_value_heads_fit() -> None:
    text = tiny_suites.TINY.replace("seq_len = [16]", "seq_len = [16], kv_heads = [2, 1]")
    cases = tiny_suites.plan(text, variants=["full", "mqa"])
    assert {(c.variant, c.kv_heads) for c in cases} == {("full", 2), ("full", 1), ("mqa", 1)}
    with pytest.raises(UsageError, match="no part has key-value heads that mqa supports"):
        tiny_suites.plan(text.replace("[2, 1]", "[2]"), variants=["mqa"])
    with pytest.raises(UsageError, match="one key-value head"):  # a suite's own has to fit
        tiny_suites.plan(text + '[[variant]]\nname = "mqa"\n')


def test_a_suite_that_says_windows_runs_parts() -> None:
    """The backend was called so once; both ran the same code."""
    text = tiny_suites.TINY + '[[variant]]\nname = "sliding_window"\noptions = { window = 4 }\nbackend = "windows"\n'
    (case,) = [c for c in tiny_suites.plan(text) if c.family == "sparse"]
    assert (case.variant, case.backend) == ("sliding_window:window=4:backend=parts", "parts")
    assert case.create().backend == "parts"
    (asked,) = tiny_suites.plan(variants=["sliding_window:window=4:backend=windows"])
    assert asked.key.partition("#")[0] == case.key.partition("#")[0]


def test_what_is_overridden_is_reported_as_on_the_command_line() -> None:
    assert Overrides().described == ()
    said = Overrides(
        axes={"seq_len": [64, 128], "causal": [True]},
        variants=["full", "linear"],
        keys={"activations": "my.npz", "vocabulary": 8, "names": ["a", "b"]},
        flags={"activations": "--activations"},
        seed=0,
        quick=True,
    )
    assert said.described == (
        *("--quick", "--variant full,linear", "--seq-len 64,128", "--causal true", "--seed 0"),
        *("--activations my.npz", "--set vocabulary=8", "--set names=a,b"),
    )


def test_a_trial_has_the_axes_that_the_suite_says_for_it() -> None:
    text = tiny_suites.TINY.replace("[[variant]]", "quick = { seq_len = [8] }\n[[variant]]", 1)
    assert values_of(tiny_suites.plan(text), "seq_len") == [16]
    assert values_of(tiny_suites.plan(text, quick=True), "seq_len") == [8]
    assert values_of(tiny_suites.plan(text, quick=True, axes={"seq_len": [9]}), "seq_len") == [9]
    with pytest.raises(UsageError, match="quick: unknown key 'seq_length'; did you mean 'seq_len'"):
        tiny_suites.plan(text.replace("{ seq_len = [8]", "{ seq_length = [8]"))


TWO_TASKS = tiny_suites.TINY.replace('"forward"', '"forward", "fidelity"')


def test_of_a_suites_tasks_only_those_are_planned_that_are_asked_for() -> None:
    assert {case.group.task for case in tiny_suites.plan(TWO_TASKS)} == {"speed", "fidelity"}
    only = tiny_suites.plan(TWO_TASKS, tasks=["fidelity"])
    assert {case.group.task for case in only} == {"fidelity"}
    assert only == [case for case in tiny_suites.plan(TWO_TASKS) if case.group.task == "fidelity"]
    assert tiny_suites.plan(TWO_TASKS, tasks=["fidelity", "speed"]) == tiny_suites.plan(TWO_TASKS)
    assert Overrides(tasks=["fidelity", "speed"]).described == ("--task fidelity,speed",)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fidelty", r"--task: trial: unknown task 'fidelty'; did you mean 'fidelity'\?"),
        ("retrieval", r"--task: trial: unknown task 'retrieval' \(choices: fidelity, speed\)"),
    ],
)
def test_a_task_that_the_suite_does_not_ask_for_is_refused(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tiny_suites.plan(TWO_TASKS, tasks=["speed", name])


def test_tasks_are_reported_whether_a_trial_is_enough() -> None:
    with tiny_suites.isolated_registry():
        told: list[bool] = []

        def plan(asked: Any) -> Any:
            told.append(asked.quick)
            yield asked.cell(CaseConfig(seq_len=8, max_len=8)), None

        register_task(replace(find_task(TABLE["speed"]), name="mine", words=("mine",), plan=plan))
        for quick in (False, True):
            tiny_suites.plan(tiny_suites.TINY.replace('"forward"', '"mine"'), quick=quick)
    assert told == [False, True]
