"""Clipped axes: one outlier leaves the axis and is reported."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.report.drawing import figures, panel_data
from efficient_attn.report.drawing.axes import choose_clipped_limits
from efficient_attn.report.drawing.length_plots import describe_clipped
from efficient_attn.report.drawing.style import choose_line_styles


def line(label: str, *values: float) -> panel_data.Line:
    line_style = choose_line_styles([label])[label]
    return panel_data.Line(label, line_style, [256.0 * 2**i for i in range(len(values))], values)


def test_an_outlier_is_clipped_named_and_marked() -> None:
    lines = [line("a", 1.1, 1.2), line("b", 0.9, 1.3), line("c", 1.0, 1.4), line("linear", 2.0, 900.0)]
    bounds = choose_clipped_limits({curve.label: curve.y for curve in lines}, 1.0)
    assert bounds[0] < 0.9 < 1.4 < bounds[1] < 3
    assert describe_clipped(lines, bounds, "ratio") == " Beyond the axis, marked at its edge: linear (900x)."
    panel = panel_data.Panel(
        name="p", kind="k", title="t", caption="c", xlabel="x", ylabel="y", unit="ratio", lines=tuple(lines),
        ticks={256.0: "256", 512.0: "512"}, bounds=bounds,
    )  # fmt: skip
    drawn = figures.make_figure(panel).axes[1]
    (mark,) = [artist for artist in drawn.lines if artist.get_marker() == "^" and not artist.get_clip_on()]
    assert list(mark.get_xdata()) == [256.0, 512.0]  # type: ignore[arg-type]
    assert set(mark.get_ydata()) == {bounds[1]}  # type: ignore[arg-type]


values = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=4)


@given(st.dictionaries(st.text(max_size=3), values, min_size=1, max_size=8))
def test_at_most_one_line_is_clipped(lines: dict[str, list[float]]) -> None:
    low, high = choose_clipped_limits(lines, 1.0)
    clipped = [name for name, y in lines.items() if min(y) < low or max(y) > high]
    assert len(clipped) <= 1 or len({(min(lines[n]), max(lines[n])) for n in clipped}) == 1
    assert low <= 1 <= high
    if len(lines) < 4:
        assert not clipped
