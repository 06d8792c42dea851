"""Build a site from runs in memory, then replace the earlier site as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ...errors import UsageError
from ...instruments.garbage import garbage_collection_disabled
from ..claims.verdicts import ClaimVerdict
from . import run_pages, site_folder, site_index
from .minify import drop_end_tags
from .site_data import ROWS_FILE, MechanismDetails, SiteData, read_site_data
from .site_index import Index, ListedClaim, ListedLeaderboard, ListedMechanism, ListedTask
from .site_pages import SitePages


@dataclass(frozen=True)
class PublishedSite:
    """The folder of a written site, its number of runs and pages, and its size in bytes."""

    site: Path
    runs: int
    pages: int
    size: int


def publish(
    paths: Sequence[Path],
    site: Path,
    *,
    details: Mapping[str, MechanismDetails] | None = None,
    docs: str = "",
    task_sentences: Mapping[str, str] | None = None,
) -> PublishedSite:
    """Build a site of these runs, replacing an earlier site.

    details: details of mechanisms, by name. docs: address of the documentation, absolute or relative to the site.
    task_sentences: what each task measures. Raises `UsageError`, before anything is written, for a folder without a
    run, a site folder with other files, and an invalid address.
    """
    site_folder.check_site(site)
    if urlsplit(docs).scheme not in ("", "http", "https"):
        raise UsageError(f"--docs {docs}: must be a relative path, or an address that starts with https:// or http://")
    with garbage_collection_disabled():
        files = make_site(read_site_data(paths, details or {}, docs=docs, task_sentences=task_sentences))
    site_folder.replace_site(site, files)
    pages = sum(name.endswith(".html") for name in files)
    run_count = sum(name.endswith("/index.html") for name in files)
    return PublishedSite(site, run_count, pages, sum(map(len, files.values())))


def make_site(data: SiteData) -> dict[str, bytes]:
    """Return the content of all files of a site, by address."""
    pages = SitePages(data)
    files = {name: _encode(name, text) for name, text in pages.render()}
    for run in data.runs:
        files[run.listed.rows] = run_pages.pack_rows(run.gathered.loaded)
    files[ROWS_FILE] = run_pages.pack_rows(data.gathered.loaded)
    files[site_index.INDEX_FILE] = site_index.format_index(_make_index(data, pages)).encode()
    files[site_index.SCHEMA_FILE] = site_index.format_schema().encode()
    for run in data.runs:
        files |= run_pages.make_run_pages(run, pages.link_docs("../../"))
    return files


def _encode(name: str, content: str | bytes) -> bytes:
    if isinstance(content, bytes):
        return content
    return (drop_end_tags(content) if name.endswith(".html") else content).encode()


def _make_index(data: SiteData, pages: SitePages) -> Index:
    row_counts = data.rows["task"].value_counts()
    return Index(
        rows=ROWS_FILE,
        runs=[run.listed for run in data.runs],
        mechanisms=[ListedMechanism.model_validate(mechanism) for mechanism in data.mechanisms.values()],
        claims=[_list_claim(claim_verdict, pages) for claim_verdict in data.verdicts.claims],
        leaderboard=ListedLeaderboard(
            lines=len(pages.leaderboard.lines), page="leaderboard.html", blocks=list(pages.leaderboard.blocks)
        ),
        tasks=[ListedTask(name=task, rows=int(row_counts[task]), page=pages.link_task(task)) for task in data.tasks],
    )


def _list_claim(claim_verdict: ClaimVerdict, pages: SitePages) -> ListedClaim:
    entry = claim_verdict.entry
    return ListedClaim(
        id=entry.claim.id,
        mechanism=entry.claim.mechanism,
        source=entry.source.cite,
        group=entry.claim.group,
        counts=entry.counts,
        verdict=claim_verdict.verdict,
        page=pages.link_claim(claim_verdict),
    )
