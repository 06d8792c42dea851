"""Pictures of mechanisms' patterns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..patterns.rasterize import compute_share_grids
from ..registry import Info, info
from ..report.drawing.pattern_image import PatternImage, render_patterns
from ..report.drawing.style import choose_colour_and_marker, name_mechanism
from .console import format_kept_share

MAX_CELLS = 256  # a side, in a picture of two inches; shorter sequences have one cell for each pair


def render_portrait(mechanism: Info, file: Path) -> bytes:
    """A picture of one mechanism's pattern, in each direction that it supports."""
    if mechanism.pattern is None:
        raise UsageError(f"info: {mechanism.spec} has no pattern to draw")
    options = _format_options(mechanism)
    title = f"{mechanism.name}: {options}" if options else mechanism.spec
    return render_patterns(_make_images(mechanism, mechanism.traits.directions), title, _read_format(file))


def render_gallery(names: Sequence[str], file: Path) -> bytes:
    """A picture of all patterns with default options, causal only if the mechanism has no other direction."""
    infos = [mechanism for mechanism in map(info, names) if mechanism.pattern is not None]
    if not infos:
        raise UsageError(f"list: none of these mechanisms has a pattern to draw: {', '.join(names)}")
    images = [image for m in infos for image in _make_images(m, m.traits.directions[:1], of_several=True)]
    return render_patterns(images, "Which keys each query sees", _read_format(file))


def _make_images(mechanism: Info, directions: Sequence[bool], *, of_several: bool = False) -> list[PatternImage]:
    """Images of one mechanism. of_several: with its name and options."""
    assert mechanism.pattern is not None
    colour, _ = choose_colour_and_marker(name_mechanism(mechanism.spec))
    images = []
    for grid in compute_share_grids(mechanism.pattern, directions=directions, rows=MAX_CELLS, columns=MAX_CELLS):
        n, causal = grid.geometry.n, grid.geometry.causal
        title = f"{mechanism.name}{', causal' if causal else ''}" if of_several else grid.direction
        options = _format_options(mechanism) if of_several else ""
        caption = "\n".join(filter(None, (options, f"N = {n}, {format_kept_share(grid)}")))
        images.append(PatternImage(grid.shares, n, title, caption, colour, causal))
    return images


def _format_options(mechanism: Info) -> str:
    return ", ".join(f"{name}={value}" for name, value in mechanism.options.items() if value is not None)


def _read_format(file: Path) -> Any:
    return file.suffix.lower().removeprefix(".")
