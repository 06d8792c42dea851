"""A page for each mechanism: formula, pattern, options, traits, measured rows and claims."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown_text import convert_code, make_table, read_descriptions
from measured_rows import render_claims, render_measurements

import efficient_attn as ea
from efficient_attn.patterns.rasterize import compute_share_grids
from efficient_attn.registry import Info
from efficient_attn.report.site.bibliography import find_papers
from efficient_attn.report.site.pattern_svg import draw_pattern, read_families
from efficient_attn.units import percent
from efficient_attn.variants import CATALOGUE, FAMILIES

FORMULAS = Path(__file__).with_name("formulas.toml")
FOLDER = "reference/mechanisms"
CELLS = 32  # on each side of a pattern's picture


def list_navigation() -> list[Any]:
    """The pages by family."""
    by_family = {
        read_families()[family]["title"]: [f"{FOLDER}/{entry.name}.md" for entry in CATALOGUE if entry.family == family]
        for family in FAMILIES
    }
    return [f"{FOLDER}/README.md", *({title: pages} for title, pages in by_family.items())]


def render_pages() -> Iterator[tuple[str, str]]:
    """The list of mechanisms, and a page for each."""
    yield f"{FOLDER}/README.md", _render_index()
    for entry in CATALOGUE:
        yield f"{FOLDER}/{entry.name}.md", _render_page(ea.info(entry.name))


def _render_index() -> str:
    parts = ["# Mechanisms\n", "`efficient-attn list` prints this table, and `efficient-attn info NAME` one entry.\n"]
    for family in FAMILIES:
        card = read_families()[family]
        rows = [[f"[`{e.name}`]({e.name}.md)", e.sentence] for e in CATALOGUE if e.family == family]
        parts += [f"## {card['title']}\n", f"{card['formula']}. {card['cost']} {card['use']} {card['drawback']}\n"]
        parts.append(make_table(("Mechanism", "Definition"), rows))
    return "\n".join(parts)


def _render_page(info: Info) -> str:
    parts = [f"---\ntitle: {info.name}\n---\n", f"# `{info.name}`\n", f"{info.sentence}\n", *_render_formula(info)]
    parts += [_render_doc(info), *_render_pattern(info), *_render_options(info), *_render_traits(info)]
    parts += [*render_measurements(info.name), *render_claims(info.name), *_render_papers(info.doc)]
    return "\n".join(parts)


def _render_formula(info: Info) -> list[str]:
    formulas = _read_formulas()
    if info.name not in formulas[info.family]:
        raise ValueError(f"{FORMULAS.name}: no formula of {info.name} in [{info.family}]")
    texts = [formulas[info.family][info.name]]
    if info.family in formulas["families"] and "o_i =" not in texts[0]:
        texts.insert(0, formulas["families"][info.family])
    return [
        f'<div class="formula" tabindex="0" data-search-exclude>{convert(text, display="block")}</div>\n'
        for text in texts
    ]


@cache
def _read_formulas() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads(FORMULAS.read_text(encoding="utf-8"))


def _render_doc(info: Info) -> str:
    """The docstring without the paragraph of the options, which are in a table; indented lines are code."""
    blocks = [block for block in info.doc.split("\n\n") if not _describes_options(block, info)]
    texts = [block if block.startswith("    ") else convert_code(block).replace("<", "&lt;") for block in blocks]
    return "\n\n".join(texts) + "\n"


def _describes_options(block: str, info: Info) -> bool:
    return block.partition(":")[0].split(",")[0] in info.options


def _render_pattern(info: Info) -> list[str]:
    if info.pattern is None:
        return []
    grids = compute_share_grids(info.pattern, directions=info.traits.directions, rows=CELLS, columns=CELLS)
    figures = [
        f"<figure>{draw_pattern(grid.shares, f'{info.name}, {grid.direction}')}<figcaption>{grid.direction}, "
        f"N = {grid.geometry.n}: {percent(grid.share)} of the pairs</figcaption></figure>"
        for grid in grids
    ]
    text = "Rows are queries, columns are keys; darker cells contain more visible pairs.\n"
    return ["## Pattern\n", text, f'<div class="patterns">{"".join(figures)}</div>\n']


def _render_options(info: Info) -> list[str]:
    (doc,) = [block for block in info.doc.split("\n\n") if _describes_options(block, info)] or [""]
    described = read_descriptions(doc, info.options)
    rows = [[f"`{name}`", f"`{value}`", described.get(name, "")] for name, value in info.options.items()]
    spec = ":".join([info.name, *(f"{name}={value}" for name, value in info.options.items() if value is not None)])
    return [
        "## Options and cost\n",
        *(
            [make_table(("Option", "Default", "Meaning"), rows), f"As written in suites and commands: `{spec}`.\n"]
            if rows
            else []
        ),
        make_table(
            ("Time", "Memory", "Parameters", "Backends"),
            [
                [
                    info.growth.time,
                    info.growth.memory,
                    f"{info.parameters:,}",
                    ", ".join(f"`{b}`" for b in info.backends),
                ]
            ],
        ),
        f"It runs `{info.backend}` unless another backend is chosen. Parameters: with the default options, "
        "eight heads of 64 and 1,024 positions.\n",
    ]


def _render_traits(info: Info) -> list[str]:
    rows = [[f"`{name}`", "yes" if claimed else "no", text] for name, (claimed, text) in info.traits.meanings().items()]
    return ["## Traits\n", "`efficient-attn check` verifies each.\n", make_table(("Trait", "Value", "Meaning"), rows)]


def _render_papers(doc: str) -> list[str]:
    papers = find_papers(doc)
    lines = [
        f"- {_plain(paper.authors)} ({paper.year}): [{_plain(paper.title)}](https://arxiv.org/abs/{paper.arxiv})"
        for paper in papers
    ]
    return ["## Papers\n", *lines, ""] if lines else []


def _plain(bibtex: str) -> str:
    """BibTeX's text without its markup."""
    for markup, letter in {"{\\L}": "Ł", "{\\c{c}}": "ç", '{\\"o}': "ö", "{\\'o}": "ó", "\\&": "&"}.items():
        bibtex = bibtex.replace(markup, letter)
    return bibtex.replace(" and others", " et al.").replace("{", "").replace("}", "")
