"""Alignments: which tokens of a source models attend to while they write, a map a mechanism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from .. import words
from ..drawing import plots
from ..drawing.maps import ACROSS, Grid, Map
from .learned import Learned, Test

EVERY = 4  # of the positions one is named


def plan_alignments(test: Test, scene: plots.Scene) -> Iterator[plots.Planned]:
    """A plot for those mechanisms of which the run kept one."""
    found = [one for one in test.tried if _alignment(one)]
    groups = [found[i : i + ACROSS] for i in range(0, len(found), ACROSS)]
    for number, group in enumerate(groups, 1):
        some = f"{number} of {len(groups)}" if len(groups) > 1 else ""
        said = ", ".join(filter(None, (f"Alignment: {test.name}", some)))
        name = words.slug("alignment", test.name, some, scene.suffix)
        yield plots.Planned(name, "alignment", said, len(group), partial(_draw, group, name, said, scene), 2)


def _alignment(one: Learned) -> tuple[tuple[float, ...], ...] | None:
    """Of the first seed at the best rate."""
    found: Any = one.chosen["alignment"].iloc[0] if "alignment" in one.chosen else None
    return found if isinstance(found, tuple) else None


def _draw(found: Sequence[Learned], name: str, title: str, scene: plots.Scene) -> Map:
    grids = [Grid(one.label, shares, _say_nothing(shares)) for one in found if (shares := _alignment(one))]
    down, across = (max(counts) for counts in zip(*((len(g.shares), len(g.shares[0])) for g in grids), strict=True))
    return Map(
        name=name,
        kind="alignment",
        title=title[:60],
        caption=f"{title}: one example of the tests. Each line is a written token, and says by its shades how much "
        "weight each token of the source has, mean over heads of the last layer; one model each, the first seed at its "
        "best learning rate.",
        place=scene.place,
        alt=f"{title}, for {words.join(one.label for one in found)}.",
        grids=tuple(grids),
        across=_name_some(across),
        down=_name_some(down),
        xlabel="source",
        ylabel="written",
    )


def _say_nothing(shares: Sequence[Sequence[float]]) -> list[list[str]]:
    """Cells are too many for numbers."""
    return [[""] * len(row) for row in shares]


def _name_some(count: int) -> tuple[str, ...]:
    return tuple("" if n % EVERY else str(n) for n in range(1, count + 1))
