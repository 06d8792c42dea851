"""Plots for print: size, fonts, and names that do not overlap."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from efficient_attn.report.drawing import print_figure
from efficient_attn.report.drawing.panel_data import Line, Panel
from efficient_attn.report.drawing.small_multiples import draw_panels, share_axes
from efficient_attn.report.drawing.style import FAINT, choose_line_styles

LONG = "sliding_window:window=128:causal=true:sinks=4"


def panel(*labels: str, **changes: Any) -> Panel:
    line_styles = choose_line_styles(labels)
    lines = tuple(Line(n, line_styles[n], [1.0, 2.0, 4.0], [i + 1.0, i + 2.0, i + 3.0]) for i, n in enumerate(labels))
    defaults: dict[str, Any] = {
        "name": "p", "kind": "k", "title": "", "caption": "c", "xlabel": "length", "ylabel": "speedup",
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


def draw(*panels: Panel, width: float = 3.3, titles: Sequence[str] = (), bold: Collection[str] = ()) -> list[Figure]:
    with matplotlib.rc_context(print_figure.PRINT_SETTINGS):
        form = print_figure.choose_format(width)
        figures = list(draw_panels(share_axes(panels), form, titles, bold))
        for figure in figures:
            figure.draw(FigureCanvasAgg(figure).get_renderer())
        return figures


def list_texts(figure: Figure) -> list[Text]:
    texts = [
        text for axes in figure.axes for text in axes.findobj(Text) if text.get_visible() and text.get_text().strip()
    ]
    return [text for text in texts if isinstance(text, Text)]


def find(figure: Figure, word: str) -> list[Text]:
    return [text for text in list_texts(figure) if word in text.get_text()]


def test_pdf_has_the_requested_width_and_embedded_fonts() -> None:
    (data,) = print_figure.render_print_figure([panel("full", "linear")], "pdf", width=3.3)
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ", data)
    assert box
    assert float(box[1]) == pytest.approx(3.3 * 72, abs=0.1)
    assert b"/Subtype /Type3" not in data
    assert b"/FontFile2" in data, "TrueType, embedded"
    assert b"CreationDate" not in data


def test_svg_keeps_text_and_the_configuration_is_optional() -> None:
    (svg,) = print_figure.render_print_figure([panel("full", "a$b$")], "svg", width=3.3)
    assert "machine M2" in svg.decode()
    assert "a$b$" in svg.decode()
    (bare,) = print_figure.render_print_figure([panel("full")], "svg", width=3.3, with_config=False)
    assert not re.search(r"<text[^>]*>cpu, machine M2", bare.decode())


EIGHT = [f"{LONG}{i}" for i in range(8)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [2.0, 3.3, 6.8])
@pytest.mark.parametrize(
    "panels",
    [
        [panel("full", "linear")],
        [panel("full", *EIGHT)],
        [rows(*EIGHT)],
        [rows(*EIGHT), rows("full", *EIGHT[:4])],
        [panel("full", *EIGHT[:4])] * 3,
        [panel("full", "linear", mark_type="points")] * 4,
    ],
)
def test_text_is_legible_and_inside_and_does_not_overlap(panels: list[Panel], width: float) -> None:
    titles = ["forward, causal, 4 heads of size 64", "decode", "third", "fourth"][: len(panels)]
    for figure in draw(*panels, width=width, titles=titles):
        texts, full = list_texts(figure), figure.bbox
        assert min(float(text.get_fontsize()) for text in texts) >= 6.5
        boxes = [text.get_window_extent() for text in texts]
        if width >= 3.3:  # a word may be longer than the narrowest column
            assert all(box.x0 >= -1 and box.x1 <= full.x1 + 1 for box in boxes)
            assert full.height <= 1.25 * full.width
        assert all(box.y0 >= -1 and box.y1 <= full.y1 + 1 for box in boxes)
        assert len(figure.axes) > len(panels), "the plots and the canvas"
        for i, (first, text) in enumerate(zip(boxes, texts, strict=True)):
            for second, other in zip(boxes[i + 1 :], texts[i + 1 :], strict=True):
                shared = min(first.y1, second.y1) - max(first.y0, second.y0)
                disjoint = first.x1 <= second.x0 + 1 or second.x1 <= first.x0 + 1
                overlap = not disjoint and shared > 0.4 * min(first.height, second.height)
                assert not overlap, (text.get_text(), other.get_text())


def test_panels_share_axes_and_one_key() -> None:
    low, high = panel("full", "linear"), panel("full", "mqa", "linear")
    high = replace(high, lines=tuple(replace(line, y=[10 * y for y in line.y]) for line in high.lines))
    (figure,) = draw(low, high, titles=["4 heads", "8 heads"])
    _, first, second = figure.axes
    assert first.get_ylim() == second.get_ylim()
    assert [len(find(figure, name)) for name in ("linear", "mqa", "4 heads", "8 heads", "speedup")] == [1] * 5
    assert [text.get_text() for text in first.get_yticklabels() if text.get_visible()]
    assert not second.yaxis.get_tick_params()["labelleft"]


def test_points_of_several_panels_have_numbers_of_the_key() -> None:
    labels = [f"sliding_window:window={2**i}" for i in range(5)]
    line_styles = choose_line_styles(labels)
    points = tuple(Line(n, line_styles[n], [1.0 + i], [1.0 + i]) for i, n in enumerate(labels))
    both = panel(mark_type="points", lines=points), panel(mark_type="points", lines=points[:1] + points[2:])
    (figure,) = draw(*both, titles=["a", "b"])
    assert [len(exact(figure, number)) for number in "12345"] == [3, 3, 3, 2, 3], "of the key and both panels"
    (figure,) = draw(*[replace(both[0], lines=points[:1] * 2)] * 2, titles=["a", "b"])
    assert not exact(figure, "2"), "a label with two points has one number"


def test_other_values_have_their_own_axis() -> None:
    (figure,) = draw(panel("full"), panel("full", ylabel="state", unit="bytes"), titles=["a", "b"])
    _, first, second = figure.axes
    assert second.yaxis.get_tick_params()["labelleft"]
    assert len(find(figure, "state")) == len(find(figure, "speedup")) == 1
    assert first.get_window_extent().width == pytest.approx(second.get_window_extent().width)


def test_many_rows_are_split_over_pages_and_none_is_lost() -> None:
    names = [f"m{i}:window={i}" for i in range(60)]
    figures = draw(rows(*names))
    assert len(figures) > 2
    drawn = [name for figure in figures for name in (f"m{i}" for i in range(60)) if exact(figure, name)]
    assert sorted(drawn) == sorted(name.partition(":")[0] for name in names)
    lefts = {round(figure.axes[1].get_position().x0, 3) for figure in figures}
    assert len(lefts) == 1, "pages are aligned"
    counts = [sum(bool(exact(figure, f"m{i}")) for i in range(60)) for figure in figures]
    assert max(counts) - min(counts) <= 1


def exact(figure: Figure, word: str) -> list[Text]:
    return [text for text in list_texts(figure) if text.get_text() == word]


def test_rows_without_a_value_in_a_panel_keep_their_place() -> None:
    (figure,) = draw(rows("full", "linear", "mqa"), rows("mqa"), titles=["a", "b"], width=6.8)
    _, first, second = figure.axes
    heights = [{float(y) for line in axes.lines for y in np.asarray(line.get_ydata())[:1]} for axes in (first, second)]
    assert len(heights[0]) == 3
    assert max(heights[0]) in heights[1], "mqa, the first row of both"


def test_highlighted_lines_are_thicker_with_bold_names() -> None:
    (figure,) = draw(panel("full", "linear"), bold={"linear"})
    widths = {line.get_linewidth() for line in figure.axes[1].lines if np.size(line.get_xdata()) == 3}
    assert len(widths) == 2
    assert [text.get_fontweight() for name in ("full", "linear") for text in exact(figure, name)] == ["normal", "bold"]


def test_greyed_mechanisms_keep_their_markers_and_no_two_look_the_same() -> None:
    names = ["full", "mqa", "linear", "sliding_window:window=64", "sliding_window:window=128", "linformer", "reformer"]
    names += ["performer:n_features=64", "performer:n_features=256", "cosformer"]
    line_styles = choose_line_styles(names)
    grey = print_figure.grey_out(line_styles, {"performer:n_features=64"})
    assert sorted(grey) == sorted(names)
    assert grey["performer:n_features=64"] == line_styles["performer:n_features=64"]
    assert {style.colour for name, style in grey.items() if name != "performer:n_features=64"} == {FAINT}
    assert len({(style.marker, style.hollow) for style in grey.values()}) == len(names)
    changed = [name for name in names if grey[name].marker != line_styles[name].marker]
    taken = Counter(style.marker for style in line_styles.values())
    assert all(taken[line_styles[name].marker] > 1 for name in changed), "only where two had the same"
    twenty = {f"m{i}": line_styles["linear"] for i in range(20)}
    assert len({(style.marker, style.hollow) for style in print_figure.grey_out(twenty, ()).values()}) == 20
