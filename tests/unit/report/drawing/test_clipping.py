"""One outlier does not squeeze the others, and is not lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.report.drawing import figures
from efficient_attn.report.drawing.clipping import choose_clipped_limits, describe_clipped
from efficient_attn.report.drawing.style import choose_line_styles


def line(label: str, *values: float) -> figures.Line:
    line_style = choose_line_styles([label])[label]
    return figures.Line(label, line_style, [256.0 * 2**i for i in range(len(values))], values)


def test_one_outlier_leaves_the_axis_and_is_named_and_marked() -> None:
    lines = [line("a", 1.1, 1.2), line("b", 0.9, 1.3), line("c", 1.0, 1.4), line("linear", 2.0, 900.0)]
    bounds = choose_clipped_limits({each.label: each.y for each in lines}, 1.0)
    assert bounds[0] < 0.9 < 1.4 < bounds[1] < 3
    assert describe_clipped(lines, bounds, "ratio") == " Beyond the axis, marked at its edge: linear (900x)."
    panel = figures.Panel(
        name="p", kind="k", title="t", caption="c", xlabel="x", ylabel="y", unit="ratio", lines=tuple(lines),
        ticks={256.0: "256", 512.0: "512"}, bounds=bounds,
    )  # fmt: skip
    drawn = figures._make_figure(panel).axes[0]
    (mark,) = [artist for artist in drawn.lines if artist.get_marker() == "^" and not artist.get_clip_on()]
    assert list(mark.get_xdata()) == [256.0, 512.0]  # type: ignore[arg-type]
    assert set(mark.get_ydata()) == {bounds[1]}  # type: ignore[arg-type]


values = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=4)


@given(st.dictionaries(st.text(max_size=3), values, min_size=1, max_size=8))
def test_at_most_one_line_leaves_the_axis(found: dict[str, list[float]]) -> None:
    low, high = choose_clipped_limits(found, 1.0)
    beyond = [name for name, own in found.items() if min(own) < low or max(own) > high]
    assert len(beyond) <= 1 or len({(min(found[n]), max(found[n])) for n in beyond}) == 1
    assert low <= 1 <= high
    if len(found) < 4:
        assert not beyond
