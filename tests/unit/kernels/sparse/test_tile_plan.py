"""Plans count every pair of the pattern exactly once, and compute few others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from drawn_patterns import bands, columns, queries
from hypothesis import given, settings
from hypothesis import strategies as st

import efficient_attn as ea
from efficient_attn import patterns
from efficient_attn.kernels.sparse import parts, tile_plan
from efficient_attn.kernels.sparse.tile_plan import order_facts, plan_blocks, plan_parts
from efficient_attn.kernels.sparse.tiles import Gather, TilePlan, View
from efficient_attn.patterns import Band, Blocks, Geometry, Keys, Pattern, Queries, Where

CPU = torch.device("cpu")
tiled_facts = st.one_of(bands(), columns(), queries, st.builds(Blocks, st.integers(1, 40), st.integers(0, 3)))


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    n, m = draw(st.integers(1, 200)), draw(st.integers(1, 200))
    return Geometry(n, m, draw(st.sampled_from([m - n, m - n, 0, -33, m + 2])), draw(st.booleans()))


def count_pairs(tiles: TilePlan, g: Geometry) -> torch.Tensor:
    """How often the tiles of the plan count each pair, ``[N, M]``, in the steps of the kernel."""
    counts = torch.zeros(g.n, g.m, dtype=torch.int32)
    for part in tiles:
        for step in part.steps():
            tile, first, last = step
            allowed = part.allowed(step, CPU)
            rows, keys = tile.queries.positions(first, last, CPU), part.positions(step, CPU)
            for w in range(last - first):
                window_pairs = (
                    torch.ones(rows.shape[1], keys.shape[1], dtype=torch.bool)
                    if allowed is None
                    else allowed[0 if len(allowed) == 1 else w]
                )
                i, j = window_pairs.nonzero(as_tuple=True)
                counts.index_put_((rows[w][i], keys[w][j]), torch.ones(len(i), dtype=torch.int32), accumulate=True)
    return counts


def allowed_pairs(pattern: Pattern, g: Geometry) -> torch.Tensor:
    i, j = torch.arange(g.n)[:, None] + g.start, torch.arange(g.m)
    allowed = pattern.allows(i, j, g).expand(g.n, g.m)
    return (allowed & (j <= i) if g.causal else allowed).int()


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(tiled_facts, min_size=1, max_size=3), geometries())
def test_plans_count_each_allowed_pair_once(facts: list, g: Geometry) -> None:
    pattern = Pattern(tuple(facts))
    assert torch.equal(count_pairs(plan_parts(pattern, g), g), allowed_pairs(pattern, g))


@settings(max_examples=60, deadline=None)
@given(st.lists(tiled_facts | st.just(Where(lambda i, j: (i * 3 + j) % 7 == 0)), min_size=1, max_size=3), geometries())
def test_gathered_blocks_count_each_allowed_pair_once(facts: list, g: Geometry) -> None:
    pattern = Pattern(tuple(facts))
    assert torch.equal(count_pairs(plan_blocks(pattern, g), g), allowed_pairs(pattern, g))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "pattern",
    [
        patterns.sliding_window(1500),
        patterns.sliding_window(4000) | patterns.global_tokens(1300),
        patterns.fixed(1100, 1090),
        patterns.strided(3),
        patterns.fixed(40, 3) | patterns.random_blocks(2, 64),
        patterns.global_tokens(2500),
    ],
)
def test_long_tiles_count_each_allowed_pair_once(pattern: Pattern, causal: bool) -> None:
    g = Geometry(2300, 2500, 200, causal)
    assert torch.equal(count_pairs(plan_parts(pattern, g), g), allowed_pairs(pattern, g))


def test_rows_are_fresh_in_their_first_tile_only() -> None:
    g = Geometry(700, 700, 0, False)
    tiles = plan_parts(patterns.sliding_window(9) | patterns.global_tokens(3) | patterns.random_blocks(2, 32), g)
    reached = torch.zeros(700, dtype=torch.bool)
    for part in tiles:
        for tile in part.tiles:
            rows = tile.queries.positions(0, tile.count, CPU).flatten()
            assert tile.fresh == (not reached[rows].any())
            reached[rows] = True
    assert reached.all()


def test_bands_come_first_and_are_merged() -> None:
    pattern = Blocks(4, 2) | Band(None, None, 8) | Keys(0, 2) | Band(5, 9) | Queries(1) | Band(-3, 4) | Band(20, None)
    assert order_facts(pattern) == (
        Band(-3, 9), Band(20, None), Band(None, None, 8), Blocks(4), Keys(0, 2), Queries(1), Blocks(4, 2),
    )  # fmt: skip
    assert order_facts(Band(None, 3) | Band(0, None) | Band(7, 8)) == (Band(None, None),)


def test_tiles_whose_pairs_all_count_have_no_mask() -> None:
    g = Geometry(4096, 4096, 0, False)
    (_, columns_, rows) = plan_parts(patterns.sliding_window(64) | Keys(0, 32) | Queries(32), g)
    for part in (columns_, rows):
        masked = sum(t.pairs for t in part.tiles if t.rule is not None)
        assert masked < 0.3 * sum(t.pairs for t in part.tiles)
    drawn = plan_parts(patterns.random_blocks(3, 64), g)[1]
    assert all(t.rule is None and isinstance(t.keys, Gather) and t.keys.whole for t in drawn.tiles)


def test_drawn_blocks_counted_by_other_facts_are_dropped() -> None:
    g = Geometry(1024, 1024, 0, False)
    alone = plan_parts(patterns.random_blocks(3, 64), g)
    combined = plan_parts(patterns.random_blocks(3, 64) | Keys(0, 512), g)
    gathered = [sum(t.pairs for p in x for t in p.tiles if isinstance(t.keys, Gather)) for x in (alone, combined)]
    assert 0.3 < gathered[1] / gathered[0] < 0.7


@pytest.mark.parametrize("spec", ["sliding_window:window=512", "longformer", "bigbird", "strided:stride=64", "fixed"])
def test_plans_store_small_masks_only(spec: str) -> None:
    attn = ea.create(spec)
    tiles = plan_parts(attn.pattern, Geometry(16384, 16384, 0, True))  # pyright: ignore[reportArgumentType]
    stored = sum(t.mask.numel() for p in tiles for t in p.tiles if t.mask is not None)
    assert stored < 2 * 16384 * 64


CLASSICS = {
    "sliding_window:window=128": 1.30,
    "dilated_window:window=128:dilation=4": 1.30,
    "global_tokens": 1.50,
    "random_blocks": 1.20,
    "random_blocks:block_size=128": 1.20,
    "strided:stride=128": 1.50,
    "fixed:stride=128:summary=8": 1.20,
    "longformer": 1.25,
    "bigbird": 1.15,
    "attention_sinks:window=128": 1.30,
    "sliding_window:window=128|strided:stride=256": 1.60,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", CLASSICS)
def test_few_excluded_pairs_are_computed(spec: str, causal: bool, monkeypatch) -> None:
    """The computed pairs are taken from the shapes that the kernel is called with."""
    attn = ea.create(spec)
    if not causal and not attn.traits.bidirectional:
        pytest.skip("causal only")
    computed = 0

    def count_calls(kernel: Callable) -> Callable:
        def attend(inputs, options):
            nonlocal computed
            q, k, _, mask = inputs
            assert mask is None or mask.shape[-1] == k.shape[2]
            computed += q.shape[1] * q.shape[2] * k.shape[2]
            return kernel(inputs, options)

        return attend

    monkeypatch.setattr(parts, "attend", count_calls(parts.attend))
    n = 4096
    q, k, v = torch.randn(3, 1, 1, n, 8)
    attn(q, k, v, ea.Mask(causal=causal))
    pairs = attn.pairs(n, n, causal)
    assert pairs is not None
    assert computed == attn.pairs_computed(n, n, causal)
    assert pairs <= computed <= CLASSICS[spec] * pairs
    g = Geometry(n, n, 0, causal)
    strip = [allowed_pairs(attn.pattern, g._replace(n=512, start=s)).sum() for s in range(0, n, 512)]  # pyright: ignore
    assert pairs == int(sum(strip))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", [s for s in CLASSICS if "strided" not in s and "fixed" not in s])
def test_work_and_steps_grow_linearly_with_length(spec: str, causal: bool) -> None:
    attn = ea.create(spec)
    work = {n: plan_parts(attn.pattern, Geometry(n, n, 0, causal)) for n in (1 << 13, 1 << 14)}  # pyright: ignore
    pairs = [sum(t.pairs for p in tiles for t in p.tiles) for tiles in work.values()]
    steps = [sum(1 for p in tiles for _ in p.steps()) for tiles in work.values()]
    assert pairs[1] / pairs[0] < 2.1
    assert steps[1] / steps[0] < 2.2


def test_equal_plans_are_cached() -> None:
    g = Geometry(64, 64, 0, False)
    assert plan_parts(patterns.sliding_window(5), g) is plan_parts(patterns.sliding_window(5), g)
    assert plan_blocks(patterns.sliding_window(5), g) is plan_blocks(patterns.sliding_window(5), g)


def test_cut_keys_drops_unused_keys_and_splits_at_long_runs(monkeypatch) -> None:
    monkeypatch.setattr(tile_plan, "LONG_KEYS", 3)
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0], [0, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0]]).bool()
    assert tile_plan._cut_keys(mask) == [[1, 4], [4, 8], [8, 9], [12, 13]]
    assert tile_plan._cut_keys(torch.zeros(2, 4).bool()) == []


def test_view_of_one_window_needs_no_advance() -> None:
    assert View(3, 2).positions(0, 1, CPU).tolist() == [[3, 4]]
