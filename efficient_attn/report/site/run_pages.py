"""Compact pages of runs: few plots, and the rows as a file next to the page."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, zip_longest

from .. import page
from ..drawing.figures import Plot
from ..gather import Frame, as_csv
from ..sections.section_blocks import SectionBlock, rank_plans
from .minify import drop_end_tags, minify_svg
from .site_data import ROWS_FILE, SiteRun

MAX_PLOTS = 6  # per run
OMITTED_PLOTS_NOTE = "Plots omitted here are in the run's own report: efficient-attn report RUN."
STYLE_SHEET = "style.css"  # of the report, shared by all pages of a site


@dataclass
class RunPage:
    """A run's content and its rendered page."""

    run: SiteRun
    content: page.Content
    html: str


def make_run_page(run: SiteRun) -> RunPage:
    """Render the page of a run."""
    content = page.make_content(run.gathered, draw=draw_top_plots)
    return RunPage(run, content, _render(content))


def draw_top_plots(blocks: Sequence[SectionBlock]) -> None:
    """Draw the highest-ranked plots of all blocks, as SVG only."""
    chosen_names, numbers = {plan.name for plan in rank_plans(blocks)[:MAX_PLOTS]}, count()
    for block in blocks:
        drawn = [plan for plan in block.plans if plan.name in chosen_names]
        block.plots = [_minify_plot(plan.render(raster=False), next(numbers)) for plan in drawn]
        block.note = OMITTED_PLOTS_NOTE if len(drawn) < len(block.plans) else ""


def _minify_plot(plot: Plot, number: int) -> Plot:
    """Minify a plot, with short ids from its number on the page instead of its long name."""
    return replace(plot, panel=replace(plot.panel, name=f"p{number}"), svg=minify_svg(plot.svg))


def drop_plots_to_fit(pages: Sequence[RunPage], max_bytes: int) -> None:
    """Drop plots until the pages fit into max_bytes; the first plots of each run are dropped last."""
    size = sum(len(run_page.html.encode()) for run_page in pages)
    plots_by_page = ([(run_page.run.listed.digest, plot) for plot in run_page.content.plots] for run_page in pages)
    interleaved = [pair for pairs in zip_longest(*plots_by_page) for pair in pairs if pair]
    dropped: dict[str, set[str]] = defaultdict(set)
    for digest, plot in reversed(interleaved):
        if size <= max_bytes:
            break
        size -= len(plot.inline.encode())
        dropped[digest].add(plot.panel.name)
    for run_page in pages:
        if run_page.run.listed.digest in dropped:
            _drop_plots(run_page, dropped[run_page.run.listed.digest])


def _drop_plots(run_page: RunPage, names: set[str]) -> None:
    for block in (block for section in run_page.content.sections for block in section.blocks):
        remaining = [plot for plot in block.plots if plot.panel.name not in names]
        if len(remaining) < len(block.plots):
            block.plots, block.note = remaining, OMITTED_PLOTS_NOTE
    run_page.html = _render(run_page.content)


def _render(content: page.Content) -> str:
    site_links = page.SiteLinks("../../index.html", ROWS_FILE, f"../../{STYLE_SHEET}")
    return drop_end_tags(page.as_html(content, site_links=site_links))


def pack_rows(rows: Frame) -> bytes:
    """Rows as CSV, compressed with gzip; equal rows give equal bytes."""
    return gzip.compress(as_csv(rows).encode(), mtime=0)
