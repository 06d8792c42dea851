"""Pages of runs with all plots, split into several above a size; the rows are in a file next to them."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from .. import page
from ..drawing.figures import render_plot
from ..formatting import split_batches
from ..gather import Frame, as_csv
from ..sections.section_blocks import SectionBlock
from .compact import drop_end_tags
from .site_data import ROWS_FILE, SiteRun

MAX_PAGE_BYTES = 300_000
PAGE_BYTES = 20_000  # of a page without blocks
MAX_BLOCK_PLOTS = 40  # about 120 kB; blocks with more are split


def make_run_pages(run: SiteRun, docs: str) -> dict[str, bytes]:
    """The pages of a run, by address; each has the contents of all. docs: address of the documentation, if any."""
    content = page.make_content(run.gathered, draw=_draw_all_plots)
    blocks: list[SectionBlock] = []
    for chapter in (*content.sections, *content.folded):
        chapter.blocks = [part for block in chapter.blocks for part in _split_block(block)]
        blocks += chapter.blocks
    html = _render(content, docs)
    if len(html) <= MAX_PAGE_BYTES or not blocks:
        return {run.listed.page: html}
    sizes = map(len, html.split(page.BLOCK_START.encode())[1:])
    rest = len(_render(_select_blocks(content, dict.fromkeys(map(id, blocks), 1), 0), docs))
    numbers = dict(zip(map(id, blocks), _assign_pages(sizes, rest), strict=True))
    pages = [_select_blocks(content, numbers, number) for number in range(max(numbers.values()) + 1)]
    names = ["index.html", *(f"page-{number + 1}.html" for number in range(1, len(pages)))]
    contents = list(_list_contents(pages, names))
    folder = run.listed.page.removesuffix("index.html")
    return {
        f"{folder}{name}": _render(replace(part, contents=contents), docs)
        for name, part in zip(names, pages, strict=True)
    }


def _split_block(block: SectionBlock) -> Iterator[SectionBlock]:
    """Parts of a block with few enough plots; the first has the tables."""
    batches = list(split_batches(block.plots, MAX_BLOCK_PLOTS)) or [("", block.plots)]
    yield replace(block, plots=list(batches[0][1]))
    for text, plots in batches[1:]:
        yield SectionBlock(f"{block.title} ({text})", plots=list(plots), device=block.device)


def _draw_all_plots(blocks: Sequence[SectionBlock]) -> None:
    """Draw the plots of all blocks, as SVG only."""
    for block in blocks:
        block.plots = [render_plot(picture, raster=False) for picture in block.pictures]


def _assign_pages(sizes: Iterator[int], first_size: int) -> Iterator[int]:
    """The page of each block, in order. first_size: what the first page has besides blocks."""
    number, size = 0, first_size
    for block_size in sizes:
        if size + block_size > MAX_PAGE_BYTES - PAGE_BYTES and size > PAGE_BYTES:
            number, size = number + 1, PAGE_BYTES
        size += block_size
        yield number


def _select_blocks(content: page.Content, numbers: Mapping[int, int], number: int) -> page.Content:
    """The content of a page: its blocks and, on the first, all that is not a block. numbers: pages by id of block."""
    sections, folded = (
        [
            replace(chapter, blocks=blocks)
            for chapter in chapters
            if (blocks := [block for block in chapter.blocks if numbers[id(block)] == number])
        ]
        for chapters in (content.sections, content.folded)
    )
    part = replace(content, sections=sections, folded=folded)
    if not number:
        return part
    title = f"{content.title}, page {number + 1} of {max(numbers.values()) + 1}"
    return replace(part, title=title, findings=[], missing=None, environment=None, sessions=[])


def _list_contents(pages: Sequence[page.Content], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The title and the address of each section on each page."""
    counts = Counter[str]()
    for part, name in zip(pages, names, strict=True):
        for title, href in part.links:
            counts[title] += 1
            if counts[title] == 1 or href not in page.LAST_PARTS:
                yield title if counts[title] == 1 else f"{title} ({counts[title]})", name + href


def _render(content: page.Content, docs: str) -> bytes:
    return drop_end_tags(page.as_html(content, root="../../", rows_file=ROWS_FILE, docs=docs)).encode()


def pack_rows(rows: Frame) -> bytes:
    """Rows as CSV, compressed with gzip; equal rows give equal bytes."""
    return gzip.compress(as_csv(rows).encode(), mtime=0)
