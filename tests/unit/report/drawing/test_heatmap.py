"""Heatmaps of shares: colours, numbers, labels and layout."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from xml.etree import ElementTree

from matplotlib.image import imread

from efficient_attn.report.drawing.figures import PlotContext, render_plot
from efficient_attn.report.drawing.heatmap import Heatmap, HeatmapGrid, colour_share

HEATMAP = Heatmap(
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


def read_texts(picture: Heatmap) -> list[str]:
    svg = ElementTree.fromstring(render_plot(picture).svg)
    return ["".join(text.itertext()) for text in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_higher_shares_have_deeper_cells() -> None:
    colour, depths = colour_share(1.0)[:3], [colour_share(share)[3] for share in (0.0, 0.3, 1.0)]
    assert depths == [0.0, 0.3, 1.0]
    assert colour_share(0.3)[:3] == colour
    assert colour_share(None)[:3] != colour


def test_numbers_titles_and_labels_are_drawn() -> None:
    texts = read_texts(HEATMAP)
    assert {"100", "50", "0", "\u2013", "25", "Found", "cpu, float32", "full", "depth", "tokens", "1K", "90%"} <= {
        *texts
    }
    assert texts.count("10%") == 1  # the second grid shares the first one's row labels
    assert "attention_sinks n_sink=4 window=252" in " ".join(texts)


def test_rendering_is_reproducible_and_self_contained() -> None:
    first, second = render_plot(HEATMAP), render_plot(HEATMAP)
    assert (first.svg, first.png) == (second.svg, second.png)
    assert "<title>Found, for full and attention_sinks:n_sink=4:window=252.</title>" in first.inline
    assert not re.findall(r'href="(?!#)', first.inline)


def test_grids_wrap_after_two_and_are_split_after_four() -> None:
    def image_height(count: int) -> int:
        return imread(io.BytesIO(render_plot(replace(HEATMAP, grids=HEATMAP.grids[:1] * count)).png)).shape[0]

    assert image_height(1) == image_height(2) < image_height(3)
    parts = list(PlotContext({}).name_parts(replace(HEATMAP, grids=HEATMAP.grids * 3), "found", "m"))
    assert [(part.name, part.title, len(part.labels)) for part in parts] == [
        ("m-1-of-2", "Found, 1 of 2", 3), ("m-2-of-2", "Found, 2 of 2", 3),
    ]  # fmt: skip


def test_many_rows_stay_within_the_aspect_and_keep_some_labels() -> None:
    rows = tuple((0.5, 0.25) for _ in range(48))
    tall = replace(HEATMAP, grids=(HeatmapGrid("full", rows),) * 4, row_labels=tuple(f"layer {i}" for i in range(48)))
    _, _, width, height = render_plot(tall).view_box.split()
    assert float(height) <= 1.6 * float(width)
    texts = read_texts(tall)
    assert {"layer 0"} <= {*texts}
    assert "layer 1" not in texts
