"""Built-in suites: each one loads and plans, sets its threads, and covers the mechanisms that it should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache

import numpy as np
import pytest
import tiny_suites
import torch
from tiny_suites import load_suite

import efficient_attn as ea
from efficient_attn.bench.case import Case, group_cases
from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.bench.task_registry import find_task
from efficient_attn.resources import find_suites_folder, list_suite_names
from efficient_attn.results.effects import build_design_matrix, list_steps
from efficient_attn.results.rows import Record
from efficient_attn.variants import CATALOGUE

LINEAR_PEERS = ("linear_attention_transformer", "performer_pytorch", "linformer", "reformer_pytorch")


@pytest.fixture(autouse=True, scope="module")
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():  # the suites load plug-ins
        _planned.cache_clear()  # cached plans need the plug-ins of this registry
        yield


@pytest.fixture(autouse=True)
def _peer_libraries(request: pytest.FixtureRequest) -> None:
    """Skip suites of peers unless their libraries are installed; test_peers.py tests the other situation."""
    if "peers" in request.node.name:
        for package in ("local_attention", "transformers", *LINEAR_PEERS):
            pytest.importorskip(package)


@cache
def _planned(name: str) -> list[Case]:
    return make_plan(load_suite(name))


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", list_suite_names())
def test_suites_plan_distinct_cases_with_threads(name: str) -> None:
    cases = _planned(name)
    assert cases
    assert all(
        case.group.config.threads for case in cases if case.group.config.device == "cpu" and case.group.task == "speed"
    )
    assert len({case.key for case in cases}) == len(cases)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", list_suite_names())
def test_quick_plans_at_most_as_many_cases(name: str) -> None:
    assert len(make_plan(load_suite(name), Overrides(quick=True))) <= len(_planned(name))


def test_the_quickstart_covers_modes_and_mechanisms_of_the_readme() -> None:
    cases = _planned("quickstart")
    assert {c.group.config.mode or c.group.task for c in cases} == {"forward", "forward_backward", "decode", "fidelity"}
    assert {c.variant.names[0] for c in cases} == {"full", "sliding_window", "linear", "mqa", "gqa"}


@pytest.mark.parametrize("causal", [False, True])
def test_bare_sdpa_equals_full_attention(causal: bool) -> None:
    ea.load_plugin(str(find_suites_folder() / "plugins" / "bare_sdpa.py"))
    q, k, v = (torch.randn(1, 2, 33, 8) for _ in range(3))
    mask = ea.Mask(causal=causal)
    torch.testing.assert_close(ea.create("bare_sdpa")(q, k, v, mask), ea.create("full")(q, k, v, mask))
    last = q[:, :, -3:]  # the last queries see all keys before them, as in the verification of parts
    torch.testing.assert_close(ea.create("bare_sdpa")(last, k, v, mask), ea.create("full")(last, k, v, mask))


def test_a_lookback_window_equals_a_causal_window() -> None:
    ea.load_plugin(str(find_suites_folder() / "plugins" / "lookback_window.py"))
    q, k, v = (torch.randn(1, 2, 300, 8) for _ in range(3))
    want = ea.create("sliding_window:window=20")(q, k, v, ea.Mask(causal=True))
    torch.testing.assert_close(ea.create("lookback_window:window=20")(q, k, v, ea.Mask()), want)


def test_the_sparse_suite_times_its_family_and_full_attention() -> None:
    timed = {c.variant.names[0] for c in _planned("sparse") if c.group.part in ("against full", "causal only")}
    assert timed >= {"full", *(e.name for e in CATALOGUE if e.family == "sparse")}


def test_the_linear_suite_times_its_families_and_full_attention() -> None:
    cases = _planned("linear")
    families = {"linear", "low_rank", "hashed"}
    for part in ("crossover", "growth"):
        timed = {c.variant.names[0] for c in cases if c.group.part.startswith(part)}
        assert timed >= {e.name for e in CATALOGUE if e.family in families}
    for causal, part in ((False, "crossover"), (True, "crossover, causal")):
        assert {c.group.config.causal for c in cases if c.group.part == part} == {causal}
        assert "full" in {c.variant for c in cases if c.group.part == part}


def test_the_decode_suite_has_all_shared_kv_mechanisms_and_caches() -> None:
    cases = _planned("decode")
    assert {c.group.config.mode for c in cases if c.group.task == "speed"} == {"decode", "prefill"}
    steps = [c for c in cases if c.group.config.mode == "decode"]
    assert {c.keys.memory_budget for c in steps} == {16 * 10**9}
    assert {c.group.config.batch for c in steps} == {1, 4, 16}
    contexts = {c.variant.names[0] for c in steps if c.group.part == "contexts"}
    assert contexts >= {"full", *(e.name for e in CATALOGUE if e.family == "shared_kv")}
    kinds = {type(c.create().init_state(1, 8)).__name__ for c in steps}
    assert {"KVCache", "RollingCache", "LatentCache"} < kinds
    axis = {c.kv_heads for c in steps if c.group.part == "key-value heads" and c.variant == "gqa"}
    assert axis == {8, 4, 2, 1}


def test_the_breadth_suite_is_a_balanced_design() -> None:
    points = [asdict(group.config) for group, _ in group_cases(_planned("breadth")) if group.config.mode]
    assert len(points) == 32
    levels = {axis: sorted({p[axis] for p in points}) for axis in BREADTH}
    for axis, values in levels.items():
        counts = [sum(p[axis] == value for p in points) for value in values]
        assert max(counts) - min(counts) <= 2, axis
    effects = build_design_matrix(points, list_steps(levels))[:, 1:]
    correlations = np.corrcoef(effects, rowvar=False) - np.eye(effects.shape[1])
    assert abs(correlations).max() < 0.4  # two levels of a factor of four have 1/3 by construction
    assert (min(levels["heads"]), max(levels["heads"]), min(levels["batch"]), max(levels["batch"])) == (4, 32, 1, 8)
    assert 64 <= min(levels["seq_len"]) < 128
    assert not any(n & (n - 1) == 0 for n in levels["seq_len"])  # no powers of two


BREADTH = ("heads", "batch", "head_dim", "seq_len", "dtype", "threads", "causal", "fill")

# Specs that are timed but have no fidelity on the activations of a trained encoder, with the reason.
HEADS = "each of the encoder's heads has keys of its own, and sharing them has to be trained"
LATENT = "its keys are latents, which have to be trained"
SCORES = "its scores or positions have to be trained"
GATES = "its gates or step sizes have to be trained"
LONG = "its window holds all of the text"
PLUGIN = "it is exact or causal attention under another name"
COMPILED = "it computes the same as the other backend and has the same reference implementation"
WITHOUT_FIDELITY = {
    "gqa": HEADS,
    "gqa:kv_heads=2": HEADS,
    "gqa:kv_heads=4": HEADS,
    "gqa:backend=cpp": HEADS,
    "gqa:kv_heads=2:backend=cpp": HEADS,
    "mqa": HEADS,
    "mqa:backend=cpp": HEADS,
    "mla:latent_dim=256": LATENT,
    "mla:latent_dim=256:backend=cpp": LATENT,
    "sliding_window:window=4096": LONG,
    "attention_sinks:n_sink=4:window=4096": LONG,
    "sliding_window:window=1024": LONG,
    "attention_sinks:n_sink=4:window=1024": LONG,
    "full:backend=cpp": COMPILED,
    "full:softcap=50": SCORES,
    "full:sink=learned": SCORES,
    "full:sink=learned:softcap=50": SCORES,
    "linear:backend=cpp": COMPILED,
    "cosformer:backend=cpp": COMPILED,
    "general": SCORES,
    "cosine": SCORES,
    "additive": SCORES,
    "broadcast_additive": SCORES,
    "luong_local:window=128": SCORES,
    "bare_sdpa": PLUGIN,
    "sdpa_gqa": HEADS,
    "lookback_window:window=128": PLUGIN,
    "linformer:rank=256": "its projections have to be trained",
    "reformer:bucket_size=64:n_hashes=4": "its keys are its queries, and the encoder's are not",
    "random_feature:gated=true:n_features=64": "its gate has to be trained",
    **dict.fromkeys(("forgetting", "mamba2", "gla", "delta_net", "gated_delta_net", "kda"), GATES),
}
WITH_FIDELITY = sorted(
    set(list_suite_names())
    - {"linear_peers", "sparse_peers", "retrieval", "hybrid", "hybrid_long", "complexity", "encoder"}
    - {"fidelity_long"}  # it times nothing
    - {"recurrent"}  # gates have to be trained
    - {"gpu_speed", "gpu_decode"}  # exact attention; windows that hold all of the text, and states
    - {"ci"}  # it compares times of two revisions
    - {"distributed"}  # it compares ranks with one process
    - {"pretrained"}  # swap_long measures the quality of its specs
    # these train models instead
    - {
        "abilities",
        "accuracy",
        "accuracy_full",
        "language",
        "longer",
        "prediction",
        "recall",
        "seq2seq",
        "uptraining",
        "vision",
    }
    - {"windows"}
    - {name for name in list_suite_names() if name.startswith("swap")}
)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_FIDELITY)
def test_timed_specs_have_a_fidelity_case_or_a_reason(name: str) -> None:
    cases = _planned(name)
    # all backends of a mechanism compute the same
    timed, evaluated = (
        {str(replace(c.variant, backend=None)) for c in cases if c.group.task == task} for task in ("speed", "fidelity")
    )
    assert sorted(timed - evaluated - WITHOUT_FIDELITY.keys()) == []
    assert sorted(evaluated & WITHOUT_FIDELITY.keys()) == []


@pytest.mark.slow
def test_the_suite_pretrained_times_what_swap_long_swaps() -> None:
    timed, swapped = ({case.variant for case in _planned(name)} for name in ("pretrained", "swap_long"))
    assert timed == swapped


COMPARED = ("quickstart", "promises", "breadth", "decode", "sparse", "linear")
COMPARED_LENGTHS = {"MiniLM at 384": (384, False), "SmolLM2 at 2048": (2048, True), "SmolLM2 at 8192": (8192, True)}
WITHOUT_ROW = {HEADS, LATENT, COMPILED, PLUGIN}  # reasons for which fidelity_long has no row


@pytest.mark.slow
@pytest.mark.parametrize("part", COMPARED_LENGTHS)
def test_fidelity_long_has_a_row_for_every_timed_spec_at_every_length(part: str) -> None:
    cases = [c for c in _planned("fidelity_long") if c.group.part == part]
    assert {(c.group.config.seq_len, c.group.config.causal) for c in cases} == {COMPARED_LENGTHS[part]}
    timed = {c.variant for name in COMPARED for c in _planned(name) if c.group.task == "speed"}
    expected = {variant for variant in timed if WITHOUT_FIDELITY.get(variant) not in WITHOUT_ROW}
    assert sorted(expected ^ {c.variant for c in cases}) == []
    layers = {c.group.config.layer for c in cases}
    assert len(cases) == len(layers) * len(expected)
    assert {c.group.config.inputs.partition("@")[0] for c in cases} == {part.partition(" ")[0].lower()}


@pytest.mark.slow
def test_every_spec_without_fidelity_is_timed() -> None:
    timed = {c.variant for name in WITH_FIDELITY for c in _planned(name) if c.group.task == "speed"}
    assert sorted(WITHOUT_FIDELITY.keys() - timed) == []


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", WITH_FIDELITY)
def test_fidelity_cases_have_an_approximation_error(name: str) -> None:
    """Otherwise a spec that refuses the heads, length or mask of the encoder would have a case without a result."""
    evaluated = [case for case in _planned(name) if case.group.task == "fidelity" and case.group.config.layer == 0]
    assert evaluated
    for case in evaluated:
        record = find_task(case.group.target).judge(case, case.row(), lambda *_: None)
        assert isinstance(record, Record)
        assert record.row.relative_error is not None, case.variant


def test_sdpa_gqa_equals_gqa() -> None:
    ea.load_plugin(str(find_suites_folder() / "plugins" / "sdpa_gqa.py"))
    q, k, v = torch.randn(2, 8, 33, 16), torch.randn(2, 2, 33, 16), torch.randn(2, 2, 33, 16)
    theirs, ours = ea.create("sdpa_gqa"), ea.create("gqa")
    torch.testing.assert_close(theirs(q, k, v, ea.Mask(causal=True)), ours(q, k, v, ea.Mask(causal=True)))
    newest = q[:, :, :1]
    torch.testing.assert_close(theirs(newest, k, v, ea.Mask(causal=True)), ours(newest, k, v, ea.Mask(causal=True)))
