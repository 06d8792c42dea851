"""Cards of the mechanism families: formula, cost, use, limits, and a small picture of the pattern."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class FamilyCard:
    """The texts of a family in ``families.toml``. picture: lines of a square, with depths from 1 to 3."""

    name: str
    title: str
    formula: str
    cost: str
    use: str
    drawback: str
    picture: str

    @property
    def cells(self) -> list[tuple[int, int, str]]:
        """Column, row and depth of each cell of the picture."""
        lines = self.picture.split()
        return [(x, y, depth) for y, line in enumerate(lines) for x, depth in enumerate(line) if depth != "."]


@cache
def read_families() -> dict[str, FamilyCard]:
    """The cards by family, in the order of the file."""
    text = (files(__package__ or "") / "families.toml").read_text(encoding="utf-8")
    return {name: FamilyCard(name, **texts) for name, texts in tomllib.loads(text).items()}
