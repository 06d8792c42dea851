"""Build a site from runs in memory, then replace the earlier site as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...instruments.garbage import garbage_collection_disabled
from . import run_pages, site_folder, site_index
from .minify import drop_end_tags
from .run_pages import ROWS_FILE
from .site_data import MechanismDetails, SiteData, SiteRun, read_site_data
from .site_pages import SitePages

MAX_BYTES = 4_950_000  # limit of a site without its file list; plots are dropped to fit


@dataclass(frozen=True)
class PublishedSite:
    """The folder of a written site, its number of runs and pages, and its size in bytes."""

    site: Path
    runs: int
    pages: int
    size: int


def publish(
    paths: Sequence[Path], site: Path, *, details: Mapping[str, MechanismDetails] | None = None
) -> PublishedSite:
    """Build a site of these runs, replacing an earlier site.

    details: details of mechanisms, by name. Raises `UsageError`, before anything is written, for a folder without a run
    and for a site folder with other files.
    """
    site_folder.check_site(site)
    with garbage_collection_disabled():
        files = make_site(read_site_data(paths, details or {}))
    site_folder.replace_site(site, files)
    pages = sum(name.endswith(".html") for name in files)
    run_count = sum(name.endswith("/index.html") for name in files)
    return PublishedSite(site, run_count, pages, sum(map(len, files.values())))


def make_site(data: SiteData) -> dict[str, bytes]:
    """Return the content of all files of a site, by address."""
    pages = SitePages(data)
    files = {name: drop_end_tags(text).encode() for name, text in pages.render()}
    for run in data.runs:
        files[f"r/{run.digest}/{ROWS_FILE}"] = run_pages.pack_rows(run.gathered.loaded)
    files[ROWS_FILE] = run_pages.pack_rows(data.gathered.loaded)
    files[site_index.INDEX_FILE] = site_index.format_index(_make_index(data, pages)).encode()
    files[site_index.SCHEMA_FILE] = site_index.format_schema().encode()
    pages_of_runs = [run_pages.make_run_page(run) for run in data.runs]
    run_pages.drop_plots_to_fit(pages_of_runs, MAX_BYTES - sum(map(len, files.values())))
    return files | {run_page.run.link: run_page.html.encode() for run_page in pages_of_runs}


def _make_index(data: SiteData, pages: SitePages) -> site_index.Index:
    tasks = data.rows["task"].value_counts()
    return site_index.Index(
        rows=ROWS_FILE,
        runs=[_make_run_entry(run) for run in data.runs],
        mechanisms=[
            site_index.ListedMechanism(
                name=mechanism.name, family=mechanism.family, sentence=mechanism.sentence, page=mechanism.link
            )
            for mechanism in data.mechanisms.values()
        ],
        claims=[
            site_index.ListedClaim(
                id=claim_verdict.entry.claim.id,
                mechanism=claim_verdict.entry.claim.mechanism,
                source=claim_verdict.entry.source.cite,
                group=claim_verdict.entry.claim.group,
                counts=claim_verdict.entry.counts,
                verdict=claim_verdict.verdict,
                page=pages.link_claim(claim_verdict),
            )
            for claim_verdict in data.verdicts.claims
        ],
        leaderboards=[
            site_index.ListedLeaderboard(
                suite=board.suite, machine=board.machine, cells=len(board.groups), page=pages.link_leaderboard(board)
            )
            for board in pages.leaderboards
        ],
        tasks=[
            site_index.ListedTask(name=task, rows=int(tasks[task]), page=pages.link_task(task)) for task in data.tasks
        ],
    )


def _make_run_entry(run: SiteRun) -> site_index.ListedRun:
    ok, cases = run.counts
    return site_index.ListedRun(
        name=run.name,
        digest=run.digest,
        suite=run.suite,
        title=run.title,
        machines=list(run.machines),
        started=str(run.last_session.get("started") or ""),
        torch=run.read("environment", "torch"),
        commit=run.commit,
        ok=ok,
        cases=cases,
        page=run.link,
        rows=f"r/{run.digest}/{ROWS_FILE}",
    )
