"""The report as a list of sections, and both its forms: one web page that needs nothing else, its Markdown twin."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import jinja2
from markupsafe import Markup, escape

from ..results.marks import MARK
from ..results.section import Section
from . import losses, markdown, select, tables, words
from .answers.decisions import make_decisions
from .drawing import figures, style
from .gather import Gathered
from .sections import (
    ability,
    appendix,
    blocks,
    complexity,
    deciding,
    decoding,
    effects,
    fidelity,
    opening,
    plain,
    retrieval,
    speed,
    swap,
    tradeoffs,
)

MOST_FINDINGS = 3  # at the top; all comparisons stand beside their tables
MOST_MARKDOWN_ROWS = 200  # more than these belong into rows.csv: code hosts stop rendering long Markdown

# a section's layout and the module that makes it; whatever is not here is drawn from its data alone
LAYOUTS = {
    "speed": speed,
    "fidelity": fidelity,
    "decoding": decoding,
    "effects": effects,
    "swap": swap,
    "retrieval": retrieval,
    "complexity": complexity,
    "ability": ability,
}
BUILT_IN = (
    Section(name="speed", task="speed", title="Speed and memory", layout="speed"),
    Section(name="decoding", task="speed", title="Decoding", layout="decoding"),
    Section(name="fidelity", task="fidelity", title="Fidelity", layout="fidelity"),
)


@dataclass
class Content:
    """Everything that both pages show, in order. folded: chapters for those who open them, at the end."""

    title: str
    trial: str
    place: str
    summary: str
    damaged: str
    noisy: str
    sentences: list[str]
    sections: list[blocks.Chapter]
    folded: list[blocks.Chapter]
    missing: tables.Table | None
    rows: appendix.Rows
    families: dict[str, str]
    environment: tables.Table | None
    sessions: list[dict[str, Any]]

    @property
    def plots(self) -> Iterator[figures.Plot]:
        return (plot for section in self.sections for block in section.blocks for plot in block.plots)

    @property
    def readings(self) -> list[blocks.Chapter]:
        """The sections that have to be explained."""
        return [section for section in (*self.sections, *self.folded) if section.intro]


Draw: TypeAlias = Callable[[Sequence[blocks.Block]], None]


def make_content(found: Gathered, *, draw: Draw = blocks.draw_plots) -> Content:
    """The report of these rows: sections only for what was measured, so that any part of a suite makes one.

    draw: gives blocks the plots that they planned, or as many as are wanted.
    """
    rows = losses.add_losses(select.add_labels(found.rows))
    looks, trials = style.choose_looks(rows["label"]), frozenset(found.trials)
    sections, folded = _make_chapters(found.sections, blocks.Material(rows, found.cpus, looks, trials))
    draw([block for section in sections for block in section.blocks])
    every = [section.blocks for section in (*folded, *sections)]
    sentences = choose_findings(every)
    for block in itertools.chain.from_iterable(every):
        block.sentences = [text for text in block.sentences if text not in sentences]
    known = rows[rows["family"].notna()].drop_duplicates("label")
    return Content(
        title=opening.make_title(found),
        trial=opening.tell_trials(found),
        place=opening.tell_place(rows, found),
        summary=opening.sum_up(rows, found.cpus),
        damaged=opening.tell_damage(found.damaged),
        noisy=opening.warn_of_noise(rows, found.sessions),
        sentences=sentences,
        sections=sections,
        folded=folded,
        missing=appendix.list_lost(rows, found.cpus),
        rows=appendix.list_rows(found.loaded.assign(mean_value_error=found.rows["mean_value_error"])),
        families=dict(zip(*(known[name].tolist() for name in ("label", "family")), strict=True)),
        environment=appendix.list_environments((s["run"], s.get("environment") or {}) for s in found.sessions),
        sessions=[appendix.describe_session(session) for session in found.sessions],
    )


def choose_findings(chapters: Sequence[Sequence[blocks.Block]]) -> list[str]:
    """What the page says first: of each chapter the first highlight, then of each the second, while there is room."""
    found = [[text for block in chapter for text in block.highlights] for chapter in chapters]
    in_turn = (text for turn in itertools.zip_longest(*found) for text in turn if text)
    return list(dict.fromkeys(in_turn))[:MOST_FINDINGS]


def _make_chapters(
    brought: Sequence[Section], material: blocks.Material
) -> tuple[list[blocks.Chapter], list[blocks.Chapter]]:
    """The sections that have something to show, and those that are folded.

    First decisions and fronts, then the built-in ones, then what tasks brought.

    What is brought under a built-in one's name takes its place. A design's rows are not shown twice: of points that
    differ in everything, each would be a table and a plot.
    """
    sections = {section.name: section for section in (*BUILT_IN, *brought)}
    built_in = {section.name for section in BUILT_IN}
    made: dict[str, blocks.Chapter] = {}
    for section in sorted(sections.values(), key=lambda section: section.layout != "effects"):
        chapter = LAYOUTS.get(section.layout, plain).make_chapter(section, material)
        chapter.anchor = section.name if section.name in built_in else words.slug("section", section.name)
        chapter.task = section.task if (material.rows["task"] == section.task).any() else None
        made[section.name] = chapter
        if chapter.blocks and section.layout == "effects":
            material = replace(material, rows=material.rows[~effects.select_rows(section, material.rows)])
    boards = make_decisions(material.rows)
    first = [deciding.make_chapter(boards, material), tradeoffs.make_chapter(boards, material)]
    details = [speed.make_details(s, material, boards) for s in sections.values() if s.layout == "speed"]
    shown = [*first, *(made[name] for name in sections)]
    return [chapter for chapter in shown if chapter.blocks], [chapter for chapter in details if chapter.blocks]


@dataclass(frozen=True)
class Within:
    """Where a page stands in a site: the way to its front page, the file with the rows, the style sheet, as links."""

    home: str
    table: str
    sheet: str


def as_html(shown: Content, *, within: Within | None = None) -> str:
    """One page, from which no request leaves: its policy lets it load nothing and run no script but its own.

    within: the site that it is a page of; then its rows are a file beside it, and not in the page as well.
    """
    env = _environment(autoescape=True)
    script, sheet = (_source(env, name) for name in ("page.js", "style.css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    body = "" if within else table_body(shown.rows.cells)
    known = {"script": script, "sheet": sheet, "digest": digest, "within": within}
    return env.get_template("report.html.j2").render(report=shown, body=body, **known)


def split_place(sentence: str) -> tuple[str, str]:
    """A finding, and what it holds for: what stands in brackets at its end, which may hold brackets."""
    depth = 0
    for at in range(len(sentence) - 2, 0, -1) if sentence.endswith(").") else ():
        depth += {")": 1, "(": -1}.get(sentence[at], 0)
        if not depth:
            return sentence[: at - 1] + ".", sentence[at:-1]
    return sentence, ""


@jinja2.pass_context
def name_family(context: Mapping[str, Any], label: str) -> Markup:
    """A table row's family, for those who filter by it; nothing where its first cell names no variant."""
    found = context["report"].families.get(label)
    return Markup(' data-family="{}"').format(found) if found else Markup("")


