"""A run's own page, light enough that a site of many stays small: few plots, its rows as a file beside it."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, zip_longest

from .. import page
from ..drawing import figures, plots
from ..gather import Frame, as_csv
from ..sections.blocks import Block
from .material import Run
from .squeezing import drop_ends, shorten

TABLE = "rows.csv.gz"
MOST_PLOTS = 6  # of a run
NOTE = "Plots that stand not here are in the run's own report: efficient-attn report RUN."
SHEET = "style.css"  # the report's own, which all pages of a site share
HOME = "../.."


@dataclass
class RunPage:
    """A run's content and its page. weights: of each plot on it, in bytes."""

    run: Run
    content: page.Content
    html: str

    @property
    def plots(self) -> list[figures.Plot]:
        return list(self.content.plots)


def make_page(run: Run) -> RunPage:
    content = page.make_content(run.found, draw=draw_few)
    return RunPage(run, content, _write(content))


def draw_few(blocks: Sequence[Block]) -> None:
    """Of all planned plots those that tell most, as SVG alone."""
    ranked = sorted((panel for block in blocks for panel in block.panels), key=plots.rank)
    chosen, numbers = {panel.name for panel in ranked[:MOST_PLOTS]}, count()
    for block in blocks:
        drawn = ((panel, figures.draw(panel.make(), raster=False)) for panel in block.panels if panel.name in chosen)
        block.plots = [replace(_squeeze(plot, next(numbers)), mode=panel.mode) for panel, plot in drawn]
        block.note = NOTE if any(panel.name not in chosen for panel in block.panels) else ""


def _squeeze(plot: figures.Plot, number: int) -> figures.Plot:
    """Smaller, its ids by its number on the page: its name, which says all, would stand at each."""
    return replace(plot, panel=replace(plot.panel, name=f"p{number}"), svg=shorten(plot.svg))


def fit(pages: Sequence[RunPage], room: int) -> None:
    """Leave plots out until the pages fit into so many bytes: each run's first plots stay longest."""
    size = sum(len(one.html.encode()) for one in pages)
    in_turn = [pair for turn in zip_longest(*(_pair(one) for one in pages)) for pair in turn if pair]
    dropped: dict[int, set[str]] = {}
    for at, plot in reversed(in_turn):
        if size <= room:
            break
        size -= len(plot.inline.encode())
        dropped.setdefault(id(at), set()).add(plot.panel.name)
    for one in pages:
        _drop(one, dropped.get(id(one), set()))


def _pair(one: RunPage) -> list[tuple[RunPage, figures.Plot]]:
    return [(one, plot) for plot in one.plots]


def _drop(one: RunPage, names: set[str]) -> None:
    if not names:
        return
    for block in (block for section in one.content.sections for block in section.blocks):
        kept = [plot for plot in block.plots if plot.panel.name not in names]
        if len(kept) < len(block.plots):
            block.plots, block.note = kept, NOTE
    one.html = _write(one.content)


def _write(content: page.Content) -> str:
    return drop_ends(page.as_html(content, within=page.Within(f"{HOME}/index.html", TABLE, f"{HOME}/{SHEET}")))


def pack_rows(rows: Frame) -> bytes:
    """The rows as compressed CSV, always the same bytes for the same rows."""
    return gzip.compress(as_csv(rows).encode(), mtime=0)
