"""The report as a list of sections, and both its forms: one web page that needs nothing else, its Markdown twin."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jinja2
from markupsafe import Markup, escape

from ..results.marks import MARK
from ..results.section import Section
from . import losses, select, tables, words
from .drawing import figures, style
from .gather import Gathered
from .sections import (
    ability,
    appendix,
    blocks,
    complexity,
    decoding,
    effects,
    fidelity,
    opening,
    plain,
    retrieval,
    speed,
    swap,
)

MOST_SENTENCES = 6  # in the summary; all of them stand beside their tables
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
    Section(name="fidelity", task="fidelity", title="Fidelity", layout="fidelity"),
    Section(name="decoding", task="speed", title="Decoding", layout="decoding"),
)


@dataclass
class Content:
    """Everything that both pages show, in order."""

    title: str
    trial: str
    summary: str
    damaged: str
    noisy: str
    sentences: list[str]
    sections: list[blocks.Chapter]
    missing: tables.Table | None
    rows: tuple[list[str], list[list[str]], list[tuple[str, str]]]
    environment: tables.Table | None
    sessions: list[dict[str, Any]]

    @property
    def plots(self) -> Iterator[figures.Plot]:
        return (plot for section in self.sections for block in section.blocks for plot in block.plots)


def make_content(found: Gathered) -> Content:
    """The report of these rows: sections only for what was measured, so that any part of a suite makes one."""
    rows = losses.add_losses(select.add_labels(found.rows))
    looks, trials = style.choose_looks(rows["label"]), frozenset(found.trials)
    sections = _make_chapters(found.sections, blocks.Material(rows, found.cpus, looks, trials))
    every = [block for section in sections for block in section.blocks]
    blocks.draw_plots(every)
    sentences = [text for block in every for text in block.highlights][:MOST_SENTENCES]
    for block in every:
        block.sentences = [text for text in block.sentences if text not in sentences]
    return Content(
        title=opening.make_title(found),
        trial=opening.tell_trials(found),
        summary=opening.sum_up(rows, found.cpus),
        damaged=opening.tell_damage(found.damaged),
        noisy=opening.warn_of_noise(rows, found.sessions),
        sentences=sentences,
        sections=sections,
        missing=appendix.list_lost(rows, found.cpus),
        rows=appendix.list_rows(found.loaded.assign(mean_value_error=found.rows["mean_value_error"])),
        environment=appendix.list_environments((s["run"], s.get("environment") or {}) for s in found.sessions),
        sessions=[appendix.describe_session(session) for session in found.sessions],
    )


def _make_chapters(brought: Sequence[Section], material: blocks.Material) -> list[blocks.Chapter]:
    """The sections that have something to show: those of designs, the built-in ones, then what tasks brought.

    What is brought under a built-in one's name takes its place. A design's rows are not shown twice: of points that
    differ in everything, each would be a table and a plot.
    """
    sections = {section.name: section for section in (*BUILT_IN, *brought)}
    built_in = {section.name for section in BUILT_IN}
    found = []
    for section in sorted(sections.values(), key=lambda section: section.layout != "effects"):
        chapter = LAYOUTS.get(section.layout, plain).make_chapter(section, material)
        chapter.anchor = section.name if section.name in built_in else words.slug("section", section.name)
        if chapter.blocks:
            found.append(chapter)
            if section.layout == "effects":
                material = replace(material, rows=material.rows[~effects.select_rows(section, material.rows)])
    return found


def as_html(shown: Content) -> str:
    """One page, from which no request leaves: its policy lets it load nothing and run no script but its own."""
    env = _environment(autoescape=True)
    env.filters["breakable"] = breakable
    script, sheet = (_source(env, name) for name in ("sort.js", "style.css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    body = table_body(shown.rows[1])
    return env.get_template("report.html.j2").render(report=shown, body=body, script=script, sheet=sheet, digest=digest)


def table_body(rows: Sequence[Sequence[str]]) -> Markup:
    """Escaped table rows. In one piece and each text once: a template would take a second for 10,000 rows."""
    safe = {text: str(escape(text)) for text in {text for row in rows for text in row}}
    return Markup("".join(f"<tr><td>{'</td><td>'.join(safe[text] for text in row)}</td></tr>\n" for row in rows))


def as_markdown(shown: Content, *, published: str = "") -> str:
    """The same tables in GitHub's Markdown, with the plots as images beside it.

    published: the folder of a published run, which holds neither page nor table.
    """
    env = _environment(autoescape=False)
    env.filters |= {"md": markdown_text, "fence": fence}
    text = env.get_template("report.md.j2").render(report=shown, most_rows=MOST_MARKDOWN_ROWS, published=published)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def breakable(text: object) -> Markup:
    """Escaped text that may break where an option begins, so that long names fit narrow screens."""
    return Markup(re.sub(r"([:|])(?=\w)", r"\1<wbr>", str(escape(text))))


def markdown_text(text: object) -> str:
    """Text that Markdown shows as it is, in a table's cell as well: no markup, no line breaks."""
    plain = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*\[\]|~])", r"\\\1", plain)


def fence(text: str) -> str:
    """A code fence longer than any run of backticks in the text."""
    longest: Sequence[str] = sorted(re.findall(r"`+", text), key=len)
    return "`" * max(3, len(longest[-1]) + 1 if longest else 0)


def _environment(*, autoescape: bool) -> jinja2.Environment:
    loader = jinja2.PackageLoader("efficient_attn.report", "templates")
    env = jinja2.Environment(
        loader=loader, autoescape=autoescape, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    env.globals["made"] = MARK
    return env


def _source(env: jinja2.Environment, name: str) -> str:
    assert env.loader is not None
    return env.loader.get_source(env, name)[0]
