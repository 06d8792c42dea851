"""Render a report: a self-contained web page, and the same in Markdown."""

import base64
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import jinja2
from markupsafe import Markup, escape

from ..results.file_marks import MARK
from ..results.section import Section
from . import approximation_errors, formatting, markdown, select, tables
from .answers.decision_table import make_decision_tables
from .drawing import figures, style
from .gather import ReportData
from .sections import (
    ability,
    appendix,
    approximation,
    decisions,
    decode_cost,
    generic,
    growth_exponents,
    header,
    hybrids,
    main_effects,
    retrieval,
    section_blocks,
    speed,
    swap,
    tradeoffs,
)

TEMPLATES = Path(__file__).parent / "templates"
BLOCK_START = '<div class="block"'  # of a block of a section in a page
MOST_FINDINGS = 3  # at the top; all comparisons are next to their tables
MOST_MARKDOWN_ROWS = 200  # more are left to rows.csv, as code hosts do not render long Markdown

LAST_PARTS = {
    "#reading": "How to read this",
    "#reproduce": "How to reproduce",
    "#environment": "Environment",
    "#rows": "All rows",
}
# the module for each layout of a section; other layouts use `generic`
SECTION_MODULES = {
    "speed": speed,
    "fidelity": approximation,
    "decoding": decode_cost,
    "effects": main_effects,
    "swap": swap,
    "retrieval": retrieval,
    "hybrid": hybrids,
    "complexity": growth_exponents,
    "ability": ability,
}
BUILT_IN = (
    Section(name="speed", task="speed", title="Speed and memory", layout="speed"),
    Section(name="decoding", task="speed", title="Decoding", layout="decoding"),
    Section(name="fidelity", task="fidelity", title="Fidelity", layout="fidelity"),
)


@dataclass
class Content:
    """Content of both pages, in order. folded: collapsed sections at the end. contents: titles and addresses, if the
    page is one of several."""

    title: str
    override_notice: str
    environment_line: str
    summary: str
    damage_notice: str
    noise_notice: str
    findings: list[str]
    sections: list[section_blocks.Chapter]
    folded: list[section_blocks.Chapter]
    missing: tables.ReportTable | None
    rows: appendix.RowListing
    families: dict[str, str]
    environment: tables.ReportTable | None
    sessions: list[dict[str, Any]]
    contents: Sequence[tuple[str, str]] = ()

    @property
    def plots(self) -> Iterator[figures.Plot]:
        """The plots of all sections, in order."""
        return (plot for section in self.sections for block in section.blocks for plot in block.plots)

    @property
    def explained_sections(self) -> list[section_blocks.Chapter]:
        """The sections with an explanation."""
        return [section for section in (*self.sections, *self.folded) if section.intro]

    @property
    def links(self) -> list[tuple[str, str]]:
        """Titles and addresses of the parts of this page."""
        parts = [(section.title, f"#{section.anchor}") for section in self.sections]
        parts += [("What did not run", "#missing")] if self.missing else []
        parts += [(section.title, f"#{section.anchor}") for section in self.folded]
        last = zip(LAST_PARTS.items(), (self.explained_sections, self.sessions, self.environment, True), strict=True)
        return parts + [(title, href) for (href, title), content in last if content]


DrawPlots: TypeAlias = Callable[[Sequence[section_blocks.SectionBlock]], None]


def make_content(data: ReportData, *, draw: DrawPlots = section_blocks.draw_pictures) -> Content:
    """Build the report of these rows, with sections only for what was measured.

    draw: renders the pictures of the blocks, or some of them.
    """
    rows = approximation_errors.add_errors(select.add_labels(data.rows))
    with_family = rows[rows["family"].notna()]
    families = dict(zip(with_family["label"], with_family["family"], strict=True))
    line_styles = style.choose_line_styles(rows["label"], families)
    section_data = section_blocks.SectionData(rows, data.cpus, line_styles, data.run_notes)
    sections, folded = _make_chapters(data.sections, section_data)
    draw([block for section in sections for block in section.blocks])
    blocks_by_section = [section.blocks for section in (*folded, *sections)]
    highlights = ([text for block in blocks for text in block.highlights] for blocks in blocks_by_section)
    findings = list(dict.fromkeys(filter(None, formatting.interleave(highlights))))[:MOST_FINDINGS]
    for block in itertools.chain.from_iterable(blocks_by_section):
        block.sentences = [text for text in block.sentences if text not in findings]
    return Content(
        title=header.make_title(data),
        override_notice=" ".join(filter(None, (header.describe_overrides(data), header.describe_older_runs(data)))),
        environment_line=header.describe_environment(rows, data),
        summary=header.summarise_rows(rows, data.cpus),
        damage_notice=header.describe_damage(data.damaged),
        noise_notice=header.describe_noise(rows, data.sessions),
        findings=findings,
        sections=sections,
        folded=folded,
        missing=appendix.list_missing(rows, data.cpus),
        rows=appendix.list_rows(data.loaded.assign(mean_value_error=data.rows["mean_value_error"])),
        families=families,
        environment=appendix.list_environments((s["run"], s.get("environment") or {}) for s in data.sessions),
        sessions=[appendix.describe_session(session) for session in data.sessions],
    )


