"""Cards of the mechanism families: formula, cost, use, limits, and a small picture of the pattern."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SIDE = 12  # cells per side of a picture


@dataclass(frozen=True)
class FamilyCard:
    """The texts of a family. cells: (column, row, depth) of its picture, with depths 1 to 3."""

    name: str
    title: str
    formula: str
    cost: str
    use: str
    drawback: str
    cells: tuple[tuple[int, int, int], ...]


def _draw_cells(depth: Callable[[int, int], int]) -> tuple[tuple[int, int, int], ...]:
    """Return the cells of a picture whose rows are queries and whose columns are keys."""
    cells = ((x, y, depth(x, y)) for y in range(SIDE) for x in range(SIDE))
    return tuple(cell for cell in cells if cell[2])


def _hash(index: int) -> int:
    return index * 7 % SIDE // 3


FAMILY_CARDS = (
    FamilyCard(
        "full", "Full", "softmax(q k\u1d40 / \u221ad) v",
        "N\u00b2 time; memory grows with N if the attention weights are never materialized.",
        "Whenever it is fast enough: up to the crossover lengths above.",
        "None in quality; it is the reference for the others.",
        _draw_cells(lambda x, y: 2),
    ),
    FamilyCard(
        "sparse", "Sparse", "softmax over the keys of a pattern: a window, first tokens, blocks",
        "N \u00b7 w time for w keys per query; decoding caches only the keys that the pattern reaches.",
        "When the relevant keys are nearby or at known positions.",
        "Keys outside the pattern are ignored.",
        _draw_cells(lambda x, y: 3 if abs(x - y) < 2 else 1 if x < 1 else 0),
    ),
    FamilyCard(
        "linear", "Linear", "\u03c6(q) (\u03c6(k)\u1d40 v): keys and values are summed into one small matrix",
        "N \u00b7 d\u00b2 time; decoding needs a state of constant size.",
        "For very long inputs, and for decoding without a growing cache.",
        "Less sharp than softmax: it cannot select one key among many.",
        _draw_cells(lambda x, y: 3 if x < 2 and y > 1 else 2 if y < 2 and x > 1 else 0),
    ),
    FamilyCard(
        "low_rank", "Low rank", "softmax(q (E k)\u1d40) (F v): the length is projected to r rows",
        "N \u00b7 r time.",
        "For encoders with a known, bounded length.",
        "r summaries replace all keys, so positions are lost; mostly not causal.",
        _draw_cells(lambda x, y: 2 if x % 3 == 1 else 0),
    ),
    FamilyCard(
        "hashed", "Hashed", "softmax over keys in the same bucket of a hash",
        "N log N time, with several rounds of hashing.",
        "For long inputs in which few keys matter, at unknown positions.",
        "Misses keys in other buckets; queries and keys must be shared.",
        _draw_cells(lambda x, y: 2 if _hash(x) == _hash(y) else 0),
    ),
    FamilyCard(
        "shared_kv", "Shared keys and values", "softmax, exact; heads share keys and values or a latent of them",
        "N\u00b2 time, as full; decoding stores and reads a fraction of the cache.",
        "For decoding, whose speed depends on the size of the cache.",
        "Exact softmax, but a model must be trained or uptrained with fewer key-value heads.",
        _draw_cells(lambda x, y: 3 if x // 4 == y // 4 and x % 4 == 1 else 1 if x // 4 == y // 4 else 0),
    ),
)  # fmt: skip
CARD_BY_NAME = {family.name: family for family in FAMILY_CARDS}
