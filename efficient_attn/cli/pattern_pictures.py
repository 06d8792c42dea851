"""Pictures of mechanisms' patterns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..patterns.rasterize import PatternGrid, compute_share_grids
from ..registry import Info, info
from ..report.drawing.pattern_image import PatternImage, render_patterns
from ..report.drawing.style import choose_colour_and_marker, name_mechanism
from .console import format_kept_share

MAX_CELLS = 256  # a side, in a picture of two inches; shorter sequences have one cell for each pair


def render_portrait(mechanism: Info, file: Path) -> bytes:
    """A picture of one mechanism's pattern, in each direction that it supports."""
    if mechanism.pattern is None:
        raise UsageError(f"info: {mechanism.spec} has no pattern to draw")
    images = [
        _make_image(mechanism, grid, grid.direction) for grid in _make_grids(mechanism, mechanism.traits.directions)
    ]
    options = _format_options(mechanism)
    return render_patterns(images, f"{mechanism.name}: {options}" if options else mechanism.spec, _read_format(file))


def render_gallery(names: Sequence[str], file: Path) -> bytes:
    """A picture of all patterns with default options, causal only if the mechanism has no other direction."""
    infos = [mechanism for mechanism in (info(name) for name in names) if mechanism.pattern is not None]
    if not infos:
        raise UsageError(f"list: none of these mechanisms has a pattern to draw: {', '.join(names)}")
    images = []
    for mechanism in infos:
        (grid,) = _make_grids(mechanism, mechanism.traits.directions[:1])
        title = f"{mechanism.name}{', causal' if grid.geometry.causal else ''}"
        images.append(_make_image(mechanism, grid, title, _format_options(mechanism)))
    return render_patterns(images, "Which keys each query sees", _read_format(file))


def _make_grids(mechanism: Info, directions: Sequence[bool]) -> list[PatternGrid]:
    assert mechanism.pattern is not None
    return compute_share_grids(mechanism.pattern, directions=directions, rows=MAX_CELLS, columns=MAX_CELLS)


def _make_image(mechanism: Info, grid: PatternGrid, title: str, *lines: str) -> PatternImage:
    n, causal = grid.geometry.n, grid.geometry.causal
    colour, _ = choose_colour_and_marker(name_mechanism(mechanism.spec))
    caption = "\n".join(filter(None, (*lines, f"N = {n}, {format_kept_share(grid)}")))
    return PatternImage(grid.shares, n, title, caption, colour, causal)


def _format_options(mechanism: Info) -> str:
    return ", ".join(f"{name}={value}" for name, value in mechanism.options.items() if value is not None)


def _read_format(file: Path) -> Any:
    return file.suffix.lower().removeprefix(".")
