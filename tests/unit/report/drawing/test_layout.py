"""Charts: labels inside and apart, exact values in a lane, a bounded height, legible text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from efficient_attn.report.drawing import figures, panel_data, print_figure, small_multiples
from efficient_attn.report.drawing.geometry import arrange, locate_ends
from efficient_attn.report.drawing.labels import PAGE_FORMAT
from efficient_attn.report.drawing.panel_data import Line, Panel, make_dot_plot
from efficient_attn.report.drawing.point_labels import find_leader, place_labels, place_level_text
from efficient_attn.report.drawing.style import MECHANISM_ORDER, choose_line_styles

HOSTILE = ["<b>x</b>:y=&", "a" * 300, "$\\frac$:n=1", "\u202eevil", "x:" + ":".join(f"option{i}={i}" for i in range(9))]
MAX_ASPECT = 1.6
COLUMN, SMALLEST = 346.0, 10.0  # CSS pixels: a picture's width on a page of 390, and the smallest text


def scatter(labels: Sequence[str], ys: Sequence[float], **changes: Any) -> Panel:
    line_styles = choose_line_styles(labels)
    lines = tuple(
        Line(n, line_styles[n], [0.1 * 1.3**i], [y], [0.8 * y], [1.2 * y])
        for i, (n, y) in enumerate(zip(labels, ys, strict=True))
    )
    ticks = {0.05: "", 0.1: "0.1x", 1.0: "1x", 0.1 * 1.3 ** len(labels): "most"}
    fields: dict[str, Any] = {"title": "Error against time", "caption": "", "xlabel": "time", "ylabel": "error"}
    fields |= {"unit": "error", "lines": lines, "ticks": ticks, "mark_type": "points", "exact_below": 1e-5}
    return Panel(**(fields | changes))


def curves(labels: Sequence[str], **changes: Any) -> Panel:
    line_styles = choose_line_styles(labels)
    lines = tuple(
        Line(n, line_styles[n], [1.0, 2.0, 4.0], [1.0, 2.0, 3.0 + i / 50], note="3.0x") for i, n in enumerate(labels)
    )
    fields: dict[str, Any] = {
        "title": "Speedup",
        "caption": "",
        "xlabel": "length",
        "ylabel": "speedup",
        "unit": "ratio",
    }
    fields |= {"lines": lines, "ticks": {1.0: "1K", 2.0: "2K", 4.0: "4K"}, "level": 1.0, "level_text": "full"}
    return Panel(**(fields | changes))


def rows(labels: Sequence[str], **changes: Any) -> Panel:
    line_styles = choose_line_styles(labels)
    lines = [Line(n, line_styles[n], [0.1 + i], [float(i)], note="0.1") for i, n in enumerate(labels)]
    return make_dot_plot(lines, "error", title="Errors", caption="", xlabel="error", **changes)


def read_boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    ticks = [t for axes in figure.axes if axes.axison for t in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    texts = [*(text for axes in figure.axes for text in axes.texts), *ticks]
    return [
        (text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text() and text.get_visible()
    ]


NAMES = [*MECHANISM_ORDER[:19], "full"]
SPECS = [f"{name}:window={i}:n_global=64" for i, name in enumerate(NAMES)]
CASES = {
    "one line": curves(["full"]),
    "lines": curves(NAMES[:12]),
    "lines with options": curves(SPECS[:12]),
    "hostile lines": curves(HOSTILE),
    "points": scatter(NAMES, [0.1 + 0.1 * (i % 7) for i in range(20)]),
    "points with options": scatter(SPECS, [0.1 + 0.1 * (i % 7) for i in range(20)]),
    "points at one place": scatter(SPECS[:9], [0.5] * 9),
    "hostile points": scatter(HOSTILE, [0.1, 0.2, 0.3, 0.4, 1e-7]),
    "exact points": scatter(NAMES[:6], [1e-7, 2e-7, 0.3, 0.4, 0.5, 0.6]),
    "rows": rows(SPECS[:14]),
    "hostile rows": rows(HOSTILE),
    "rows with exact ones": rows(NAMES[:8], exact_below=2.0),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [270 / 72, 3.3, 7.0])
@pytest.mark.parametrize("case", CASES)
def test_texts_stay_inside_and_apart(case: str, width: float) -> None:
    form = PAGE_FORMAT if width == 270 / 72 else print_figure.choose_format(width)
    with figures.matplotlib.rc_context(figures.SETTINGS):
        (figure, *_) = small_multiples.draw_panels([CASES[case].resolve()], form)
        boxes = read_boxes(figure)
        assert figure.get_figheight() <= MAX_ASPECT * figure.get_figwidth() * 1.001
    for text, box in boxes:
        assert box.x0 >= -1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert box.y0 >= -1, text
        assert box.y1 <= figure.bbox.y1 + 1, text
    numbers = {text for text, _ in boxes if text.isdigit()}  # of points at one place, which cannot be apart
    for (first, one), (second, other) in combinations(boxes, 2):
        width_shared = min(one.x1, other.x1) - max(one.x0, other.x0)
        height_shared = min(one.y1, other.y1) - max(one.y0, other.y0)
        if not ({first, second} & numbers):
            assert width_shared <= 1 or height_shared <= 0.4 * min(one.height, other.height), (first, second)


@pytest.mark.parametrize("case", CASES)
def test_text_is_legible_on_a_phone_and_in_a_column(case: str) -> None:
    plot = figures.render_plot(CASES[case], raster=False)
    ElementTree.fromstring(plot.svg)
    width = float(plot.view_box.split()[2])
    sizes = [PAGE_FORMAT.text, PAGE_FORMAT.small, *map(float, re.findall(r'font-size="([\d.]+)"', plot.body))]
    assert min(sizes) * COLUMN / width >= SMALLEST
    form = print_figure.choose_format(3.3)
    assert min(form.text, form.small) >= 6.5


def test_every_label_is_in_the_chart() -> None:
    for case, panel in CASES.items():
        if "hostile" not in case:
            body = figures.render_plot(panel, raster=False).body
            assert [line.label for line in panel.lines if f">{line.label.partition(':')[0]}<" not in body] == [], case


def test_exact_values_stand_in_a_lane_and_not_on_the_scale() -> None:
    panel = CASES["exact points"].resolve()
    low, high = panel.bounds or (0.0, 0.0)
    assert 0.1 < low < 0.3 < 0.6 < high, "1e-7 is not on the axis"
    with figures.matplotlib.rc_context(figures.SETTINGS):
        figure = figures.make_figure(panel)
    _, plot, lane = figure.axes
    assert lane.bbox.y1 < plot.bbox.y0
    assert [text.get_text() for text in lane.get_yticklabels()] == ["exact"]
    assert sorted(float(line.get_xdata()[0]) for line in lane.lines) == pytest.approx([0.1, 0.13])  # type: ignore[arg-type,index]
    assert len(plot.lines) == 4


def test_the_front_ends_in_the_lane_as_a_step() -> None:
    front = ((0.169, 0.5), (0.2, 0.3))
    plain = scatter(NAMES[:4], [1e-7, 0.5, 0.3, 0.6], pareto_front=front)
    assert "stroke-dasharray" not in figures.render_plot(plain, raster=False).body
    assert "stroke-dasharray" in figures.render_plot(replace(plain, front_end=0.1), raster=False).body


def test_the_text_of_a_level_is_not_over_values_nor_under_leaders() -> None:
    rising = [Line("linear", choose_line_styles(["linear"])["linear"], [1.0, 2.0, 4.0], [0.9, 1.5, 3.0])]
    panel = curves(["linear"], lines=tuple(rising)).resolve()
    geometry = arrange(panel, PAGE_FORMAT, ())
    text = place_level_text(panel, PAGE_FORMAT, geometry)
    assert text.left > geometry.plot.left + 50, "the line starts below the left end of the level"
    ys = [0.5, 0.52, 0.54, 0.51, 0.53, 0.5, 0.52, 0.51]
    crowd = scatter(SPECS[:8], ys, level=0.45, level_text="x" * 24).resolve()
    geometry = arrange(crowd, PAGE_FORMAT, ())
    text, points = place_level_text(crowd, PAGE_FORMAT, geometry), locate_ends(crowd, geometry)
    places = place_labels(crowd, PAGE_FORMAT, geometry)
    leaders = [find_leader(point, place.box) for point, place in zip(points, places, strict=True)]
    assert any(leaders)
    for (x, y), (x_end, y_end) in filter(None, leaders):
        for share in (i / 50 for i in range(51)):
            at_x, at_y = x + (x_end - x) * share, y + (y_end - y) * share
            assert not (text.left < at_x < text.right and text.low < at_y < text.high)


def test_no_number_is_over_a_marker() -> None:
    styles, xs = choose_line_styles(SPECS[:7]), (0.44, 0.452, 0.458, 0.462, 0.465, 0.49, 0.57)
    lines = [Line(n, styles[n], [x], [13.0], left=[0.8 * x], right=[1.2 * x]) for n, x in zip(SPECS, xs, strict=False)]
    fields: dict[str, Any] = {"ticks": {0.3: "", 0.5: "0.5x", 1.5: ""}, "bounds": (1.0, 17.0), "exact_below": None}
    panel = scatter([], [], lines=tuple(lines), level=10.0, level_text="above 10x, not to scale", **fields).resolve()
    geometry = arrange(panel, PAGE_FORMAT, ())
    for x, y in locate_ends(panel, geometry):
        for place in place_labels(panel, PAGE_FORMAT, geometry):
            box = place.box
            assert not (box.left < x < box.right and box.low < y < box.high), place


def test_without_exact_values_there_is_no_lane() -> None:
    body = figures.render_plot(CASES["points"], raster=False).body
    assert ">exact<" not in body
    assert ">exact<" in figures.render_plot(CASES["rows with exact ones"], raster=False).body


def test_a_line_is_exact_only_where_it_is() -> None:
    line = Line(
        "full", choose_line_styles(["full"])["full"], [1.0, 2.0, 4.0], [1e-9, 0.2, 1e-7], [0, 0.1, 0], [1e-8, 0.3, 1e-6]
    )
    panel = scatter(["full"], [0.5], lines=(line,))
    (inexact,), (exact,) = panel.split_lane(exact=False), panel.split_lane(exact=True)
    assert (inexact.x, inexact.y, inexact.low, inexact.high) == ([2.0], [0.2], [0.1], [0.3])
    assert (exact.x, exact.y, exact.low, exact.high) == ([1.0, 4.0], [0.0, 0.0], None, None)


def test_long_lists_are_split_and_keep_all_rows() -> None:
    labels = [f"performer:n_features={i}" for i in range(40)]
    parts = rows(labels).split()
    assert [text for text, _ in parts] == ["1 of 3", "2 of 3", "3 of 3"]
    assert [label for _, part in parts for label in part.labels] == labels
    assert all(len(part.labels) <= panel_data.MOST_ROWS for _, part in parts)
    parts = scatter(labels, [0.1] * 40).split()
    assert [len(part.labels) for _, part in parts] == [20, 20]
    assert {len(part.lines) for _, part in parts} == {40}, "all have all points"  # type: ignore[attr-defined]


def test_a_chart_is_small() -> None:
    plot = figures.render_plot(CASES["lines"], raster=False)
    assert len(plot.inline) < 7000
    assert "style" not in plot.inline
