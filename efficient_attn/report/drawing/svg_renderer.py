"""Compact SVG of matplotlib figures: short relative paths whose colors are classes of a style sheet for all charts.

matplotlib's own writer repeats the style of each element. Here elements of the same style share a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.backend_bases import GraphicsContextBase, RendererBase
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.transforms import Affine2D, IdentityTransform, Transform

from .style import CARD, CLASSES, INK

LINE_WIDTH, TEXT_SIZE, SMALL_TEXT_SIZE, TITLE_SIZE = 1.5, 8.4, 7.9, 9.2  # points, of the style sheet
TEXT_CLASSES = {TEXT_SIZE: "", SMALL_TEXT_SIZE: "o", TITLE_SIZE: "b"}
ANCHORS = {"left": ("", 0.0), "center": ("m", 0.5), "right": ("e", 1.0)}  # class, and share of the text before it
AXIS_GROUP = "matplotlib.axis"  # its ticks and grid lines do not overlap, so they are grouped by style


def draw_svg(figure: Figure) -> tuple[str, str]:
    """The view box of a figure in points, and the elements of its SVG."""
    figure.dpi = 72
    width, height = (float(side) for side in figure.bbox.size)
    renderer = SvgRenderer(width, height)
    figure.draw(renderer)
    return f"0 0 {_format_number(10 * width)} {_format_number(10 * height)}", renderer.finish()


class SvgRenderer(RendererBase):
    """Collects the elements of an SVG. Lengths are points, rounded to a tenth."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__()
        self.size = width, height
        self._parts: list[str] = []
        self._paths: dict[str, list[str]] = {}  # data of paths not written yet, by attributes
        self._texts: list[str] = []  # of the axis that is being drawn
        self._in_axis = False

    def finish(self) -> str:
        """All elements."""
        self._flush()
        return "".join(self._parts)

    def _flush(self) -> None:
        self._parts += [f'<path{attributes} d="{"".join(data)}"/>' for attributes, data in self._paths.items()]
        self._parts += self._texts
        self._paths, self._texts = {}, []

    def _add_path(self, attributes: str, data: str) -> None:
        if not self._in_axis and attributes not in self._paths:
            self._flush()
        self._paths.setdefault(attributes, []).append(data)

    # -- matplotlib's interface ------------------------------------------------------------------------------------

    def get_canvas_width_height(self) -> tuple[float, float]:
        """The size in points."""
        return self.size

    def flipy(self) -> bool:
        """y increases downwards."""
        return True

    def open_group(self, s: str, gid: str | None = None) -> None:
        """Collect the parts of an axis."""
        if s == AXIS_GROUP:
            self._flush()
            self._in_axis = True

    def close_group(self, s: str) -> None:
        """Write the parts of an axis."""
        if s == AXIS_GROUP:
            self._flush()
            self._in_axis = False

    def draw_path(self, gc: GraphicsContextBase, path: Path, transform: Transform, rgbFace: Any = None) -> None:
        """Add a path, clipped to the axes."""
        if attributes := _format_attributes(gc, rgbFace):
            box = gc.get_clip_rectangle()
            flip = Affine2D().scale(1, -1).translate(0, self.size[1])
            placed = transform.transform_path(path)
            clip = None if box is None else (box.x0, self.size[1] - box.y1, box.x1, self.size[1] - box.y0)
            if box is not None and rgbFace is not None and np.size(placed.vertices):
                placed, clip = placed.clip_to_bbox(box), None
            self._add_path(attributes, _format_path(placed, flip, clip, filled=rgbFace is not None))

    def draw_markers(
        self,
        gc: GraphicsContextBase,
        marker_path: Path,
        marker_trans: Transform,
        path: Path,
        trans: Transform,
        rgbFace: Any = None,
    ) -> None:
        """Add a marker at each point within the axes; it may reach beyond them."""
        box, points = gc.get_clip_rectangle(), trans.transform(path.vertices)
        if box is not None:
            points = [(x, y) for x, y in points if box.x0 - 1 <= x <= box.x1 + 1 and box.y0 - 1 <= y <= box.y1 + 1]
            gc.set_clip_rectangle(None)
        if len(points):
            super().draw_markers(gc, marker_path, marker_trans, Path(points), IdentityTransform(), rgbFace)

    def draw_text(  # noqa: PLR0917 - the interface of matplotlib
        self,
        gc: GraphicsContextBase,
        x: float,
        y: float,
        s: str,
        prop: Any,
        angle: float,
        ismath: Any = False,
        mtext: Any = None,
    ) -> None:
        """Add a line of text, anchored as it is aligned, because the reader's font has other widths. y: from above."""
        size = prop.get_size_in_points()
        anchor, share = ANCHORS[mtext.get_ha() if mtext else "left"]  # of a text with several lines, mtext is None
        x += share * self.get_text_width_height_descent(s, prop, False)[0]
        nearest = min(TEXT_CLASSES, key=lambda other: abs(other - size))
        colour = to_hex(gc.get_rgb())
        names = [anchor, TEXT_CLASSES[nearest], "" if colour == INK else CLASSES[colour]]
        attributes = _format_classes(names) + f' x="{_format_number(10 * x)}" y="{_format_number(10 * y)}"'
        if abs(nearest - size) > 0.05:
            attributes += f' font-size="{size:g}"'
        if prop.get_weight() == "bold" and nearest != TITLE_SIZE:
            attributes += ' font-weight="700"'
        text = f"<text{attributes}>{escape(s, quote=False)}</text>"
        if self._in_axis:
            self._texts.append(text)
        else:
            self._flush()
            self._parts.append(text)