def table_body(rows: Sequence[Sequence[str]]) -> Markup:
    """Escaped table rows. In one piece and each text once: a template would take a second for 10,000 rows."""
    safe = {text: str(escape(text)) for text in {text for row in rows for text in row}}
    return Markup("".join(f"<tr><td>{'</td><td>'.join(safe[text] for text in row)}</td></tr>\n" for row in rows))


def as_markdown(shown: Content, *, published: str = "") -> str:
    """The same tables in GitHub's Markdown, with the plots as images beside it.

    published: the folder of a published run, which holds neither page nor table.
    """
    env = _environment(autoescape=False)
    text = env.get_template("report.md.j2").render(report=shown, most_rows=MOST_MARKDOWN_ROWS, published=published)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def breakable(text: object) -> Markup:
    """Escaped text that may break where an option begins, so that long names fit narrow screens."""
    return Markup(re.sub(r"([:|])(?=\w)", r"\1<wbr>", str(escape(text))))


@cache
def _environment(*, autoescape: bool) -> jinja2.Environment:
    """One for all pages: reading the template takes as long as filling it."""
    loader = jinja2.PackageLoader("efficient_attn.report", "templates")
    env = jinja2.Environment(
        loader=loader, autoescape=autoescape, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    env.globals["made"] = MARK
    env.filters |= {"breakable": breakable, "split_place": split_place, "of_family": name_family}
    env.filters |= {"md": markdown.plain, "fence": markdown.fence}
    return env


def _source(env: jinja2.Environment, name: str) -> str:
    assert env.loader is not None
    return env.loader.get_source(env, name)[0]
