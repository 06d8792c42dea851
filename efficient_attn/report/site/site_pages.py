"""Render all pages of a site except the run pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
from markupsafe import Markup

from ... import units
from ...results.file_marks import MARK
from ...results.sanitize import sanitize_line
from .. import formatting, page
from ..answers.decision_table import make_decision_tables
from ..answers.quality import Quality
from ..answers.recommendation_data import RecommendationData
from ..claims import claims_text
from ..claims.verdicts import VERDICTS, ClaimVerdict
from ..tables import ReportCell, ReportTable
from . import bibliography, comparison_tables, pattern_svg, picker, site_charts
from .leaderboard import LineMaker, filter_newest
from .scoreboards import list_scoreboards
from .site_data import ROWS_FILE, SiteData, SiteMechanism, SiteRun
from .site_names import capitalise, make_name

MAX_LINES = 24  # rows of a mechanism's page; the leaderboard has all
SCRIPTED = ("front", "leaderboard")  # pages with a script


class SitePages:
    """Renders the pages. Templates get this object as ``site`` and the relative path to the front page as ``root``.

    docs: address of the documentation, if any. task_sentences: what each task measures.
    """

    def __init__(self, data: SiteData, docs: str, task_sentences: Mapping[str, str]) -> None:
        self.data, self.docs, self.task_sentences = data, docs, task_sentences
        self.newest_rows = filter_newest(data.rows)
        self.rows_by_mechanism = site_charts.split_by_mechanism(self.newest_rows)
        self.run_ids = dict(data.gathered.loaded[["case_key", "run_id"]].itertuples(index=False))  # newest, by case
        self.links = {name: mechanism.page for name, mechanism in data.mechanisms.items()}
        runs = {session: (run.name, run.listed.page) for session, run in data.run_by_session.items()}
        line_maker = LineMaker(Quality(data.gathered.rows), data.machines, self.links, runs)
        self.leaderboard = line_maker.make(self.newest_rows)
        self.run_pages = {run.listed.name: run.listed.page for run in data.runs}
        recommendation_data = RecommendationData.of(data.gathered.rows, data.gathered.sessions)
        self.answers = picker.make_picker(recommendation_data, self.links, data.machines)
        shared = page.make_environment(autoescape=True)
        loaders = [jinja2.PackageLoader("efficient_attn.report.site"), shared.loader]
        self.env = shared.overlay(loader=jinja2.ChoiceLoader(list(filter(None, loaders))), finalize=_finalize)
        self.env.filters = shared.filters | {"capitalise": capitalise, "short_length": units.short_length}
        self.env.globals = shared.globals | {
            "site": self,
            "data": data,
            "rows_file": ROWS_FILE,
            "draw_pattern": pattern_svg.draw_pattern,
            "draw_picture": pattern_svg.draw_picture,
            "family_of": pattern_svg.read_families(),
            "group_titles": claims_text.GROUP_TITLES,
            "verdicts": VERDICTS,
            "count": formatting.format_count,
        }

    def render(self) -> Iterator[tuple[str, str]]:
        """Yield the address within the site and the content of every page and script."""
        yield "style.css", f"{page.read_style_sheet()}/* {MARK} */\n"
        yield "site.css", f"{page.read_template(self.env, 'site.css')}/* {MARK} */\n"
        chart = site_charts.make_front_chart(self.data.rows, self.data.mechanisms.values())
        variables = {"answers": self.answers, "uses": picker.USES, "bounds": picker.BOUNDS, "chart": chart}
        variables["default_shape"] = picker.DEFAULT_SHAPE
        yield "index.html", self._render_template("front", **variables)
        yield from self.answers.format_scripts(self.run_pages)
        yield "leaderboard.html", self._render_template("leaderboard", board=self.leaderboard.as_data())
        yield from self.leaderboard.format_scripts()
        for name in ("mechanisms", "tasks", "claims", "runs"):
            yield f"{name}.html", self._render_template(name)
        crossovers = comparison_tables.list_crossovers(make_decision_tables(self.data.rows), self.data.machines)
        yield "crossovers.html", self._render_template("crossovers", boards=crossovers)
        table = comparison_tables.make_library_table(self.data.rows, self.data.machines)
        yield "libraries.html", self._render_template("libraries", table=table)
        for mechanism in self.data.mechanisms.values():
            yield mechanism.page, self._render_mechanism(mechanism)
        for claim_verdict in self.data.verdicts.claims:
            yield self.link_claim(claim_verdict), self._render_claim(claim_verdict)
        for task in self.data.tasks:
            yield self.link_task(task), self._render_task(task)

    def _render_template(self, template: str, depth: int = 0, **values: Any) -> str:
        """Render a page. depth: of its folder. A script may load further ones; the policy contains its digest."""
        names = ("load", template) if template in SCRIPTED else ()
        script = "".join(page.read_template(self.env, f"{name}.js") for name in names)
        policy = f"{page.make_policy(script)} 'strict-dynamic'" if script else "'none'"
        root = "../" * depth
        values |= {"root": root, "docs": self.link_docs(root), "current": template, "script": script, "policy": policy}
        return self.env.get_template(f"{template}.html.j2").render(values)

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
        return self.docs if not self.docs or "://" in self.docs else root + self.docs

    def find_run(self, run_id: Any) -> SiteRun | None:
        """The published run of a session, if there is one."""
        return self.data.run_by_session.get(str(run_id))

    def _render_mechanism(self, mechanism: SiteMechanism) -> str:
        claims = [verdict for verdict in self.data.verdicts.claims if verdict.entry.claim.mechanism == mechanism.name]
        papers = bibliography.find_papers(mechanism.details.summary if mechanism.details else "")
        sources = {verdict.entry.file: verdict.entry.source for verdict in claims}.items()
        others = [pair for pair in sources if not any(pair[1].url.endswith(paper.arxiv) for paper in papers)]
        bibtex = [*(paper.bibtex for paper in papers), *(bibliography.make_bibtex(x, name) for name, x in others)]
        lines = [line for line in self.leaderboard.lines if line.link == mechanism.page]
        lines.sort(key=lambda line: (-line.length, line.machine, line.task))
        rows = self.rows_by_mechanism.get(mechanism.name)
        plots = None if rows is None else site_charts.draw_plots(rows, self.newest_rows, self.data.machines)
        variables = {"claims": claims, "bibtex": "\n\n".join(filter(None, bibtex)), "lines": lines, "plots": plots}
        return self._render_template("mechanism", 1, mechanism=mechanism, most=MAX_LINES, **variables)

    def format_measured(self, claim_verdict: ClaimVerdict) -> tuple[str, str, list[SiteRun]]:
        """The value that decides a claim, with its machine; why it is inconclusive, if it is; and the value's runs."""
        decisive = claim_verdict.decisive_machine
        if decisive is None:
            return "", "; ".join(claim_verdict.notes) if claim_verdict.verdict == "inconclusive" else "", []
        measured = claims_text.format_measured(claim_verdict.entry.claim.rule, decisive, with_quantity=True)
        text = f"{measured}, {self.data.machines.get(decisive.machine, decisive.machine)}"
        reason = claims_text.describe_open(decisive) if decisive.verdict == "inconclusive" else ""
        return text, reason, self._find_runs(set(decisive.decisive.cases))

    def _render_claim(self, claim_verdict: ClaimVerdict) -> str:
        entry, machines, names = claim_verdict.entry, claim_verdict.machines, self.data.machines
        body = []
        for machine in machines:
            measured = claims_text.format_measured(entry.claim.rule, machine)
            texts = names.get(machine.machine, machine.machine), machine.verdict, measured
            body.append([*map(ReportCell, texts)])
        note = "Intervals: 95% of each test alone. Verdicts: corrected for the tests of all claims."
        head = ("Machine", "Verdict", "Measured")
        variables = {
            "rule": claims_text.format_rule(entry.claim.rule),
            "measured": ReportTable("Verdicts by machine", head, body, text_columns=3, note=note),
            "runs": self._find_runs({key for machine in machines for key in machine.decisive.cases}),
            "bibtex": bibliography.make_bibtex(entry.source, entry.file),
        }
        return self._render_template("claim", 1, claim_verdict=claim_verdict, **variables)

    def _find_runs(self, keys: set[str]) -> list[SiteRun]:
        runs = (self.find_run(self.run_ids[key]) for key in keys if key in self.run_ids)
        digests = {run.listed.digest for run in runs if run}
        return [run for run in self.data.runs if run.listed.digest in digests]

    def describe_task(self, task: str) -> str:
        """What a task measures, in a sentence: its own, or those of its section."""
        sections = (section for section in self.data.gathered.sections if section.task == task)
        sentences = [self.task_sentences.get(task, ""), *(" ".join(section.sentences) for section in sections)]
        return next(filter(None, sentences), f"Results of the task {task}.")

    def _render_task(self, task: str) -> str:
        lines = []
        for run in self.data.runs:
            rows = run.gathered.rows[run.gathered.rows["task"] == task]
            if len(rows):
                ok = rows.loc[rows["status"] == "ok", "variant"].astype(str)
                lines.append((run, len(rows), len(ok), sorted(set(ok))))
        boards = list_scoreboards(self.data.rows, task, self.data.gathered.sections)
        timed = bool((self.newest_rows["task"] == task).any())
        return self._render_template("task", 1, task=task, lines=lines, boards=boards, timed=timed)


def _finalize(value: Any) -> Any:
    """Remove characters that are not allowed in a page from the text of rows."""
    return sanitize_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value
