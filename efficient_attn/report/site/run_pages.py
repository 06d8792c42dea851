"""Pages of runs with all plots, split into several above a size; the rows are in a file next to them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import replace

from .. import page
from ..drawing.figures import render_plot
from ..formatting import split_batches
from ..gather import Frame, as_csv
from ..sections.section_blocks import Chapter, SectionBlock
from .minify import drop_end_tags
from .site_data import ROWS_FILE, SiteRun

MAX_PAGE_BYTES = 300_000
PAGE_BYTES = 20_000  # of a page without blocks
MAX_BLOCK_PLOTS = 40  # about 120 kB; blocks with more are split
STYLE_SHEET = "style.css"  # of the report, shared by all pages of a site


def make_run_pages(run: SiteRun, docs: str = "") -> dict[str, bytes]:
    """The pages of a run, by address; each has the contents of all. docs: address of the documentation, if any."""
    content = page.make_content(run.gathered, draw=draw_all_plots)
    for chapter in (*content.sections, *content.folded):
        chapter.blocks = [part for block in chapter.blocks for part in _split_block(block)]
    html = _render(content, docs)
    sizes = [len(text.encode()) for text in html.split(page.BLOCK_START)[1:]]
    if len(html.encode()) <= MAX_PAGE_BYTES or not sizes:
        return {run.listed.page: html.encode()}
    rest = len(_render(_select_blocks(content, [1] * len(sizes), 0), docs).encode())
    numbers = _assign_pages(sizes, rest)
    names = [f"page-{number + 1}.html" if number else "index.html" for number in range(numbers[-1] + 1)]
    pages = [_select_blocks(content, numbers, number) for number in range(len(names))]
    contents = list(_list_contents(pages, names))
    folder = run.listed.page.removesuffix("index.html")
    return {
        f"{folder}{name}": _render(replace(part, contents=contents), docs).encode()
        for name, part in zip(names, pages, strict=True)
    }


def _split_block(block: SectionBlock) -> Iterator[SectionBlock]:
    """Parts of a block with few enough plots; the first has the tables."""
    batches = list(split_batches(block.plots, MAX_BLOCK_PLOTS)) or [("", block.plots)]
    yield replace(block, plots=list(batches[0][1]))
    for text, plots in batches[1:]:
        yield SectionBlock(f"{block.title} ({text})", plots=list(plots), device=block.device)


def draw_all_plots(blocks: Sequence[SectionBlock]) -> None:
    """Draw the plots of all blocks, as SVG only."""
    for block in blocks:
        block.plots = [render_plot(picture, raster=False) for picture in block.pictures]


def _assign_pages(sizes: Sequence[int], first_size: int) -> list[int]:
    """The page of each block, in order. first_size: what the first page has besides blocks."""
    numbers, number, size = [], 0, first_size
    for block_size in sizes:
        if size + block_size > MAX_PAGE_BYTES - PAGE_BYTES and size > PAGE_BYTES:
            number, size = number + 1, PAGE_BYTES
        size += block_size
        numbers.append(number)
    return numbers


def _select_blocks(content: page.Content, numbers: Sequence[int], number: int) -> page.Content:
    """The content of a page: its blocks and, on the first one, all that is not a block."""
    remaining = iter(numbers)
    lists = [_select_chapters(chapters, remaining, number) for chapters in (content.sections, content.folded)]
    part = replace(content, sections=lists[0], folded=lists[1])
    if not number:
        return part
    title = f"{content.title}, page {number + 1} of {numbers[-1] + 1}"
    return replace(part, title=title, findings=[], missing=None, environment=None, sessions=[])


def _select_chapters(chapters: Sequence[Chapter], remaining: Iterator[int], number: int) -> list[Chapter]:
    """The chapters with their blocks on this page. remaining: the pages of all blocks from here on."""
    selected = []
    for chapter in chapters:
        blocks = [block for block, page_number in zip(chapter.blocks, remaining) if page_number == number]  # noqa: B905
        selected += [replace(chapter, blocks=blocks)] if blocks else []
    return selected


def _list_contents(pages: Sequence[page.Content], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The title and the address of each section on each page."""
    counts: dict[str, int] = {}
    for part, name in zip(pages, names, strict=True):
        for title, href in part.links:
            counts[title] = counts.get(title, 0) + 1
            if counts[title] == 1 or href not in page.LAST_PARTS:
                yield title if counts[title] == 1 else f"{title} ({counts[title]})", name + href


def _render(content: page.Content, docs: str) -> str:
    site_links = page.SiteLinks("../../index.html", ROWS_FILE, f"../../{STYLE_SHEET}", docs)
    return drop_end_tags(page.as_html(content, site_links=site_links))


def pack_rows(rows: Frame) -> bytes:
    """Rows as CSV, compressed with gzip; equal rows give equal bytes."""
    return gzip.compress(as_csv(rows).encode(), mtime=0)
