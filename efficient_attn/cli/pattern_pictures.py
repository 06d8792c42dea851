"""From mechanisms to pictures of their patterns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..patterns.rasterize import PatternGrid, views
from ..registry import Info, info
from ..report.drawing.pattern_image import PatternImage, render_patterns
from ..report.drawing.style import choose_colour_and_marker, name_mechanism
from .console import tell_kept

CELLS = 256  # a side, at most: what a picture of two inches can show; shorter sequences have a cell a pair


def portrait(about: Info, file: Path) -> bytes:
    """One mechanism, in each direction that it takes."""
    if about.pattern is None:
        raise UsageError(f"info: {about.spec} has no pattern to draw")
    squares = [_square(about, grid, grid.direction) for grid in _grids(about, about.traits.directions)]
    options = _options(about)
    return render_patterns(squares, f"{about.name}: {options}" if options else about.spec, _form(file))


def gallery(names: Sequence[str], file: Path) -> bytes:
    """Each mechanism that has a pattern, with the options that it has by default; causal only where it must be."""
    infos = [about for about in (info(name) for name in names) if about.pattern is not None]
    if not infos:
        raise UsageError(f"list: none of these mechanisms has a pattern to draw: {', '.join(names)}")
    squares = []
    for about in infos:
        (grid,) = _grids(about, about.traits.directions[:1])
        title = f"{about.name}{', causal' if grid.geometry.causal else ''}"
        squares.append(_square(about, grid, title, _options(about)))
    return render_patterns(squares, "Which keys each query sees", _form(file))


def _grids(about: Info, directions: Sequence[bool]) -> list[PatternGrid]:
    assert about.pattern is not None
    return views(about.pattern, directions=directions, rows=CELLS, columns=CELLS)


def _square(about: Info, grid: PatternGrid, title: str, *more: str) -> PatternImage:
    n, causal = grid.geometry.n, grid.geometry.causal
    colour, _ = choose_colour_and_marker(name_mechanism(about.spec))
    caption = "\n".join(filter(None, (*more, f"N = {n}, {tell_kept(grid)}")))
    return PatternImage(grid.shares, n, title, caption, colour, causal)


def _options(about: Info) -> str:
    return ", ".join(f"{name}={value}" for name, value in about.options.items() if value is not None)


def _form(file: Path) -> Any:
    return file.suffix.lower().removeprefix(".")
