"""From a pattern to a plan: each fact becomes tiles over views where possible, else over gathered blocks.

Each fact leaves out the pairs of those before it, so that every pair counts once. A mask that serves all windows of a
tile is computed once for each geometry; tiles in which all pairs count have none.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

import torch

from ...patterns import Band, Blocks, Fact, Geometry, Keys, Pattern, Queries
from ...shared_caches import shared_cache
from .gathered_blocks import tile_drawn_blocks, tile_touched_blocks
from .tiles import Step, Tile, TilePlan, Tiling, TilingRule, View
from .views import view_band, view_keys, view_own_blocks, view_queries

BUILTIN_FACTS = (Band, Keys, Queries, Blocks)  # facts that define their own tiles
MIN_HALVED_ROWS = 128  # a tile is halved until its masked rows are no more
LONG_KEYS = 1024  # keys that need no mask, or none of which counts, from which on a tile is cut in two
LARGEST_MASK = 1 << 20  # pairs; a larger mask is computed in each call, not cached

CPU = torch.device("cpu")


@shared_cache
@lru_cache(maxsize=64)
def plan_parts(pattern: Pattern, g: Geometry) -> TilePlan:
    """The plan of a pattern of known facts: views, columns and random blocks, merged."""
    facts = order_facts(pattern)
    tilings = (_make_tiling(TilingRule(fact, facts[:index], g)) for index, fact in enumerate(facts))
    return _mark_fresh(tilings, g)


@shared_cache
@lru_cache(maxsize=64)
def plan_blocks(pattern: Pattern, g: Geometry) -> TilePlan:
    """The plan of any pattern: for each block of queries, gather the key blocks that it touches, and mask them."""
    return _mark_fresh([Tiling(tuple(tile_touched_blocks(TilingRule(pattern, (), g))))], g)


def order_facts(pattern: Pattern) -> tuple[Fact, ...]:
    """The facts in the cheapest order: views first, so that few random blocks remain."""
    facts = dict.fromkeys(pattern.facts)
    plain = [f for f in facts if isinstance(f, Band) and f.step == 1]
    stepped = [f for f in facts if isinstance(f, Band) and f.step > 1]
    own_blocks = dict.fromkeys(Blocks(f.size) for f in facts if isinstance(f, Blocks))
    columns = [f for f in facts if isinstance(f, Keys)]
    rows = [f for f in facts if isinstance(f, Queries)]
    drawn = [f for f in facts if isinstance(f, Blocks) and f.count]
    return (*_unite_bands(plain), *stepped, *own_blocks, *columns, *rows, *drawn)


def _unite_bands(bands: list[Band]) -> list[Band]:
    """Bands that overlap or touch, as one."""
    low, high = float("-inf"), float("inf")
    united: list[Band] = []
    for band in sorted(bands, key=lambda b: low if b.lo is None else b.lo):
        last = united[-1] if united else None
        if last and (last.hi is None or band.lo is None or band.lo <= last.hi + 1):
            hi = max(high if b.hi is None else b.hi for b in (last, band))
            united[-1] = Band(last.lo, None if hi == high else int(hi))
        else:
            united.append(band)
    return united


def _make_tiling(rule: TilingRule) -> Tiling:
    fact, g = rule.fact, rule.g
    columns = None
    if isinstance(fact, Band):
        views = view_band(fact, g)
    elif isinstance(fact, Keys):
        columns, views = view_keys(fact, g)
    elif isinstance(fact, Queries):
        views = view_queries(fact, g)
    elif isinstance(fact, Blocks) and not fact.count:
        views = view_own_blocks(fact, g)
    else:
        assert isinstance(fact, Blocks)
        return Tiling(tuple(tile_drawn_blocks(fact, rule)))
    tiling = Tiling((), columns)
    return replace(tiling, tiles=tuple(t for n, q, k in views for t in _simplify_tile(Tile(n, q, k, rule), tiling)))


def _simplify_tile(tile: Tile, tiling: Tiling) -> Iterator[Tile]:
    """The tile without keys of which none counts, without a mask where all count, cut in two where that pays."""
    rule, keys, rows = tile.rule, tile.keys, tile.queries.size
    assert rule is not None
    assert isinstance(keys, View)
    if tile.count > 1 and not _is_shift_invariant(rule):
        yield tile
        return
    mask = tiling.allowed(Step(tile, 0, 1), CPU)
    assert mask is not None
    whole = int(mask[0].all(1).sum())
    if tile.count == 1 and rows > MIN_HALVED_ROWS and 0 < whole < rows:
        for low, high in ((0, rows // 2), (rows // 2, rows)):
            queries = replace(tile.queries, first=tile.queries.first + low * tile.queries.step, size=high - low)
            yield from _simplify_tile(replace(tile, queries=queries), tiling)
        return
    for low, high in _cut_keys(mask[0]):
        piece = replace(tile, keys=replace(keys, first=keys.first + low * keys.step, size=high - low))
        counted = mask[0][:, low:high].clone()
        small = counted.numel() <= LARGEST_MASK
        yield replace(piece, rule=None) if counted.all() else replace(piece, mask=counted if small else None)


def _cut_keys(mask: torch.Tensor) -> list[list[int]]:
    """Ranges of the keys that any row of ``mask [rows, keys]`` counts; long ranges that need no mask are separate."""
    kinds, lengths = torch.unique_consecutive(mask.any(0).int() + mask.all(0).int(), return_counts=True)
    pieces: list[list[int]] = []
    stop, extends = 0, False
    for kind, length in zip(kinds.tolist(), lengths.tolist(), strict=True):
        start, stop = stop, stop + length
        if kind == 0 and (start == 0 or stop == mask.shape[1] or length >= LONG_KEYS):
            extends = False
        elif kind == 2 and length >= LONG_KEYS:
            pieces.append([start, stop])
            extends = False
        elif extends:
            pieces[-1][1] = stop
        else:
            pieces.append([start, stop])
            extends = True
    return pieces


def _mark_fresh(tilings: Iterable[Tiling], g: Geometry) -> TilePlan:
    """The tilings that have tiles; those tiles marked as fresh that reach their rows first."""
    reached = torch.zeros(g.n, dtype=torch.bool)
    marked = []
    for tiling in tilings:
        tiles = []
        for tile in tiling.tiles:
            rows = tile.queries.positions(0, tile.count, CPU).flatten()
            tiles.append(replace(tile, fresh=not reached[rows].any()))
            reached[rows] = True
        if tiles:
            marked.append(replace(tiling, tiles=tuple(tiles)))
    return tuple(marked)


def _is_shift_invariant(rule: TilingRule) -> bool:
    """Whether all windows of a tile count the same pairs: those of bands and of own blocks of one size do."""
    sizes = {f.size for f in (rule.fact, *rule.earlier_facts) if isinstance(f, Blocks) and not f.count}
    rest = (f for f in (rule.fact, *rule.earlier_facts) if not isinstance(f, Band))
    return all(isinstance(f, Blocks) and not f.count for f in rest) and len(sizes) <= 1
