"""Interval charts: labels, marks, intervals and limits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from efficient_attn.report.drawing.figures import render_plot
from efficient_attn.report.drawing.interval_chart import MAX_LETTERS, IntervalChart, IntervalRow, shorten_label

NAMES = [f"performer:kind=positive:n_features={2**i}" for i in range(14)]


def make_chart(*interval_rows: IntervalRow) -> IntervalChart:
    return IntervalChart(
        name="a", kind="growth", title="T", caption="", config_text="here", rows=interval_rows, xlabel="Exponent"
    )


def test_labels_do_not_overlap_and_stay_inside() -> None:
    figure = make_chart(*(IntervalRow(name, 1.0, 0.9, 1.1, 2.0) for name in NAMES)).make_figure()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (axes,) = figure.axes
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert [label.get_text() for label in axes.get_yticklabels()] == [shorten_label(name) for name in NAMES]
    assert all(box.x0 > 0 for box in boxes)
    tops = sorted((box.y0, box.y1) for box in boxes)
    assert all(below[1] <= above[0] for below, above in pairwise(tops))


@pytest.mark.parametrize(("claimed", "names"), [(2.0, ["measured", "claimed"]), (None, ["measured"])])
def test_marks_are_named_only_if_drawn(claimed: float | None, names: list[str]) -> None:
    figure = make_chart(IntervalRow("full", 1.0, 0.9, 1.1, claimed), IntervalRow("linear", 1.0)).make_figure()
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == names
    drawn = [list(line.get_xdata()) for line in axes.lines if line.get_transform() != axes.transAxes]
    assert drawn == [[0.9, 1.1], [1.0], *([[2.0]] if claimed else []), [1.0]]


def test_the_first_row_is_on_top_and_limits_include_all_values() -> None:
    shown = make_chart(IntervalRow("full", 2.0, 1.5, 2.5, 3.0), IntervalRow("linear", 1.0))
    low, high = shown.limits
    assert low < 1.0 < 3.0 < high
    bottom, top = shown.make_figure().axes[0].get_ylim()
    assert bottom > 1 > 0 > top


def test_long_labels_end_in_an_ellipsis() -> None:
    assert shorten_label("full") == "full"
    assert (len(shorten_label(NAMES[0])), shorten_label(NAMES[0])[-1]) == (MAX_LETTERS, "\u2026")


def test_rendering_is_reproducible_and_escapes_names() -> None:
    shown = make_chart(IntervalRow("<b>$x$", 1.0), IntervalRow("linear", 2.0))
    first, again = render_plot(shown), render_plot(shown)
    assert (first.svg, first.png) == (again.svg, again.png)
    assert "&lt;b&gt;$x$" in first.svg
