"""The contents of plots over length."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import report_runs as runs
from matplotlib.axes import Axes

from efficient_attn.report import approximation_errors, gather, page, select
from efficient_attn.report.drawing import axes, figures, panel_data, style
from efficient_attn.report.drawing.heatmap import Heatmap
from efficient_attn.report.sections import section_blocks

ROOT = Path(__file__).parents[4]


def panel(*lines: panel_data.Line, **changed: object) -> panel_data.Panel:
    ticks = {float(x): str(int(x)) for line in lines for x in line.x}
    defaults = {
        "name": "p",
        "kind": "time",
        "title": "A <b> & c",
        "caption": "",
        "xlabel": "n",
        "ylabel": "t",
        "unit": "time",
    }
    return panel_data.Panel(**({**defaults, "lines": lines, "ticks": ticks} | changed))  # type: ignore[arg-type]


def thinned(shown: panel_data.Panel) -> dict[float, str]:
    return axes.thin_ticks(shown.ticks, axes.compute_x_limits(shown.ticks, log=True, margin=0), log=True)


def line(label: str, *y: float, **changed: object) -> panel_data.Line:
    x = [512.0 * 2**i for i in range(len(y))]
    return panel_data.Line(label, style.choose_line_styles([label])[label], x, y, **changed)  # type: ignore[arg-type]


def test_plots_name_their_lines_and_are_self_contained() -> None:
    plot = figures.render_plot(
        panel(line("full", 1, 4, 16, note="N^2.00"), line("linear", 1, 2, 4, low=(0.9, 1.9, 3.9), high=(1.1, 2.1, 4.1)))
    )
    ElementTree.fromstring(plot.svg)
    assert plot.png.startswith(b"\x89PNG")
    shown = plot.inline
    assert "A &lt;b&gt; &amp; c, for full and linear.</title>" in shown
    assert "N^2.00" in shown
    assert not re.findall(r"href|src=|url\(| id=| style=", shown)


@pytest.mark.parametrize("y", [(1.0,), (1.0, 1.0), (1e-9, 1e9), (3.0, 3.0000001)])
@pytest.mark.parametrize("unit", ["time", "bytes", "ratio", "error"])
def test_odd_values_can_be_drawn(y: tuple[float, ...], unit: str) -> None:
    assert "<svg" in figures.render_plot(panel(line("full", *y), unit=unit)).svg


@pytest.mark.sampled
@pytest.mark.parametrize("drawn", ["line", "points", "bars"])
@pytest.mark.parametrize("y", [(0.0,), (0.0, 0.0), (-1.0, 2.0, 0.5), (1e-9, 1e9), (3.0, 3.0000001)])
@pytest.mark.parametrize("unit", ["time", "bytes", "share", "count", "number"])
def test_odd_values_can_be_drawn_from_zero(y: tuple[float, ...], unit: str, drawn: str) -> None:
    shown = panel(line("full", *y), line("linear", *y), unit=unit, mark_type=drawn, log_x=False, log_y=False)
    svg = figures.render_plot(shown).svg
    ElementTree.fromstring(svg)
    assert "nan" not in svg


def test_bars_are_offset_and_start_at_zero() -> None:
    lines = [replace(line(name, 1, 2), x=(0.0, 1.0)) for name in ("full", "linear")]
    (first, second) = panel_data._offset_bars(lines)
    assert [b - a for a, b in zip(first.x, second.x, strict=True)] == pytest.approx([0.4, 0.4])
    assert [(a + b) / 2 for a, b in zip(first.x, second.x, strict=True)] == pytest.approx([0, 1])
    low, high = panel_data._compute_bounds(panel(*lines, mark_type="bars", log_y=False))
    assert low == 0 < 2 < high
    low, high = panel_data._compute_bounds(panel(line("full", -1, -2), mark_type="bars", log_y=False))
    assert low < -2 < 0 < high


def test_text_is_not_parsed_as_math() -> None:
    svg = figures.render_plot(
        panel(line("full", 1, 2), title=r"$\frac", xlabel="$x^2$", ticks={512.0: "$a$", 1024.0: "b"})
    ).svg
    assert all(text in svg for text in (r"$\frac", "$x^2$", "$a$"))


def test_axes_have_few_round_ticks() -> None:
    assert list(axes.make_y_ticks("time", 0.4, 6).values()) == ["500 \u00b5s", "1 ms", "2 ms", "5 ms"]
    assert list(axes.make_y_ticks("bytes", 2**20, 2**24).values()) == ["1 MiB", "2 MiB", "4 MiB", "8 MiB", "16 MiB"]
    assert list(axes.make_y_ticks("ratio", 0.9, 60).values()) == ["1x", "2x", "5x", "10x", "20x", "50x"]
    assert len(axes.make_y_ticks("time", 1e-6, 1e6)) <= 8
    assert list(axes.make_y_ticks("share", -0.02, 1.02, log=False).values()) == [
        "0%",
        "20%",
        "40%",
        "60%",
        "80%",
        "100%",
    ]
    assert list(axes.make_y_ticks("count", 0, 3000, log=False).values())[-1] == "3,000"
    texts = ("1.00 ms", "1.50 ms", "100 ms", "10.0x", "50.0%", "1.00e-07", "512 B")
    assert [axes.strip_zeros(text) for text in texts] == [
        "1 ms", "1.5 ms", "100 ms", "10x", "50%", "1e-07", "512 B",
    ]  # fmt: skip


@pytest.mark.parametrize("unit", ["bytes", "time", "ratio", "error", "count"])
@pytest.mark.parametrize(("low", "high"), [(34.7e6, 60.8e6), (64.7e6, 100.5e6), (8.21, 8.9), (1.01, 1.14), (0.52, 0.6)])
def test_every_axis_has_ticks(unit: Any, low: float, high: float) -> None:
    ticks = axes.make_y_ticks(unit, low, high)
    assert 2 <= len(ticks) <= 9
    assert all(low <= value <= high for value in ticks)
    assert len(set(ticks.values())) == len(ticks) or unit in ("bytes", "count"), "whole numbers only"


def test_overlapping_length_ticks_are_omitted() -> None:
    many = panel(line("full", *range(1, 11)), ticks={256.0 * 2**i: f"{256 * 2**i}" for i in range(10)})
    shown = list(thinned(many).values())
    assert shown[-1] == "131072"
    assert 3 <= len(shown) <= 6
    few = panel(line("full", 1, 2, 3), ticks={512.0: "512", 1024.0: "1K", 2048.0: "2K"})
    assert list(thinned(few).values()) == ["512", "1K", "2K"]


def _draw_axes(shown: panel_data.Panel) -> Axes:
    return figures.make_figure(shown).axes[1]  # after those of texts


def test_references_are_hollow_squares_in_the_row_of_their_point() -> None:
    rows = [replace(line(name, at), x=[0.5], reference=claimed) for at, (name, claimed) in enumerate(CLAIMS.items())]
    drawn = _draw_axes(panel(*rows, mark_type="points", log_x=False, log_y=False))
    squares = [mark for mark in drawn.lines if mark.get_marker() == "s" and mark.get_markerfacecolor() == "white"]
    assert [(list(mark.get_xdata()), list(mark.get_ydata())) for mark in squares] == [([2.0], [0]), ([3.0], [2])]  # type: ignore[arg-type]


CLAIMS = {"full": 2.0, "mqa": None, "gqa": 3.0}


def test_plots_state_their_configuration() -> None:
    config = "cpu, float32, 1 thread, batch 1, 4 heads of size 64, machine Xeon-x2-15GiB (Intel(R) Xeon(R) @ 2.10GHz)"
    svg = figures.render_plot(panel(line("full", 1, 4), config_text=config)).svg
    texts = re.findall(r"<text class=.o q.[^>]*>(.*?)</text>", svg)
    assert config in " ".join(texts)
    assert figures.render_plot(panel(line("full", 1, 4))).svg.count("<text") < svg.count("<text")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("run", sorted(path.parent.name for path in (ROOT / "results").glob("*/run.json")))
def test_every_axis_of_a_published_run_has_a_label_and_ticks(run: str) -> None:
    gathered = gather.gather([ROOT / "results" / run])
    rows = approximation_errors.add_errors(select.add_labels(gathered.rows))
    section_data = section_blocks.SectionData(rows, {}, style.choose_line_styles(rows["label"]))
    chapters, _ = page._make_chapters(gathered.sections, section_data)
    pictures = [picture for c in chapters for block in c.blocks for picture in block.pictures]
    assert pictures
    for shown in pictures:
        if isinstance(shown, Heatmap):
            assert len(shown.column_labels) == len(shown.grids[0].shares[0]), shown.name
            assert shown.xlabel.strip(), shown.name
            continue
        assert isinstance(shown, panel_data.Panel)
        ticks = axes.make_y_ticks(shown.unit, *(shown.bounds or panel_data._compute_bounds(shown)), log=shown.log_y)
        assert shown.xlabel.strip(), shown.name
        assert shown.ylabel.strip() or shown.mark_type == "points", shown.name
        assert len(ticks) >= 2 or not shown.ylabel, shown.name
        assert shown.ticks, shown.name
        design = shown.kind.startswith("effects")  # its points differ in all factors
        trained = bool(gathered.rows["mode"].eq("train").any())  # the table shows its batch size
        assert design or trained or "batch" in shown.config_text, shown.name


def test_spread_labels_do_not_overlap_and_stay_inside() -> None:
    wanted, heights = [0.5, 0.51, 0.52, 0.99, 1.0], [0.1] * 5
    placed = axes.spread_labels(wanted, heights)
    assert all(b - a >= 0.1 - 1e-9 for a, b in zip(sorted(placed), sorted(placed)[1:], strict=False))
    assert min(placed) >= 0.05 - 1e-9
    assert max(placed) <= 0.95 + 1e-9
    assert placed == sorted(placed)


def test_a_single_length_is_drawn_as_sorted_points(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", runs.speed(lengths=(8192,)))
    content = page.make_content(gather.gather([run]))
    (shown,) = [plot.panel for plot in content.plots if plot.panel.name.startswith("speedup")]
    assert isinstance(shown, panel_data.Panel)
    assert shown.mark_type == "points"
    assert [line.y[0] for line in shown.lines] == [0.0, 1.0, 2.0]
    assert [line.x[0] for line in shown.lines] == sorted(line.x[0] for line in shown.lines)
    assert all((line.left or [9e9])[0] < line.x[0] < (line.right or [0])[0] for line in shown.lines)
    assert shown.level_x == 1.0
