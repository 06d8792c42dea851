"""Maps of shares: what a cell's colour and number say, and that all of it is drawn."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from xml.etree import ElementTree

from matplotlib.image import imread

from efficient_attn.report.drawing.figures import render_plot
from efficient_attn.report.drawing.heatmap import Heatmap, HeatmapGrid, colour_share

MAP = Heatmap(
    name="m",
    kind="found",
    title="Found",
    caption="c",
    config_text="cpu, float32",
    grids=(
        HeatmapGrid("full", ((1.0, 0.5), (0.0, None))),
        HeatmapGrid("attention_sinks:n_sink=4:window=252", ((0.25, 0.0), (0.0, 0.0))),
    ),
    column_labels=("1K", "2K"),
    row_labels=("10%", "90%"),
    xlabel="tokens",
    ylabel="depth",
)


def said(picture: Heatmap) -> list[str]:
    svg = ElementTree.fromstring(render_plot(picture).svg)
    return ["".join(text.itertext()) for text in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_a_cell_is_the_deeper_the_more_was_found() -> None:
    none, some, all_ = colour_share(0.0), colour_share(0.3), colour_share(1.0)
    assert none == (1, 1, 1)
    assert none[0] > some[0] > all_[0]
    assert len(set(colour_share(None))) > 1 or colour_share(None)[0] < 1


def test_numbers_names_and_sides_are_written() -> None:
    found = said(MAP)
    assert {"100", "50", "0", "\u2013", "25", "Found", "cpu, float32", "full", "depth", "tokens", "1K", "90%"} <= {
        *found
    }
    assert found.count("10%") == 1  # the second map shares the first one's side
    assert "attention_sinks:n_sink=4" in " ".join(found)


def test_the_same_maps_give_the_same_files() -> None:
    one, other = render_plot(MAP), render_plot(MAP)
    assert (one.svg, one.png) == (other.svg, other.png)
    assert 'aria-labelledby="t-m"' in one.inline
    assert not re.findall(r'href="(?!#)', one.inline)


def test_maps_stand_in_rows() -> None:
    def high(count: int) -> int:
        return imread(io.BytesIO(render_plot(replace(MAP, grids=MAP.grids[:1] * count)).png)).shape[0]

    assert high(1) == high(3) < high(4)
