"""Render all pages of a site except the run pages."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import jinja2
from markupsafe import Markup

from ... import units
from ...results.file_marks import MARK
from ...results.sanitize import sanitize_line
from .. import formatting, page
from ..answers.quality import Quality
from ..answers.recommendation import RecommendationData
from ..claims import claims_text
from ..claims.ledger import ClaimGroup
from ..claims.verdicts import VERDICTS, ClaimVerdict
from ..gather import Frame
from . import bibliography, crossover_tables, families, library_comparison, mechanism_plots, pattern_svg, picker
from .front_chart import make_front_chart
from .leaderboard import Leaderboard, LineMaker, filter_newest
from .page_names import make_name
from .run_pages import STYLE_SHEET
from .scoreboards import list_scoreboards
from .short_names import split_label
from .site_data import ROWS_FILE, SiteData, SiteMechanism, SiteRun

SITE_STYLE_SHEET = "site.css"
MAX_LINES = 24  # rows of a mechanism's page; the leaderboard has all
NAVIGATION = ("leaderboard", "mechanisms", "tasks", "claims", "runs")


class SitePages:
    """Renders the pages. Templates get this object as ``site`` and the relative path to the front page as ``root``."""

    def __init__(self, data: SiteData) -> None:
        self.data = data
        self.newest_rows = filter_newest(data.rows)
        self.links = {name: mechanism.page for name, mechanism in data.mechanisms.items()}
        packages = ("efficient_attn.report.site", "efficient_attn.report")
        self.env = jinja2.Environment(
            loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name, "templates") for name in packages]),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
            finalize=_finalize,
        )
        self.env.filters |= {"breakable": page.add_word_breaks, "size": units.size, "short_length": units.short_length}
        self.env.globals |= {"mark": MARK, "site": self, "data": data, "rows_file": ROWS_FILE}
        self.env.globals |= {"draw_pattern": pattern_svg.draw_pattern, "family_of": families.read_families()}
        self.env.globals |= {"count": formatting.format_count, "split_label": split_label, "navigation": NAVIGATION}

    def render(self) -> Iterator[tuple[str, str | bytes]]:
        """Yield the address within the site and the content of every page and script."""
        yield STYLE_SHEET, f"{page.read_style_sheet()}/* {MARK} */\n"
        yield SITE_STYLE_SHEET, f"{self._read_template(SITE_STYLE_SHEET)}/* {MARK} */\n"
        yield "index.html", self._render_front()
        yield from self.answers.format_blocks()
        yield "leaderboard.html", self._render_scripted("leaderboard", board=self.leaderboard.as_data())
        yield from self.leaderboard.blocks.items()
        yield from ((f"{name}.html", text) for name, text in self._render_lists())
        for mechanism in self.data.mechanisms.values():
            yield mechanism.page, self._render_mechanism(mechanism)
        for claim_verdict in self.data.verdicts.claims:
            yield self.link_claim(claim_verdict), self._render_claim(claim_verdict)
        for task in self.data.tasks:
            yield self.link_task(task), self._render_task(task)

    def _render_template(self, template: str, depth: int, **variables: Any) -> str:
        return self.env.get_template(f"{template}.html.j2").render(root="../" * depth, current=template, **variables)

    def _render_scripted(self, template: str, **variables: Any) -> str:
        """A page with a script, which may load further scripts; the policy contains its digest."""
        script = self._read_template("load.js") + self._read_template(f"{template}.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        return self._render_template(template, 0, script=Markup(script), digest=digest, **variables)

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
        return self.links.get(re.split(r"[|:]| \(", variant, maxsplit=1)[0], "")

    def link_docs(self, root: str) -> str:
        """The address of the documentation, seen from a page; empty without one."""
        docs = self.data.docs
        return docs if not docs or "://" in docs else root + docs

    def find_run(self, run_id: Any) -> SiteRun | None:
        """The published run of a session, if there is one."""
        return self.data.run_by_session.get(str(run_id))

    # -- the front page and the leaderboard ------------------------------------------------------------------------

    @cached_property
    def answers(self) -> picker.PickerData:
        """The answers of the front page's picker."""
        return picker.make_picker(RecommendationData.of(self.data.gathered.rows), self.links, self.data.machines)

    @cached_property
    def leaderboard(self) -> Leaderboard:
        """The leaderboard of all timed rows."""
        runs = {session: (run.name, run.listed.page) for session, run in self.data.run_by_session.items()}
        quality = Quality(self.data.gathered.rows)
        return LineMaker(quality, self.data.machines, self.links, runs).make(self.newest_rows)

    def _render_front(self) -> str:
        chart = make_front_chart(self.data.rows, self.data.mechanisms.values())
        variables = {"answers": self.answers, "uses": picker.USES, "bounds": picker.BOUNDS, "chart": chart}
        return self._render_scripted("front", **variables)

    # -- lists -----------------------------------------------------------------------------------------------------

    def _render_lists(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of the pages that list other pages."""
        data = self.data
        by_family: dict[str, list[SiteMechanism]] = {name: [] for name in ("", *families.read_families())}
        for mechanism in data.mechanisms.values():
            by_family[mechanism.family if mechanism.is_listed else ""].append(mechanism)
        groups = [(title, self._list_verdicts(group)) for group, title in claims_text.GROUP_TITLES.items()]
        crossovers = crossover_tables.list_crossovers(data.decision_tables, data.machines)
        comparisons = library_comparison.list_library_comparisons(data.rows, data.machines)
        yield "mechanisms", self._render_template("mechanisms", 0, by_family=by_family)
        yield "tasks", self._render_template("tasks", 0)
        yield "claims", self._render_template("claims", 0, claim_groups=groups)
        yield "runs", self._render_template("runs", 0)
        yield "crossovers", self._render_template("crossovers", 0, crossovers=crossovers)
        yield "libraries", self._render_template("libraries", 0, comparisons=comparisons)

    def _list_verdicts(self, group: ClaimGroup) -> list[tuple[str, list[ClaimVerdict]]]:
        """The claims of a group by verdict."""
        claims = self.data.verdicts.list_group(group)
        by_verdict = [(verdict, [claim for claim in claims if claim.verdict == verdict]) for verdict in VERDICTS]
        return [(verdict, listed) for verdict, listed in by_verdict if listed]

    # -- other pages -----------------------------------------------------------------------------------------------

    def _render_mechanism(self, mechanism: SiteMechanism) -> str:
        claims = [verdict for verdict in self.data.verdicts.claims if verdict.entry.claim.mechanism == mechanism.name]
        papers = bibliography.find_papers(mechanism.details.summary if mechanism.details else "")
        bibtex = [paper.bibtex for paper in papers]
        for name, source in {verdict.entry.file: verdict.entry.source for verdict in claims}.items():
            if not any(source.url.endswith(paper.arxiv) for paper in papers):
                bibtex.append(bibliography.make_bibtex(source, name))
        lines = [line for line in self.leaderboard.lines if line.link == mechanism.page]
        lines.sort(key=lambda line: (-line.length, line.machine, line.task))
        rows = self._rows_by_mechanism.get(mechanism.name)
        plots = None if rows is None else mechanism_plots.draw_plots(rows, self.newest_rows, self.data.machines)
        variables = {"claims": claims, "bibtex": list(filter(None, bibtex)), "count_lines": len(lines), "plots": plots}
        return self._render_template("mechanism", 1, mechanism=mechanism, lines=lines[:MAX_LINES], **variables)

    @cached_property
    def _rows_by_mechanism(self) -> Mapping[str, Frame]:
        return mechanism_plots.split_by_mechanism(self.newest_rows)

    def _render_claim(self, claim_verdict: ClaimVerdict) -> str:
        entry, machines = claim_verdict.entry, claim_verdict.machines
        variables = {
            "rule": claims_text.format_rule(entry.claim.rule),
            "group_title": claims_text.GROUP_TITLES[entry.claim.group],
            "measured": [
                (
                    self.data.machines.get(m.machine, m.machine),
                    m.verdict,
                    claims_text.format_measured(entry.claim.rule, m),
                )
                for m in machines
            ],
            "runs": self._find_runs({key for machine in machines for key in machine.decisive.cases}),
            "bibtex": bibliography.make_bibtex(entry.source, entry.file),
        }
        return self._render_template("claim", 1, claim_verdict=claim_verdict, **variables)

    def _find_runs(self, keys: set[str]) -> list[SiteRun]:
        latest = self.data.gathered.loaded[["case_key", "run_id"]].drop_duplicates("case_key", keep="last")
        runs = map(self.find_run, latest.loc[latest["case_key"].isin(keys), "run_id"].unique())
        digests = {run.listed.digest for run in runs if run}
        return [run for run in self.data.runs if run.listed.digest in digests]

    def describe_task(self, task: str) -> str:
        """What a task measures, in a sentence: its own, or those of its section."""
        sections = (section for section in self.data.gathered.sections if section.task == task)
        sentences = [self.data.task_sentences.get(task, ""), *(" ".join(section.sentences) for section in sections)]
        return next(filter(None, sentences), f"Results of the task {task}.")

    def _render_task(self, task: str) -> str:
        boards = list_scoreboards(self.data.rows, task, self.data.gathered.sections)
        timed = bool((self.newest_rows["task"] == task).any())
        return self._render_template(
            "task", 1, task=task, lines=self._count_runs(task), scoreboards=boards, timed=timed
        )

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
