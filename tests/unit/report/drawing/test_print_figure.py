"""Plots for print: size, fonts, and names that do not overlap."""

from __future__ import annotations

import re
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from efficient_attn.report.drawing import print_figure
from efficient_attn.report.drawing.figures import Line, Panel
from efficient_attn.report.drawing.style import choose_line_styles

LONG = "sliding_window:window=128:causal=true:sinks=4"


def panel(*labels: str, **changes: Any) -> Panel:
    line_styles = choose_line_styles(labels)
    lines = tuple(Line(n, line_styles[n], [1.0, 2.0, 4.0], [i + 1.0, i + 2.0, i + 3.0]) for i, n in enumerate(labels))
    defaults: dict[str, Any] = {
        "name": "p", "kind": "k", "title": "Speed", "caption": "c", "xlabel": "length", "ylabel": "speedup",
        "unit": "ratio", "lines": lines, "ticks": {1.0: "1K", 2.0: "2K", 4.0: "4K"}, "config_text": "cpu, machine M2",
    }  # fmt: skip
    return Panel(**(defaults | changes))


def rows(*labels: str) -> Panel:
    line_styles = choose_line_styles(labels)
    lines = tuple(
        Line(n, line_styles[n], [0.5], [float(i)], left=[0.4], right=[0.6], note="0.5") for i, n in enumerate(labels)
    )
    return panel(
        lines=lines,
        ylabel="",
        log_y=False,
        mark_type="points",
        bounds=(-0.6, len(labels) - 0.4),
        ticks={0.4: "0.4", 1.0: "1"},
    )


def test_pdf_has_the_requested_width_and_embedded_fonts() -> None:
    data = print_figure.render_print_figure(panel("full", "linear"), "pdf", width=3.3)
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ", data)
    assert box
    assert float(box[1]) == pytest.approx(3.3 * 72, abs=0.1)
    assert b"/Subtype /Type3" not in data
    assert b"/FontFile2" in data, "TrueType, embedded"
    assert b"CreationDate" not in data


def test_svg_keeps_text_and_the_configuration_is_optional() -> None:
    svg = print_figure.render_print_figure(panel("full", "a$b$"), "svg", width=3.3).decode()
    assert "machine M2" in svg
    assert "a$b$" in svg
    assert (
        "machine M2"
        not in print_figure.render_print_figure(panel("full"), "svg", width=3.3, with_config=False).decode()
    )


EIGHT = [f"{LONG}{i}" for i in range(8)]


@pytest.mark.parametrize("width", [1.5, 3.3, 7.0])
@pytest.mark.parametrize("drawn", [panel("full", "linear"), panel("full", *EIGHT), rows(*EIGHT)])
def test_labels_stay_inside_and_do_not_overlap(drawn: Panel, width: float) -> None:
    with print_figure.matplotlib.rc_context(
        print_figure.PRINT_SETTINGS | {"font.size": print_figure.TEXT_SIZES[width >= print_figure.LARGE_TEXT_WIDTH]}
    ):
        figure = print_figure._make_figure(drawn.resolve(), width, ())
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        axes = figure.axes[0]
        legend = figure.legends[0].get_texts() if figure.legends else []
        names = [*legend, *axes.texts, *(axes.get_yticklabels() if not drawn.ylabel else [])]
        boxes = [text.get_window_extent(renderer) for text in names]
    full = figure.bbox
    if width >= 3.3:  # a name may be longer than the narrowest column
        assert all(box.x0 >= -1 and box.x1 <= full.x1 + 1 for box in boxes)
    assert all(box.y0 >= -1 and box.y1 <= full.y1 + 1 for box in boxes)
    assert axes.bbox.width > 0.15 * full.width
    for i, first in enumerate(boxes):
        for second in boxes[i + 1 :]:
            shared = min(first.y1, second.y1) - max(first.y0, second.y0)
            disjoint = first.x1 <= second.x0 + 1 or second.x1 <= first.x0 + 1
            assert disjoint or shared <= 0.3 * min(first.height, second.height)


def test_highlighted_lines_are_thicker_with_bold_names() -> None:
    with print_figure.matplotlib.rc_context(print_figure.PRINT_SETTINGS):
        figure = print_figure._make_figure(panel("full", LONG).resolve(), 3.3, {LONG})
    full, highlighted = (line for line in figure.axes[0].lines if len(line.get_xdata()) == 3)
    assert highlighted.get_linewidth() > full.get_linewidth()
    weights = [text.get_fontweight() for text in figure.legends[0].get_texts()]
    assert weights == ["normal", "bold"]
