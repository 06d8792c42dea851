"""Planning: the cases of a suite, with and without overrides of the command line."""

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


def test_mechanisms_of_a_group_are_planned_together() -> None:
    groups = group_cases(tiny_suites.plan(SEVERAL))
    assert len(groups) == 6
    names = ["full", "sliding_window:window=4", "sliding_window:window=8", "linear"]
    assert all([c.variant for c in members] == names for _, members in groups)
    assert all(c.group == group for group, members in groups for c in members)


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
def test_an_override_replaces_only_its_axis(axis: str, values: list[Any]) -> None:
    before, after = tiny_suites.plan(SEVERAL), tiny_suites.plan(SEVERAL, axes={axis: values})
    assert values_of(after, axis) == values
    others = {"seq_len", "causal", "dtype", "device", "threads", "batch", "heads", "kv_heads", "head_dim", "fill"} - {
        axis
    }
    if axis == "heads":
        others.discard("kv_heads")  # it follows heads
    if axis == "device":
        others.discard("dtype")  # GPUs have other default dtypes
    for other in others:
        assert values_of(after, other) == values_of(before, other)


def test_repeated_values_of_an_axis_are_planned_once() -> None:
    assert values_of(tiny_suites.plan(SEVERAL, axes={"seq_len": [16, 16]}), "seq_len") == [16]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (["full"], ["full"]),
        (["linear", "full"], ["linear", "full"]),
        (["sliding_window"], ["sliding_window:window=4", "sliding_window:window=8"]),  # by name
        (["sliding_window:window=8"], ["sliding_window:window=8"]),  # by spec
        (["sliding_window:window=5"], ["sliding_window:window=5"]),  # not in the suite
        (["mqa"], ["mqa"]),
        (["full", "full"], ["full"]),
        (["sliding_window:window=9|sliding_window:window=7"], ["sliding_window:window=7|sliding_window:window=9"]),
    ],
)
def test_variants_are_selected_by_name_or_spec(requested: list[str], expected: list[str]) -> None:
    assert list(dict.fromkeys(c.variant for c in tiny_suites.plan(SEVERAL, variants=requested))) == expected


