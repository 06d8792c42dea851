"""Data of a site: runs, their rows, and everything derived from them, read once."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ...errors import UsageError
from ...registry import catalogue
from ...results.shards import COMPRESSED_SUFFIX, list_shards
from ...results.store import describe_older_protocol
from ...spec import list_names
from ...variants import FAMILIES
from .. import approximation_errors, select
from ..claims.evidence import read_evidence
from ..claims.ledger import load_ledger
from ..claims.verdicts import LedgerVerdicts, evaluate_claims
from ..formatting import shorten_text
from ..gather import Frame, ReportData, gather
from .pattern_svg import PatternDrawing
from .site_index import ListedRun
from .site_names import make_name, name_machines

ROWS_FILE = "rows.csv.gz"
CHUNK_BYTES = 2**20
PEER_PREFIX = "peer_"  # of the names of other libraries' mechanisms


@dataclass(frozen=True)
class MechanismDetails:
    """Details of an instantiated mechanism: options with defaults, growth of time and memory, supported features.

    limits: features that it does not support. summary: first paragraph of its docstring. patterns: its pattern, if any.
    causal, cross: whether it takes causal masks, and keys that are not its queries. parameters: number of its weights.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    time: str = ""
    memory: str = ""
    features: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    summary: str = ""
    patterns: tuple[PatternDrawing, ...] = ()
    causal: bool = True
    cross: bool = True
    parameters: int = 0


@dataclass(frozen=True)
class SiteRun:
    """A run. listed: its entry in the index."""

    listed: ListedRun
    gathered: ReportData

    @property
    def name(self) -> str:
        """Its folder's name, shortened."""
        return shorten_text(self.listed.name)

    @property
    def protocol_note(self) -> str:
        """``protocol 2, older code`` for a run of an earlier protocol, else nothing."""
        return describe_older_protocol(*self.gathered.sessions)


@dataclass(frozen=True)
class SiteMechanism:
    """A mechanism of the catalogue, or one that only occurs in rows. details: None if it was not instantiated."""

    name: str
    family: str
    sentence: str
    details: MechanismDetails | None = None

    @property
    def card(self) -> str:
        """The family on whose card it is; empty for mechanisms of other libraries."""
        return self.family if self.family in FAMILIES and not self.name.startswith(PEER_PREFIX) else ""

    @property
    def page(self) -> str:
        """The address of its page."""
        return f"m/{make_name(self.name)}.html"


@dataclass(frozen=True)
class SiteData:
    """All data that pages are rendered from. rows: of all runs, oldest first, with labels, errors and ``started``;
    machines: short names."""

    runs: tuple[SiteRun, ...]
    gathered: ReportData
    rows: Frame
    verdicts: LedgerVerdicts
    mechanisms: Mapping[str, SiteMechanism]
    machines: Mapping[str, str]

    @cached_property
    def run_by_session(self) -> Mapping[str, SiteRun]:
        """The run of each session, by session id."""
        return {str(session): run for run in self.runs for session in run.gathered.rows["run_id"].dropna().unique()}

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of all rows."""
        return tuple(sorted(map(str, self.rows["task"].dropna().unique())))


def read_site_data(paths: Sequence[Path], details: Mapping[str, MechanismDetails]) -> SiteData:
    """Read runs. Raises `UsageError` for no runs, a folder without a run, and rows of a newer version."""
    path_by_digest: dict[str, Path] = {}
    for path in paths:
        path_by_digest.setdefault(_digest_rows(path), path)
    unique_paths = list(path_by_digest.values())
    gathered = gather(unique_paths)
    runs = tuple(_read_run(path, digest) for digest, path in path_by_digest.items())
    rows = approximation_errors.add_errors(_add_labels(gathered.rows, runs))
    return SiteData(
        runs=runs,
        gathered=gathered,
        rows=rows,
        verdicts=evaluate_claims(load_ledger(), read_evidence(unique_paths)),
        mechanisms=_list_mechanisms(rows, details),
        machines=name_machines(rows["machine"].dropna().unique()),
    )


def _add_labels(rows: Frame, runs: Iterable[SiteRun]) -> Frame:
    """Rows with ``started``, oldest first. Labels do not name their run, nor key-value heads equal to the heads."""
    started = {str(session): run.listed.started for run in runs for session in run.gathered.rows["run_id"].unique()}
    rows = select.add_labels(rows.assign(started=rows["run_id"].map(lambda run_id: started.get(str(run_id), ""))))
    pairs = zip(rows["label"], rows["heads"], strict=True)
    labels = [re.sub(rf" \((run_id=[^)]*|kv_heads={heads})\)", "", label) for label, heads in pairs]
    return rows.assign(label=labels).sort_values("started", kind="stable", ignore_index=True)


def _read_run(path: Path, digest: str) -> SiteRun:
    """Read a run. digest: of its rows, independent of where the folder is."""
    gathered = gather([path])
    session = gathered.sessions[-1] if gathered.sessions else {}
    suite, environment = session.get("suite") or {}, session.get("environment") or {}
    listed = ListedRun(
        name=path.resolve().name,
        digest=digest,
        suite=str(suite.get("name") or "unknown"),
        title=str(suite.get("title") or ""),
        machines=sorted(map(str, gathered.rows["machine"].dropna().unique())),
        started=str(session.get("started") or ""),
        torch=str(environment.get("torch") or ""),
        commit=str((environment.get("git") or {}).get("revision") or "")[:7],
        ok=int((gathered.rows["status"] == "ok").sum()),
        cases=len(gathered.rows),
        page=f"r/{digest}/index.html",
        rows=f"r/{digest}/{ROWS_FILE}",
    )
    return SiteRun(listed, gathered)


def _digest_rows(path: Path) -> str:
    """Digest of a run's lines, which does not change if its files are compressed."""
    hasher = hashlib.sha256()
    files = list_shards(path)
    if not files:
        raise UsageError(f"{path}: holds no run; name a run's folder")
    for file in files:
        with (
            gzip.open(file) if file.suffix == COMPRESSED_SUFFIX else file.open("rb") as content,
            suppress(EOFError, gzip.BadGzipFile, zlib.error),  # damage, which reading the rows reports
        ):
            while data := content.read(CHUNK_BYTES):
                hasher.update(data)
    return hasher.hexdigest()[:12]


def _list_mechanisms(rows: Frame, details: Mapping[str, MechanismDetails]) -> dict[str, SiteMechanism]:
    """Return the mechanisms of the catalogue, then those that only occur in rows, such as other libraries'."""
    mechanisms = {e.name: SiteMechanism(e.name, e.family, e.sentence, details.get(e.name)) for e in catalogue()}
    variants = dict.fromkeys(zip(rows["variant"].tolist(), rows["family"].tolist(), strict=True))
    families = {name: str(family or "") for variant, family in variants for name in list_names(str(variant))}
    for name, family in sorted(families.items()):
        origin = "another library" if name.startswith(PEER_PREFIX) else "a plug-in or another version"
        mechanisms.setdefault(name, SiteMechanism(name, family, f"An implementation of {origin}."))
    return mechanisms
