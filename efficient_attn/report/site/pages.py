"""All pages of a site but the runs' own, as text by their address."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
from markupsafe import Markup

from ... import units
from ...results.cleaning import clean
from ...results.marks import MARK
from .. import page, words
from ..claims import telling
from ..claims.judging import VERDICTS, Judged
from ..drawing import figures, plots, style
from ..gather import Frame
from ..sections import tradeoffs
from ..sections.blocks import Material as Shown
from . import beside, families, papers, picking, scores, shapes, strips
from .cells import Cell, Leaderboard, Timed, list_leaderboards
from .material import Material, Mechanism, Run
from .naming import make_name
from .runs import SHEET, TABLE
from .squeezing import shorten

OWN_SHEET = "site.css"
MOST_LINES = 60  # of a mechanism's rows on its page; all are in the table beside the site's front page
MOST_CELLS = 24  # tables of a leaderboard's page


class Pages:
    """Renders a site's pages. Each template gets the site itself, and ``root``, the way to its front page."""

    def __init__(self, material: Material) -> None:
        self.material = material
        self.boards = list_leaderboards(material.cells)
        loader = jinja2.ChoiceLoader(
            [
                jinja2.PackageLoader("efficient_attn.report.site", "templates"),
                jinja2.PackageLoader("efficient_attn.report", "templates"),
            ]
        )
        self.env = jinja2.Environment(
            loader=loader,
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
            finalize=_finalize,
        )
        self.env.filters |= {"breakable": page.breakable, "size": units.size, "short": units.short_length}
        self.env.globals |= {"made": MARK, "site": self, "material": material, "table": TABLE}
        self.env.globals |= {"draw_pattern": shapes.draw_pattern, "family_of": families.BY_NAME, "count": words.count}

    def render(self) -> Iterator[tuple[str, str]]:
        """Every page with its address within the site."""
        for name in (SHEET, OWN_SHEET):
            yield name, f"{self._source(name)}/* {MARK} */\n"
        yield "index.html", self._front()
        for board in self.boards:
            shown = board.cells[:MOST_CELLS]
            yield self.link_board(board), self._fill("board", 1, board=board, cells=shown)
        for mechanism in self.material.mechanisms.values():
            yield mechanism.link, self._mechanism(mechanism)
        for judged in self.material.judgement.claims:
            yield self.link_claim(judged), self._claim(judged)
        for task in self.material.tasks:
            yield self.link_task(task), self._task(task)

    def _fill(self, template: str, depth: int, **known: Any) -> str:
        return self.env.get_template(f"{template}.html.j2").render(root="../" * depth, **known)

    def _source(self, name: str) -> str:
        assert self.env.loader is not None
        return self.env.loader.get_source(self.env, name)[0]

    # -- addresses -------------------------------------------------------------------------------------------------

    def link_board(self, board: Leaderboard) -> str:
        return f"b/{make_name(board.suite, board.machine)}.html"

    def link_claim(self, judged: Judged) -> str:
        return f"c/{make_name(judged.entry.claim.id)}.html"

    def link_task(self, task: str) -> str:
        return f"t/{make_name(task)}.html"

    def link_variant(self, variant: str) -> str:
        """The page of a spec's or a label's mechanism, of a union the first; empty where there is none."""
        found = self.material.mechanisms.get(re.split(r"[|:]| \(", variant, maxsplit=1)[0])
        return found.link if found else ""

    def run_of(self, run_id: Any) -> Run | None:
        return self.material.run_of.get(str(run_id))

    # -- the front page --------------------------------------------------------------------------------------------

    def _front(self) -> str:
        links = {name: one.link for name, one in self.material.mechanisms.items()}
        script = self._source("picker.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        material = self.material
        known = {
            "picker": picking.make_picker(self.material.cells, material.places, links, material.found.cpus),
            "uses": picking.USE_WORDS,
            "qualities": picking.QUALITIES,
            "front": self._draw_front(),
            "strips": strips.list_strips(self.material.boards, self.material.found.cpus),
            "families": self._list_families(),
            "others": [one for one in self.material.mechanisms.values() if not one.is_listed],
            "beside": list(beside.list_beside(self.material.cells, self.material.found.cpus)),
            "verdicts": self._count_verdicts(),
            "script": Markup(script),
            "digest": digest,
        }
        return self._fill("front", 0, **known)

    def _draw_front(self) -> figures.Plot | None:
        """Loss against time at the place of which most is known; None where no two mechanisms lose anything."""
        material = self.material
        looks = style.choose_looks(material.rows["label"])
        shown = Shown(material.rows, material.found.cpus, looks, frozenset(material.found.trials))
        full = [board for board in material.boards if board.baseline == "full" and board.place["mode"] != "decode"]
        chapter = tradeoffs.make_chapter(full, shown)
        panels = sorted((panel for block in chapter.blocks for panel in block.panels), key=plots.rank)
        if not panels:
            return None
        plot = figures.draw(max(panels, key=lambda panel: panel.lines).make(), raster=False)
        return figures.Plot(plot.panel, shorten(plot.svg), b"")

    def _list_families(self) -> list[tuple[families.Family, list[Mechanism]]]:
        own: dict[str, list[Mechanism]] = defaultdict(list)
        for one in self.material.mechanisms.values():
            if one.is_listed:
                own[one.family].append(one)
        return [(family, own[family.name]) for family in families.FAMILIES]

    def _count_verdicts(self) -> list[tuple[str, list[Judged]]]:
        claims = self.material.judgement.claims
        return [(verdict, [one for one in claims if one.verdict == verdict]) for verdict in VERDICTS]

    # -- the others ------------------------------------------------------------------------------------------------

    def _mechanism(self, one: Mechanism) -> str:
        claims = [j for j in self.material.judgement.claims if j.entry.claim.mechanism == one.name]
        sources = {j.entry.file: j.entry.source for j in claims}
        own = papers.find_papers(one.details.opening if one.details else "")
        named = [s for s in sources.items() if not any(s[1].url.endswith(paper.arxiv) for paper in own)]
        bibtex = [text for text in (papers.make_bibtex(source, name) for name, source in named) if text]
        bibtex = [*(paper.bibtex for paper in own), *bibtex]
        lines = self._list_own(one.name)
        return self._fill(
            "mechanism", 1, one=one, claims=claims, bibtex=bibtex, lines=lines[:MOST_LINES], count_lines=len(lines)
        )

    def _list_own(self, name: str) -> list[tuple[Cell, Timed]]:
        return self._own.get(name, [])

    @cached_property
    def _own(self) -> Mapping[str, list[tuple[Cell, Timed]]]:
        """Where each mechanism was timed, the longest first."""
        found: dict[str, list[tuple[Cell, Timed]]] = defaultdict(list)
        for cell in sorted(self.material.cells, key=lambda cell: -cell.length):
            for one in cell.cases:
                found[one.row.variant.partition("|")[0].partition(":")[0]].append((cell, one))
        return found

    def _claim(self, judged: Judged) -> str:
        claim = judged.entry.claim
        tested = {key for machine in judged.machines for key in machine.shown.cases}
        runs = self._runs_of_cases(tested)
        measured = [(m.machine, m.verdict, telling.tell_measured(claim.rule, m)) for m in judged.machines]
        bibtex = papers.make_bibtex(judged.entry.source, judged.entry.file)
        rule = telling.tell_rule(claim.rule)
        return self._fill("claim", 1, judged=judged, rule=rule, measured=measured, runs=runs, bibtex=bibtex)

    def _runs_of_cases(self, keys: set[str]) -> list[Run]:
        held = {str(self._session_of[key]) for key in keys if key in self._session_of}
        return [run for run in self.material.runs if any(self.material.run_of.get(each) is run for each in held)]

    @cached_property
    def _session_of(self) -> Mapping[str, Any]:
        loaded = self.material.found.loaded
        return dict(zip(loaded["case_key"].tolist(), loaded["run_id"].tolist(), strict=True))

    def _task(self, task: str) -> str:
        rows = self.material.rows[self.material.rows["task"] == task]
        sections = [section for section in self.material.found.sections if section.task == task]
        cpus = self.material.found.cpus
        lines = self._count_runs(rows)
        found = [board for run, *_ in lines for board in scores.list_scoreboards(run, task, cpus)]
        timed = any(cell.row.task == task for cell in self.material.cells)
        return self._fill("task", 1, task=task, sections=sections, lines=lines, found=found, timed=timed)

    def _count_runs(self, rows: Frame) -> list[tuple[Run, int, int, Sequence[str]]]:
        """Of each run its rows of a task, those with a result, and their mechanisms."""
        found = []
        for run in self.material.runs:
            own = rows[rows["run_id"].map(lambda each, run=run: self.run_of(each) is run)]
            if len(own):
                ok = own[own["status"] == "ok"]
                found.append((run, len(own), len(ok), sorted(set(own["variant"].astype(str)))))
        return found


def _finalize(value: Any) -> Any:
    """Text of rows without characters that a page may not hold."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
