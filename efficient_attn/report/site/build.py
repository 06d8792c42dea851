"""Build a site from runs in memory, then replace the earlier site as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ...errors import UsageError
from ...garbage import garbage_collection_disabled
from ...results.file_marks import MARK
from . import run_pages, site_folder
from .compact import drop_end_tags
from .site_data import ROWS_FILE, MechanismDetails, SiteData, read_site_data
from .site_index import SCHEMA_FILE, Index, ListedClaim, ListedLeaderboard, ListedMechanism, ListedTask
from .site_pages import SitePages


class PublishedSite(NamedTuple):
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
        data = read_site_data(paths, details or {})
        files = _make_files(data, SitePages(data, docs, task_sentences or {}))
    site_folder.replace_site(site, files)
    pages = sum(name.endswith(".html") for name in files)
    return PublishedSite(site, len(data.runs), pages, sum(map(len, files.values())))


def _make_files(data: SiteData, pages: SitePages) -> dict[str, bytes]:
    """Return the content of all files of a site, by address."""
    files = {}
    for name, text in pages.render():
        files[name] = (drop_end_tags(text) if name.endswith(".html") else text).encode()
    index = _make_index(data, pages).model_dump_json(indent=1, by_alias=True)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": MARK}
    schema |= Index.model_json_schema(by_alias=True)
    files["index.json"] = f"{index}\n".encode()
    files[SCHEMA_FILE] = f"{json.dumps(schema, indent=1)}\n".encode()
    for run in data.runs:
        files |= run_pages.make_run_pages(run, pages.link_docs("../../"))
        files[run.listed.rows] = run_pages.pack_rows(run.gathered.loaded)
    is_single = len(data.runs) == 1  # its rows are all rows
    files[ROWS_FILE] = files[data.runs[0].listed.rows] if is_single else run_pages.pack_rows(data.gathered.loaded)
    return files


def _make_index(data: SiteData, pages: SitePages) -> Index:
    row_counts, board = data.rows["task"].value_counts(), pages.leaderboard
    return Index(
        rows=ROWS_FILE,
        runs=[run.listed for run in data.runs],
        mechanisms=[ListedMechanism.model_validate(mechanism) for mechanism in data.mechanisms.values()],
        claims=[
            ListedClaim(
                id=entry.claim.id,
                mechanism=entry.claim.mechanism,
                source=entry.source.cite,
                group=entry.claim.group,
                counts=entry.counts,
                verdict=claim_verdict.verdict,
                page=pages.link_claim(claim_verdict),
            )
            for claim_verdict in data.verdicts.claims
            for entry in [claim_verdict.entry]
        ],
        leaderboard=ListedLeaderboard(lines=len(board.lines), page="leaderboard.html", blocks=list(board.blocks)),
        tasks=[ListedTask(name=task, rows=int(row_counts[task]), page=pages.link_task(task)) for task in data.tasks],
    )