def _make_chapters(
    task_sections: Sequence[Section], section_data: section_blocks.SectionData
) -> tuple[list[section_blocks.Chapter], list[section_blocks.Chapter]]:
    """Return the sections with content, and the collapsed ones.

    Order: decision tables and Pareto fronts, built-in sections, sections of tasks. A task's section replaces a built-in
    one of the same name. Rows of a design are left to its section, because elsewhere each point would be a table.
    """
    sections = {section.name: section for section in (*BUILT_IN, *task_sections)}
    built_in = {section.name for section in BUILT_IN}
    chapters_by_name: dict[str, section_blocks.Chapter] = {}
    for section in sorted(sections.values(), key=lambda section: section.layout != "effects"):
        chapter = SECTION_MODULES.get(section.layout, generic).make_chapter(section, section_data)
        chapter.anchor = section.name if section.name in built_in else formatting.make_slug("section", section.name)
        chapter.task = section.task if (section_data.rows["task"] == section.task).any() else None
        chapters_by_name[section.name] = chapter
        if chapter.blocks and section.layout == "effects":
            design_rows = main_effects.select_design_rows(section, section_data.rows)
            section_data = replace(section_data, rows=section_data.rows[~design_rows])
    decision_tables = make_decision_tables(section_data.rows)
    details = [speed.make_details(s, section_data, decision_tables) for s in sections.values() if s.layout == "speed"]
    chapters = [
        decisions.make_chapter(decision_tables, section_data),
        tradeoffs.make_chapter(decision_tables, section_data),
        *(chapters_by_name[name] for name in sections),
    ]
    return [chapter for chapter in chapters if chapter.blocks], [chapter for chapter in details if chapter.blocks]


def as_html(content: Content, *, root: str | None = None, rows_file: str = "", docs: str = "") -> str:
    """Render one page. Its content security policy allows no requests and no script but its own.

    root: if the page is part of a site, the path to its front page; then the rows are in a file next to it and not in
    the page. docs: address of the documentation, if any.
    """
    env = make_environment(autoescape=True)
    script, sheet = read_template(env, "page.js"), read_style_sheet()
    body = make_table_body(content.rows.cells) if root is None else ""
    variables = {"script": script, "sheet": sheet, "policy": make_policy(script), "rows_file": rows_file, "docs": docs}
    return env.get_template("report.html.j2").render(report=content, body=body, root=root, current="", **variables)


def make_policy(script: str) -> str:
    """What a content security policy allows: this script, by its digest."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def read_style_sheet() -> str:
    """The style sheet of a page and its charts."""
    return read_template(make_environment(autoescape=True), "style.css") + style.make_chart_sheet()


def split_config(sentence: str) -> tuple[str, str]:
    """Split a finding from its configuration, the (possibly nested) parenthesis at its end."""
    depth = 0
    for index in range(len(sentence) - 2, 0, -1) if sentence.endswith(").") else ():
        depth += {")": 1, "(": -1}.get(sentence[index], 0)
        if not depth:
            return sentence[: index - 1] + ".", sentence[index:-1]
    return sentence, ""


def make_table_body(rows: Sequence[Sequence[str]]) -> Markup:
    """Escaped table rows. Each text is escaped once; a template would take a second for 10,000 rows."""
    escaped = {text: str(escape(text)) for text in {text for row in rows for text in row}}
    return Markup("".join(f"<tr><td>{'</td><td>'.join(escaped[text] for text in row)}</td></tr>\n" for row in rows))


def as_markdown(content: Content, *, published: str = "") -> str:
    """Render the same content as GitHub Markdown, with the plots as image files.

    published: folder of a published run, which has neither a page nor a table of rows.
    """
    env = make_environment(autoescape=False)
    text = env.get_template("report.md.j2").render(report=content, most_rows=MOST_MARKDOWN_ROWS, published=published)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def add_word_breaks(text: object) -> Markup:
    """Escape text and allow line breaks before options, so that long names fit narrow screens."""
    return Markup(re.sub(r"([:|])(?=\w)", r"\1<wbr>", str(escape(text))))


@cache
def make_environment(*, autoescape: bool) -> jinja2.Environment:
    """The environment of all pages, cached because parsing a template takes as long as rendering it."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    env = jinja2.Environment(
        loader=loader, autoescape=autoescape, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    env.globals["made_by"] = MARK
    env.filters |= {
        "breakable": add_word_breaks,
        "split_config": split_config,
        "md": markdown.escape_markdown,
        "fence": markdown.make_fence,
    }
    return env


def read_template(env: jinja2.Environment, name: str) -> str:
    """The source of a template."""
    assert env.loader is not None
    return env.loader.get_source(env, name)[0]
