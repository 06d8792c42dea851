"""From runs to a site: everything is made in memory, then put in the place of the earlier site at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...instruments.collection import no_collection
from . import folders, listing, runs
from .material import Details, Material, Run, read_material
from .pages import Pages
from .runs import TABLE
from .squeezing import drop_ends

MOST_BYTES = 4_950_000  # of a site without its list of files: plots are left out until it is no larger


@dataclass(frozen=True)
class Published:
    """What was written. size: in bytes."""

    site: Path
    runs: int
    pages: int
    size: int


def publish(paths: Sequence[Path], site: Path, *, details: Mapping[str, Details] | None = None) -> Published:
    """Make a site of these runs, in the place of an earlier one and of nothing else.

    details: what mechanisms say of themselves, by name. Raises `UsageError` for a folder that holds no run, and for a
    site's folder that holds foreign files, before anything is written.
    """
    folders.check_site(site)
    with no_collection():
        files = make_site(read_material(paths, details or {}))
    folders.replace_site(site, files)
    pages = sum(name.endswith(".html") for name in files)
    held = sum(name.endswith("/index.html") for name in files)
    return Published(site, held, pages, sum(map(len, files.values())))


def make_site(material: Material) -> dict[str, bytes]:
    """All files of a site by their address."""
    pages = Pages(material)
    files = {name: drop_ends(text).encode() for name, text in pages.render()}
    for run in material.runs:
        files[f"r/{run.digest}/{TABLE}"] = runs.pack_rows(run.found.loaded)
    files[TABLE] = runs.pack_rows(material.found.loaded)
    files[listing.INDEX] = listing.write_index(_list(material, pages)).encode()
    files[listing.SCHEMA] = listing.write_schema().encode()
    own = [runs.make_page(run) for run in material.runs]
    runs.fit(own, MOST_BYTES - sum(map(len, files.values())))
    return files | {one.run.link: one.html.encode() for one in own}


def _list(material: Material, pages: Pages) -> listing.Index:
    claims = material.judgement.claims
    tasks = material.rows["task"].value_counts()
    return listing.Index(
        rows=TABLE,
        runs=[_list_run(run) for run in material.runs],
        mechanisms=[
            listing.ListedMechanism(name=one.name, family=one.family, sentence=one.sentence, page=one.link)
            for one in material.mechanisms.values()
        ],
        claims=[
            listing.ListedClaim(
                id=one.entry.claim.id,
                mechanism=one.entry.claim.mechanism,
                source=one.entry.source.cite,
                verdict=one.verdict,
                page=pages.link_claim(one),
            )
            for one in claims
        ],
        leaderboards=[
            listing.ListedLeaderboard(
                suite=one.suite, machine=one.machine, cells=len(one.cells), page=pages.link_board(one)
            )
            for one in pages.boards
        ],
        tasks=[
            listing.ListedTask(name=task, rows=int(tasks[task]), page=pages.link_task(task)) for task in material.tasks
        ],
    )


def _list_run(run: Run) -> listing.ListedRun:
    ok, cases = run.counts
    return listing.ListedRun(
        name=run.name,
        digest=run.digest,
        suite=run.suite,
        title=run.title,
        machines=list(run.machines),
        started=str(run.last.get("started") or ""),
        torch=run.read("environment", "torch"),
        commit=run.commit,
        ok=ok,
        cases=cases,
        page=run.link,
        rows=f"r/{run.digest}/{TABLE}",
    )
