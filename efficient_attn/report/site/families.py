"""The families as cards: what each computes, what that costs, when to use it, what is lost, and a small picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SIDE = 12  # cells a side of a picture


@dataclass(frozen=True)
class FamilyCard:
    """A family in words. cells: of its picture (column, row, depth), depth 1 to 3."""

    name: str
    title: str
    formula: str
    cost: str
    use: str
    drawback: str
    cells: tuple[tuple[int, int, int], ...]


def _draw_cells(depth: Callable[[int, int], int]) -> tuple[tuple[int, int, int], ...]:
    """The cells of a picture of queries (down) by keys (across)."""
    cells = ((x, y, depth(x, y)) for y in range(SIDE) for x in range(SIDE))
    return tuple(cell for cell in cells if cell[2])


def _hash(index: int) -> int:
    return index * 7 % SIDE // 3


FAMILY_CARDS = (
    FamilyCard(
        "full", "Full", "softmax(q k\u1d40 / \u221ad) v",
        "N\u00b2 time; memory grows with N where the weights are never written out.",
        "Whenever it is fast enough: up to the lengths at which the bars below turn.",
        "Nothing: all others are held against it.",
        _draw_cells(lambda x, y: 2),
    ),
    FamilyCard(
        "sparse", "Sparse", "softmax over the keys of a pattern: a window, first tokens, blocks",
        "N \u00b7 w time for w keys a query; decoding keeps as little as the pattern reaches.",
        "Where what matters is near, or in places known beforehand.",
        "Whatever lies outside of the pattern.",
        _draw_cells(lambda x, y: 3 if abs(x - y) < 2 else 1 if x < 1 else 0),
    ),
    FamilyCard(
        "linear", "Linear", "\u03c6(q) (\u03c6(k)\u1d40 v): keys and values become one small table",
        "N \u00b7 d\u00b2 time; decoding keeps a state that does not grow.",
        "For very long inputs and for decoding without a growing cache.",
        "Sharpness: it cannot pick one key among many as softmax does.",
        _draw_cells(lambda x, y: 3 if x < 2 and y > 1 else 2 if y < 2 and x > 1 else 0),
    ),
    FamilyCard(
        "low_rank", "Low rank", "softmax(q (E k)\u1d40) (F v): the length is projected to r rows",
        "N \u00b7 r time.",
        "For encoders whose length is known and bounded.",
        "Positions: r summaries stand for all keys; mostly not causal.",
        _draw_cells(lambda x, y: 2 if x % 3 == 1 else 0),
    ),
    FamilyCard(
        "hashed", "Hashed", "softmax over keys in the same bucket of a hash",
        "N log N time, with several rounds of hashing.",
        "Where few keys matter and nobody knows which; at great lengths.",
        "Keys that the hash puts elsewhere; queries must be keys.",
        _draw_cells(lambda x, y: 2 if _hash(x) == _hash(y) else 0),
    ),
    FamilyCard(
        "shared_kv", "Shared keys and values", "softmax, exact; heads share keys and values or a latent of them",
        "N\u00b2 time as full; decoding reads and keeps a share of the cache.",
        "For decoding: the cache decides its speed.",
        "Nothing of the softmax; a model has to be trained, or uptrained, with fewer key-value heads.",
        _draw_cells(lambda x, y: 3 if x // 4 == y // 4 and x % 4 == 1 else 1 if x // 4 == y // 4 else 0),
    ),
)  # fmt: skip
CARD_BY_NAME = {family.name: family for family in FAMILY_CARDS}
