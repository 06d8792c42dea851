"""What a site tells of: runs, all their rows, and what follows from them, read once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...registry import catalogue
from ...results.shards import list_shards, scan
from ...spec import names_in
from ...variants import FAMILIES, Entry
from .. import approximation_errors, select
from ..answers.cost_curves import CostCurve, split_by_config
from ..answers.decision_table import DecisionTable, make_decision_tables
from ..claims.evidence import Evidence, read_evidence
from ..claims.ledger import load_ledger
from ..claims.verdicts import LedgerVerdicts, evaluate_claims
from ..gather import Frame, ReportData, gather
from .group_results import GroupResult, list_groups
from .page_names import make_name
from .pattern_svg import PatternDrawing

PEER_PREFIX = "peer_"  # how other libraries' mechanisms are called


@dataclass(frozen=True)
class MechanismDetails:
    """What a mechanism says of itself once it is made: options with their defaults, growth, what it can do.

    limits: what it does not promise. opening: its docstring's first paragraph. squares: its pattern, if it has one.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    time: str = ""
    memory: str = ""
    features: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    summary: str = ""
    patterns: tuple[PatternDrawing, ...] = ()


@dataclass(frozen=True)
class SiteRun:
    """A run's folder. digest: of its rows as they were written, so that a run keeps it wherever it lies."""

    name: str
    digest: str
    gathered: ReportData

    @property
    def link(self) -> str:
        return f"r/{self.digest}/index.html"

    @property
    def last_session(self) -> Mapping[str, Any]:
        """The last session; empty where nothing is known."""
        return self.gathered.sessions[-1] if self.gathered.sessions else {}

    def read(self, table: str, name: str) -> str:
        """What its last session says, of its suite or its environment; empty where it does not."""
        section = self.last_session.get(table)
        return str(section.get(name) or "") if isinstance(section, Mapping) else ""

    @property
    def suite(self) -> str:
        return self.read("suite", "name") or "unknown"

    @property
    def title(self) -> str:
        return self.read("suite", "title")

    @property
    def commit(self) -> str:
        git = (self.last_session.get("environment") or {}).get("git") or {}
        return str(git.get("revision") or "")[:7]

    @property
    def day(self) -> str:
        return str(self.last_session.get("started") or "")[:10]

    @cached_property
    def machines(self) -> tuple[str, ...]:
        return tuple(sorted(map(str, self.gathered.rows["machine"].dropna().unique())))

    @property
    def counts(self) -> tuple[int, int]:
        """Cases that gave a result, and all."""
        return int((self.gathered.rows["status"] == "ok").sum()), len(self.gathered.rows)


@dataclass(frozen=True)
class SiteMechanism:
    """A mechanism by its name: of the catalogue, or one that only rows know. details: None where it was not made."""

    name: str
    family: str
    sentence: str
    details: MechanismDetails | None = None

    @property
    def is_listed(self) -> bool:
        """Whether its family's card names it: all but other libraries' and those of no family."""
        return self.family in FAMILIES and not self.name.startswith(PEER_PREFIX)

    @property
    def link(self) -> str:
        return f"m/{make_name(self.name)}.html"


@dataclass(frozen=True)
class SiteData:
    """All that pages are made from. rows: of all runs, with labels and losses."""

    runs: tuple[SiteRun, ...]
    gathered: ReportData
    rows: Frame
    decision_tables: tuple[DecisionTable, ...]
    groups: tuple[GroupResult, ...]
    verdicts: LedgerVerdicts
    mechanisms: Mapping[str, SiteMechanism]

    @cached_property
    def run_by_session(self) -> Mapping[str, SiteRun]:
        """The run in which each session's rows are."""
        return {str(session): run for run in self.runs for session in run.gathered.rows["run_id"].dropna().unique()}

    @cached_property
    def curves_by_config(self) -> list[tuple[dict[str, Any], list[CostCurve]]]:
        """All places at which something was timed, with their mechanisms' times over lengths."""
        return split_by_config(self.rows)

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        return tuple(sorted(map(str, self.rows["task"].dropna().unique())))


def read_site_data(paths: Sequence[Path], details: Mapping[str, MechanismDetails]) -> SiteData:
    """Raises `UsageError` for none, for a folder without a run, and for rows of a newer version."""
    runs: dict[str, SiteRun] = {}
    unique_paths: list[Path] = []
    for path in paths:
        run = SiteRun(path.resolve().name, _digest_rows(path), gather([path]))
        if run.digest not in runs:
            runs[run.digest] = run
            unique_paths.append(path)
    gathered = gather(unique_paths)
    rows = approximation_errors.add_errors(select.add_labels(gathered.rows))
    evidence = read_evidence(unique_paths)
    return SiteData(
        runs=tuple(runs.values()),
        gathered=gathered,
        rows=rows,
        decision_tables=tuple(make_decision_tables(rows)),
        groups=tuple(list_groups(evidence.rows, rows, gathered.cpus)),
        verdicts=_evaluate_claims(evidence),
        mechanisms=list_mechanisms(catalogue(), rows, details),
    )


def _evaluate_claims(evidence: Evidence) -> LedgerVerdicts:
    return evaluate_claims(load_ledger(), evidence)


def _digest_rows(path: Path) -> str:
    """The same for a run that was packed since: of its lines, not of its files."""
    hasher = hashlib.sha256()
    files = list_shards(path)
    if not files:
        raise UsageError(f"{path}: holds no run; name a run's folder")
    for file in files:
        for data, _ in scan(file):
            hasher.update(data)
    return hasher.hexdigest()[:12]


def list_mechanisms(
    entries: Iterable[Entry], rows: Frame, details: Mapping[str, MechanismDetails]
) -> dict[str, SiteMechanism]:
    """Those of the catalogue, then those that only rows name, such as other libraries'."""
    listed = {e.name: SiteMechanism(e.name, e.family, e.sentence, details.get(e.name)) for e in entries}
    variants = zip(rows["variant"].tolist(), rows["family"].tolist(), strict=True)
    families = {
        name: str(family or "") for variant, family in dict.fromkeys(variants) for name in names_in(str(variant))
    }
    unlisted = {
        name: SiteMechanism(name, family, _describe_unlisted(name)) for name, family in sorted(families.items())
    }
    return listed | {name: mechanism for name, mechanism in unlisted.items() if name not in listed}


def _describe_unlisted(name: str) -> str:
    return "From another library." if name.startswith(PEER_PREFIX) else "From a plug-in or another version."