@pytest.mark.parametrize(
    ("requested", "message"),
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
def test_invalid_variants_are_refused_with_the_part(requested: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        tiny_suites.plan(SEVERAL, variants=[requested])
    assert str(error.value).startswith("trial, part 'all': ")


def test_quick_takes_two_lengths_and_three_rounds() -> None:
    cases = tiny_suites.plan(SEVERAL, quick=True)
    assert values_of(cases, "seq_len") == [16, 32]
    assert values_of(cases, "rounds") == [3]
    assert values_of(cases, "budget_s") == [1.0]
    assert values_of(tiny_suites.plan(SEVERAL, quick=True, axes={"seq_len": [8, 9, 10]}), "seq_len") == [8, 9, 10]


def test_the_seed_can_be_overridden() -> None:
    assert values_of(tiny_suites.plan(SEVERAL), "seed") == [0]
    assert values_of(tiny_suites.plan(SEVERAL, seed=7), "seed") == [7]


# -- baselines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("baseline", "requested", "expected"),
    [
        ("full", [], "full"),
        ("sliding_window:window=8", [], "sliding_window:window=8"),
        ("sliding_window", [], "sliding_window:window=4"),  # by name: the first
        ("full", ["linear"], None),  # not selected: there is no baseline
    ],
)
def test_the_baseline_is_one_of_the_planned_variants(baseline: str, requested: list[str], expected: str | None) -> None:
    cases = tiny_suites.plan(SEVERAL.replace('= "full"', f'= "{baseline}"', 1), variants=requested)
    assert values_of(cases, "baseline") == [expected]


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(UsageError, match="trial: unknown baseline 'fulll'; did you mean 'full'"):
        tiny_suites.plan(SEVERAL.replace('= "full"', '= "fulll"', 1))


@pytest.mark.parametrize("order", [[2, 4, 1], [4, 2, 1], [1, 2, 4]])
def test_the_baseline_has_the_most_key_value_heads(order: list[int]) -> None:
    text = SEVERAL.replace("heads = 2", "heads = 4")
    cases = tiny_suites.plan(text, axes={"kv_heads": order, "seq_len": [16], "causal": [True]})
    assert len(group_cases(cases)) == 1
    assert values_of(cases, "kv_heads") == order
    assert [(c.variant, c.kv_heads) for c in cases if c.is_baseline] == [("full", 4)]
    assert all(c.group.baseline_kv_heads == 4 for c in cases)


def test_a_baseline_with_fixed_key_value_heads_keeps_them() -> None:
    text = SEVERAL.replace('baseline = "full"', 'baseline = "mqa"') + '[[variant]]\nname = "mqa"\n'
    cases = tiny_suites.plan(text, axes={"seq_len": [16], "causal": [True]})
    assert [(c.variant, c.kv_heads) for c in cases if c.is_baseline] == [("mqa", 1)]


def test_keys_change_with_the_key_value_heads_of_the_baseline() -> None:
    """A speedup over another baseline must be measured again."""
    text = SEVERAL.replace("heads = 2", "heads = 4")
    four, two = (tiny_suites.plan(text, axes={"kv_heads": heads}, variants=["full"]) for heads in ([4, 1], [2, 1]))
    keys = [{c.key for c in cases if c.kv_heads == 1} for cases in (four, two)]
    assert keys[0].isdisjoint(keys[1])


def test_a_suite_may_have_no_baseline() -> None:
    assert values_of(tiny_suites.plan(SEVERAL.replace('baseline = "full"', "")), "baseline") == [None]


# -- duplicates, derived values, overrides and tasks ---------------------------------------------------------------


@pytest.mark.parametrize("twin", ['name = "full"', 'name = "sliding_window:window=4"'])
def test_duplicate_cases_are_refused(twin: str) -> None:
    with pytest.raises(UsageError, match="the same case"):
        tiny_suites.plan(SEVERAL + f"[[variant]]\n{twin}\n")


def test_explicit_defaults_are_the_same_case() -> None:
    text = tiny_suites.TINY + '[[variant]]\nname = "sliding_window"\n[[variant]]\nname = "sliding_window:window=128"\n'
    with pytest.raises(UsageError, match="sliding_window:window=128 and sliding_window are the same case"):
        tiny_suites.plan(text)


def test_options_next_to_the_name_of_a_union_are_refused() -> None:
    variant = '[[variant]]\nname = "sliding_window:window=1|sliding_window:window=2"\noptions = { window = 3 }\n'
    with pytest.raises(UsageError, match="options of a union belong to its parts"):
        tiny_suites.plan(tiny_suites.TINY + variant)


def test_key_value_heads_come_from_the_axis_the_mechanism_or_heads() -> None:
    def heads(variant: str, **axes: Any) -> int:
        return tiny_suites.case(variant, heads=4, **axes).kv_heads

    assert heads("full") == 4
    assert heads("mqa") == 1
    assert heads("gqa:kv_heads=2") == 2
    assert heads("full", kv_heads=2) == 2
    with pytest.raises(UsageError, match="key-value heads"):
        heads("mqa", kv_heads=2)


def test_default_dtypes_on_gpus_are_half_precision() -> None:
    both = {"device": ["cpu", "cuda"]}
    dtypes = {(c.group.config.device, c.group.config.dtype) for c in tiny_suites.plan(axes=both)}
    assert dtypes == {("cpu", "float32"), ("cuda", "float16"), ("cuda", "bfloat16")}
    with pytest.warns(UserWarning, match="float32 on cuda: efficient kernels are for bfloat16") as warned:
        cases = tiny_suites.plan(axes=both | {"dtype": ["float32", "bfloat16"], "seq_len": [16, 32]})
    assert {c.group.config.dtype for c in cases} == {"float32", "bfloat16"}
    assert len(warned) == 1


def test_max_rounds_has_a_default_and_is_at_least_rounds() -> None:
    (case,) = tiny_suites.plan(tiny_suites.TINY.replace("max_rounds=2\n", ""))
    assert (case.group.sampling.rounds, case.group.sampling.max_rounds, case.group.sampling.processes) == (2, 6, 2)
    with pytest.raises(UsageError, match=r"max_rounds \(2\) is less than rounds \(3\)"):
        tiny_suites.plan(tiny_suites.TINY.replace("rounds   = 2", "rounds   = 3"))


def test_keys_contain_cache_and_compilation() -> None:
    cases = tiny_suites.plan(axes={"cache": ["warm", "cold"], "compiled": [False, True]})
    assert len({c.key for c in cases}) == 4
    ends = [c.key.split("#")[0].rpartition("-t1-")[2] for c in cases]
    assert ends == ["all", "all-compiled", "all-cold", "all-cold-compiled"]


def test_keys_contain_the_fill_of_rows_unless_full() -> None:
    cases = tiny_suites.plan(axes={"fill": ["full", "half", "drawn", "packed"]})
    assert [c.key.split("#")[0].rpartition("-t1-")[2] for c in cases] == ["all", "all-half", "all-drawn", "all-packed"]
    assert len({c.digest for c in cases}) == 4


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_decode_and_prefill_refuse_padded_rows(mode: str) -> None:
    with pytest.raises(
        UsageError, match=f"trial, part 'all': {mode}: rows decode one step at a time, so fill can only"
    ):
        tiny_suites.case("full", mode, fill="half")


def test_requested_variants_are_planned_where_kv_heads_fit() -> None:
    text = tiny_suites.TINY.replace("seq_len = [16]", "seq_len = [16], kv_heads = [2, 1]")
    cases = tiny_suites.plan(text, variants=["full", "mqa"])
    assert {(c.variant, c.kv_heads) for c in cases} == {("full", 2), ("full", 1), ("mqa", 1)}
    with pytest.raises(UsageError, match="no part has key-value heads that mqa supports"):
        tiny_suites.plan(text.replace("[2, 1]", "[2]"), variants=["mqa"])
    with pytest.raises(UsageError, match="one key-value head"):  # an error if the suite itself lists the variant
        tiny_suites.plan(text + '[[variant]]\nname = "mqa"\n')


def test_backend_windows_is_an_alias_of_parts() -> None:
    """`windows` is the former name of the backend."""
    text = tiny_suites.TINY + '[[variant]]\nname = "sliding_window"\noptions = { window = 4 }\nbackend = "windows"\n'
    (case,) = [c for c in tiny_suites.plan(text) if c.family == "sparse"]
    assert (case.variant, case.backend) == ("sliding_window:window=4:backend=parts", "parts")
    assert case.create().backend == "parts"
    (requested,) = tiny_suites.plan(variants=["sliding_window:window=4:backend=windows"])
    assert requested.key.partition("#")[0] == case.key.partition("#")[0]


def test_overrides_are_described_as_command_line_options() -> None:
    assert Overrides().described == ()
    overrides = Overrides(
        axes={"seq_len": [64, 128], "causal": [True]},
        variants=["full", "linear"],
        keys={"activations": "my.npz", "vocabulary": 8, "names": ["a", "b"]},
        flags={"activations": "--activations"},
        seed=0,
        quick=True,
    )
    assert overrides.described == (
        *("--quick", "--variant full,linear", "--seq-len 64,128", "--causal true", "--seed 0"),
        *("--activations my.npz", "--set vocabulary=8", "--set names=a,b"),
    )


def test_quick_uses_the_quick_axes_of_the_suite() -> None:
    text = tiny_suites.TINY.replace("[[variant]]", "quick = { seq_len = [8] }\n[[variant]]", 1)
    assert values_of(tiny_suites.plan(text), "seq_len") == [16]
    assert values_of(tiny_suites.plan(text, quick=True), "seq_len") == [8]
    assert values_of(tiny_suites.plan(text, quick=True, axes={"seq_len": [9]}), "seq_len") == [9]
    with pytest.raises(UsageError, match="quick: unknown key 'seq_length'; did you mean 'seq_len'"):
        tiny_suites.plan(text.replace("{ seq_len = [8]", "{ seq_length = [8]"))


TWO_TASKS = tiny_suites.TINY.replace('"forward"', '"forward", "fidelity"')


def test_only_requested_tasks_are_planned() -> None:
    assert {case.group.task for case in tiny_suites.plan(TWO_TASKS)} == {"speed", "fidelity"}
    only = tiny_suites.plan(TWO_TASKS, tasks=["fidelity"])
    assert {case.group.task for case in only} == {"fidelity"}
    assert only == [case for case in tiny_suites.plan(TWO_TASKS) if case.group.task == "fidelity"]
    assert tiny_suites.plan(TWO_TASKS, tasks=["fidelity", "speed"]) == tiny_suites.plan(TWO_TASKS)
    assert Overrides(tasks=["fidelity", "speed"]).described == ("--task fidelity,speed",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fidelty", r"--task: trial: unknown task 'fidelty'; did you mean 'fidelity'\?"),
        ("retrieval", r"--task: trial: unknown task 'retrieval' \(choices: fidelity, speed\)"),
    ],
)
def test_requested_tasks_outside_the_suite_are_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny_suites.plan(TWO_TASKS, tasks=["speed", name])


def test_tasks_receive_the_quick_flag() -> None:
    with tiny_suites.isolated_registry():
        flags: list[bool] = []

        def plan(request: Any) -> Any:
            flags.append(request.quick)
            yield request.make_group(CaseConfig(seq_len=8, max_len=8)), None

        register_task(replace(find_task(TABLE["speed"]), name="mine", words=("mine",), plan=plan))
        for quick in (False, True):
            tiny_suites.plan(tiny_suites.TINY.replace('"forward"', '"mine"'), quick=quick)
    assert flags == [False, True]
