"""The suites that ship: each loads, plans, states its threads, and names mechanisms that exist."""

from __future__ import annotations

from collections.abc import Iterator

import planted
import pytest
import torch
from planted import load_suite

import efficient_attn as ea
from efficient_attn.bench.plan import Overrides, make_plan
from efficient_attn.shipped import suite_names, suites_folder
from efficient_attn.variants import CATALOGUE

LINEAR_PEERS = ("linear_attention_transformer", "performer_pytorch", "linformer", "reformer_pytorch")


@pytest.fixture(autouse=True, scope="module")
def _forgotten() -> Iterator[None]:
    with planted.undone():  # the suites load plug-ins
        yield


@pytest.fixture(autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    """A suite of peers plans only where their libraries are; test_peers.py says what it does elsewhere."""
    if "peers" in request.node.name:
        for package in ("local_attention", "transformers", *LINEAR_PEERS):
            pytest.importorskip(package)


@pytest.mark.slow
@pytest.mark.parametrize("name", suite_names())
def test_it_plans(name: str) -> None:
    cases = make_plan(load_suite(name))
    assert cases
    assert all(
        case.cell.place.threads for case in cases if case.cell.place.device == "cpu" and case.cell.task == "speed"
    )
    assert len({case.key for case in cases}) == len(cases)


@pytest.mark.slow
@pytest.mark.parametrize("name", suite_names())
def test_quick_is_smaller(name: str) -> None:
    loaded = load_suite(name)
    assert len(make_plan(loaded, Overrides(quick=True))) <= len(make_plan(loaded))


def test_the_quickstart_covers_what_the_readme_says() -> None:
    cases = make_plan(load_suite("quickstart"))
    assert {c.cell.place.mode or c.cell.task for c in cases} == {"forward", "forward_backward", "decode", "fidelity"}
    assert {c.variant.split(":")[0] for c in cases} == {"full", "sliding_window", "linear", "mqa", "gqa"}


@pytest.mark.parametrize("causal", [False, True])
def test_bare_sdpa_is_full(causal: bool) -> None:
    ea.load_plugin(str(suites_folder() / "plugins" / "bare_sdpa.py"))
    q, k, v = (torch.randn(1, 2, 33, 8) for _ in range(3))
    mask = ea.Mask(causal=causal)
    torch.testing.assert_close(ea.create("bare_sdpa")(q, k, v, mask), ea.create("full")(q, k, v, mask))


def test_a_lookback_window_is_a_causal_window() -> None:
    ea.load_plugin(str(suites_folder() / "plugins" / "lookback_window.py"))
    q, k, v = (torch.randn(1, 2, 300, 8) for _ in range(3))
    want = ea.create("sliding_window:window=20")(q, k, v, ea.Mask(causal=True))
    torch.testing.assert_close(ea.create("lookback_window:window=20")(q, k, v, ea.Mask()), want)


def test_the_sparse_suite_has_the_whole_family_against_full_attention() -> None:
    timed = {
        c.variant.split(":")[0]
        for c in make_plan(load_suite("sparse"))
        if c.cell.part in ("against full", "causal only")
    }
    assert timed >= {"full", *(e.name for e in CATALOGUE if e.family == "sparse")}


def test_the_linear_suite_has_the_families_in_every_direction_against_full_attention() -> None:
    cases = make_plan(load_suite("linear"))
    families = {"linear", "low_rank", "hashed"}
    for part in ("crossover", "growth"):
        timed = {c.variant.split(":")[0] for c in cases if c.cell.part.startswith(part)}
        assert timed >= {e.name for e in CATALOGUE if e.family in families}
    for causal, part in ((False, "crossover"), (True, "crossover, causal")):
        assert {c.cell.place.causal for c in cases if c.cell.part == part} == {causal}
        assert "full" in {c.variant for c in cases if c.cell.part == part}


def test_the_decode_suite_has_every_way_to_share_keys_and_every_kind_of_state() -> None:
    cases = make_plan(load_suite("decode"))
    assert {c.cell.place.mode for c in cases} == {"decode", "prefill"}
    steps = [c for c in cases if c.cell.place.mode == "decode"]
    assert {c.keys.memory_budget for c in steps} == {16 * 10**9}
    assert {c.cell.place.batch for c in steps} == {1, 4, 16}
    contexts = {c.variant.split(":")[0] for c in steps if c.cell.part == "contexts"}
    assert contexts >= {"full", *(e.name for e in CATALOGUE if e.family == "shared_kv")}
    kinds = {type(c.create().init_state(1, 8)).__name__ for c in steps}
    assert {"KVCache", "RollingCache", "LatentCache"} < kinds
    axis = {c.kv_heads for c in steps if c.cell.part == "key-value heads" and c.variant == "gqa"}
    assert axis == {8, 4, 2, 1}


def test_torchs_own_groups_are_ours() -> None:
    ea.load_plugin(str(suites_folder() / "plugins" / "sdpa_gqa.py"))
    q, k, v = torch.randn(2, 8, 33, 16), torch.randn(2, 2, 33, 16), torch.randn(2, 2, 33, 16)
    theirs, ours = ea.create("sdpa_gqa"), ea.create("gqa")
    torch.testing.assert_close(theirs(q, k, v, ea.Mask(causal=True)), ours(q, k, v, ea.Mask(causal=True)))
    newest = q[:, :, :1]
    torch.testing.assert_close(theirs(newest, k, v, ea.Mask(causal=True)), ours(newest, k, v, ea.Mask(causal=True)))
