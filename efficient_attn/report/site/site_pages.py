"""Render all pages of a site except the run pages."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import jinja2
from markupsafe import Markup

from ... import units
from ...results.file_marks import MARK
from ...results.sanitize import sanitize_line
from .. import approximation_errors, formatting, page
from ..answers import cost_curves
from ..claims import claims_text
from ..claims.ledger import ClaimGroup
from ..claims.verdicts import VERDICTS, ClaimVerdict
from ..drawing import style
from ..drawing.figures import Plot
from ..sections import tradeoffs
from ..sections.section_blocks import SectionData, rank_plans
from . import bibliography, crossover_bars, families, library_comparison, pattern_svg, picker, scoreboards
from .group_results import GroupResult, TimedMechanism, list_leaderboards
from .page_names import make_name
from .run_pages import STYLE_SHEET
from .site_data import ROWS_FILE, SiteData, SiteMechanism, SiteRun

SITE_STYLE_SHEET = "site.css"
MAX_LINES = 60  # rows of a mechanism's page; the rows file of the front page has all
MAX_GROUPS = 24  # tables on a leaderboard's page


class SitePages:
    """Renders the pages. Templates get this object as ``site`` and the relative path to the front page as ``root``."""

    def __init__(self, data: SiteData) -> None:
        self.data = data
        self.leaderboards = list_leaderboards(data.groups)
        packages = ("efficient_attn.report.site", "efficient_attn.report")
        self.env = jinja2.Environment(
            loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name, "templates") for name in packages]),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
            finalize=_finalize,
        )
        self.env.filters |= {"breakable": page.add_word_breaks, "size": units.size}
        self.env.globals |= {"mark": MARK, "site": self, "data": data, "rows_file": ROWS_FILE}
        self.env.globals |= {"draw_pattern": pattern_svg.draw_pattern, "family_of": families.CARD_BY_NAME}
        self.env.globals |= {"count": formatting.format_count}

    def render(self) -> Iterator[tuple[str, str]]:
        """Yield the address within the site and the text of every page."""
        yield STYLE_SHEET, f"{page.read_style_sheet()}/* {MARK} */\n"
        yield SITE_STYLE_SHEET, f"{self._read_template(SITE_STYLE_SHEET)}/* {MARK} */\n"
        yield "index.html", self._render_front()
        for board in self.leaderboards:
            yield board.page, self._render_template("board", 1, board=board, groups=board.groups[:MAX_GROUPS])
        for mechanism in self.data.mechanisms.values():
            yield mechanism.page, self._render_mechanism(mechanism)
        for claim_verdict in self.data.verdicts.claims:
            yield self.link_claim(claim_verdict), self._render_claim(claim_verdict)
        for task in self.data.tasks:
            yield self.link_task(task), self._render_task(task)

    def _render_template(self, template: str, depth: int, **variables: Any) -> str:
        return self.env.get_template(f"{template}.html.j2").render(root="../" * depth, **variables)

    def _read_template(self, name: str) -> str:
        assert self.env.loader is not None
        return self.env.loader.get_source(self.env, name)[0]

    # -- addresses -------------------------------------------------------------------------------------------------

    def link_claim(self, claim_verdict: ClaimVerdict) -> str:
        """The address of a claim's page."""
        return f"c/{make_name(claim_verdict.entry.claim.id)}.html"

    def link_task(self, task: str) -> str:
        """The address of a task's page."""
        return f"t/{make_name(task)}.html"

    def link_variant(self, variant: str) -> str:
        """Return the address of the page of a spec's or label's (first) mechanism, or "" if it has none."""
        mechanism = self.data.mechanisms.get(re.split(r"[|:]| \(", variant, maxsplit=1)[0])
        return mechanism.page if mechanism else ""

    def find_run(self, run_id: Any) -> SiteRun | None:
        """The published run of a session, if there is one."""
        return self.data.run_by_session.get(str(run_id))

    # -- the front page --------------------------------------------------------------------------------------------

    def _render_front(self) -> str:
        data, cpus = self.data, self.data.gathered.cpus
        links = {name: mechanism.page for name, mechanism in data.mechanisms.items()}
        script = self._read_template("picker.js")
        curves, errors = cost_curves.split_by_config(data.rows), approximation_errors.list_errors(data.rows)
        variables = {
            "picker": picker.make_picker(data.groups, curves, errors, links, cpus),
            "uses": picker.USE_WORDS,
            "qualities": picker.QUALITIES,
            "front": self._draw_front(),
            "charts": crossover_bars.list_bar_charts(data.decision_tables, cpus),
            "families": self._group_by_family(),
            "others": [mechanism for mechanism in data.mechanisms.values() if not mechanism.is_listed],
            "comparisons": library_comparison.list_library_comparisons(data.groups, cpus),
            "claim_groups": [(title, self._list_verdicts(group)) for group, title in claims_text.GROUP_TITLES.items()],
            "script": Markup(script),
            "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        }
        return self._render_template("front", 0, **variables)

    def _list_verdicts(self, group: ClaimGroup) -> list[tuple[str, list[ClaimVerdict]]]:
        """The claims of a group by verdict."""
        claims = self.data.verdicts.list_group(group)
        by_verdict = [(verdict, [claim for claim in claims if claim.verdict == verdict]) for verdict in VERDICTS]
        return [(verdict, listed) for verdict, listed in by_verdict if listed]

    def _draw_front(self) -> Plot | None:
        """Plot error against time at the configuration with most points; None without two inexact mechanisms."""
        data = self.data
        line_styles = style.choose_line_styles(data.rows["label"])
        section_data = SectionData(data.rows, data.gathered.cpus, line_styles, data.gathered.run_notes)
        tables = (table for table in data.decision_tables if table.baseline == "full")
        chapter = tradeoffs.make_chapter([t for t in tables if t.config["mode"] != "decode"], section_data)
        plans = rank_plans(chapter.blocks)
        if not plans:
            return None
        return max(plans, key=lambda plan: plan.line_count).render(raster=False)

    def _group_by_family(self) -> list[tuple[families.FamilyCard, list[SiteMechanism]]]:
        listed = [mechanism for mechanism in self.data.mechanisms.values() if mechanism.is_listed]
        return [(card, [m for m in listed if m.family == card.name]) for card in families.FAMILY_CARDS]

    # -- other pages -----------------------------------------------------------------------------------------------

    def _render_mechanism(self, mechanism: SiteMechanism) -> str:
        claims = [verdict for verdict in self.data.verdicts.claims if verdict.entry.claim.mechanism == mechanism.name]
        papers = bibliography.find_papers(mechanism.details.summary if mechanism.details else "")
        bibtex = [paper.bibtex for paper in papers]
        for name, source in {verdict.entry.file: verdict.entry.source for verdict in claims}.items():
            if not any(source.url.endswith(paper.arxiv) for paper in papers):
                bibtex.append(bibliography.make_bibtex(source, name))
        timings = self._timings_by_mechanism.get(mechanism.name, [])
        variables = {"claims": claims, "bibtex": list(filter(None, bibtex)), "count_lines": len(timings)}
        return self._render_template("mechanism", 1, mechanism=mechanism, lines=timings[:MAX_LINES], **variables)

    @cached_property
    def _timings_by_mechanism(self) -> Mapping[str, list[tuple[GroupResult, TimedMechanism]]]:
        """The timings of each mechanism, longest first."""
        timings: dict[str, list[tuple[GroupResult, TimedMechanism]]] = defaultdict(list)
        for group in sorted(self.data.groups, key=lambda group: -group.length):
            for entry in group.cases:
                timings[entry.row.variant.partition("|")[0].partition(":")[0]].append((group, entry))
        return timings

    def _render_claim(self, claim_verdict: ClaimVerdict) -> str:
        entry, machines = claim_verdict.entry, claim_verdict.machines
        variables = {
            "rule": claims_text.format_rule(entry.claim.rule),
            "group_title": claims_text.GROUP_TITLES[entry.claim.group],
            "measured": [(m.machine, m.verdict, claims_text.format_measured(entry.claim.rule, m)) for m in machines],
            "runs": self._find_runs({key for machine in machines for key in machine.decisive.cases}),
            "bibtex": bibliography.make_bibtex(entry.source, entry.file),
        }
        return self._render_template("claim", 1, claim_verdict=claim_verdict, **variables)

    def _find_runs(self, keys: set[str]) -> list[SiteRun]:
        latest = self.data.gathered.loaded[["case_key", "run_id"]].drop_duplicates("case_key", keep="last")
        runs = map(self.find_run, latest.loc[latest["case_key"].isin(keys), "run_id"].unique())
        digests = {run.listed.digest for run in runs if run}
        return [run for run in self.data.runs if run.listed.digest in digests]

    def _render_task(self, task: str) -> str:
        cpus, lines = self.data.gathered.cpus, self._count_runs(task)
        variables = {
            "sections": [section for section in self.data.gathered.sections if section.task == task],
            "scoreboards": [board for run, *_ in lines for board in scoreboards.list_scoreboards(run, task, cpus)],
            "timed": any(group.row.task == task for group in self.data.groups),
        }
        return self._render_template("task", 1, task=task, lines=lines, **variables)

    def _count_runs(self, task: str) -> list[tuple[SiteRun, int, int, list[str]]]:
        """For each run with the task: the number of its rows, of rows with a result, and the variants."""
        rows_by_run = [(run, run.gathered.rows[run.gathered.rows["task"] == task]) for run in self.data.runs]
        return [
            (run, len(rows), int((rows["status"] == "ok").sum()), sorted(set(rows["variant"].astype(str))))
            for run, rows in rows_by_run
            if len(rows)
        ]


def _finalize(value: Any) -> Any:
    """Remove characters that are not allowed in a page from the text of rows."""
    return sanitize_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value