def _format_classes(names: Sequence[str]) -> str:
    listed = " ".join(filter(None, names))
    return f' class="{listed}"' if listed else ""


def _format_attributes(gc: GraphicsContextBase, face: Any) -> str:
    """Classes and other attributes of a path; empty if it is invisible."""
    stroke, width = to_hex(gc.get_rgb()), gc.get_linewidth()
    has_stroke = width > 0 and gc.get_rgb()[3] > 0
    fill = None if face is None or (len(face) == 4 and face[3] == 0) else to_hex(face)
    if not has_stroke and fill is None:
        return ""
    kind = "s" if fill is None else "f" if not has_stroke else "h" if fill == CARD else "a"
    colour = fill if fill is not None and kind in "fa" else stroke
    attributes = _format_classes([kind, "" if colour == INK else CLASSES[colour]])
    if has_stroke and abs(width - LINE_WIDTH) > 0.01:
        attributes += f' stroke-width="{width:.2g}"'
    _, dashes = gc.get_dashes()
    if has_stroke and dashes is not None:
        attributes += f' stroke-dasharray="{" ".join(f"{dash:.2g}" for dash in np.atleast_1d(dashes))}"'
    alpha: Any = gc.get_alpha() if gc.get_forced_alpha() or face is None else (*face, 1.0)[3]
    return attributes + (f' opacity="{alpha:.2g}"' if alpha < 1 else "")


def _format_number(tenths: float) -> str:
    text = f"{round(tenths) / 10:.1f}".removesuffix(".0")
    return re.sub(r"^(-?)0\.", r"\1.", text)


def _format_path(path: Path, transform: Transform, clip: Any, *, filled: bool) -> str:
    if filled and (circle := _format_circle(path, transform)):
        return circle
    text = "".join(_list_commands(path, transform, clip))
    return re.sub(r"([a-zA-Z]) |(?<=[\d.]) (?=-)", r"\1", text)


def _format_circle(path: Path, transform: Transform) -> str:
    """The short form of matplotlib's round marker, which is of Bezier curves; empty for other paths."""
    if path.codes is None or not (np.asarray(path.codes) == Path.CURVE4).any():
        return ""
    box = path.get_extents(transform)
    x, y, r = (_format_number(10 * value) for value in (box.x0, (box.y0 + box.y1) / 2, box.width / 2))
    return f"M{x} {y}a{r} {r} 0 1 1 0 .1z"


def _list_commands(path: Path, transform: Transform, clip: Any) -> Iterator[str]:
    """Commands relative to the last point, in tenths of a point."""
    at, last = (0, 0), ""  # last: the letter that may be omitted
    for vertices, code in path.iter_segments(transform, clip=clip, curves=False):
        if code == Path.CLOSEPOLY:
            yield "z"
            last = ""
            continue
        x, y = (round(10 * float(value)) for value in vertices[-2:])
        dx, dy = x - at[0], y - at[1]
        if code == Path.MOVETO:
            yield f"M {_format_number(x)} {_format_number(y)}"
            last = ""
        elif dx or dy:
            letter = "h" if not dy else "v" if not dx else "l"
            numbers = [_format_number(d) for d in ((dx,) if letter == "h" else (dy,) if letter == "v" else (dx, dy))]
            yield f"{'' if letter == last else letter} {' '.join(numbers)}"
            last = letter
        at = (x, y)
