"""The sizes of a call as a pattern sees them, and how far a causal query sees."""

from __future__ import annotations

from typing import NamedTuple


class Geometry(NamedTuple):
    """One call's sizes: n queries from position ``start`` on, m keys."""

    n: int
    m: int
    start: int
    causal: bool


class Reach(NamedTuple):
    """What a causal query can see at most: the first ``prefix`` keys, and the last ``back + 1`` up to its own."""

    back: int
    prefix: int = 0
