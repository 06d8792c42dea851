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
from ...results.shards import scan, shards
from ...spec import names_in
from ...variants import FAMILIES, Entry
from .. import losses, select
from ..answers.decisions import Board, make_decisions
from ..answers.timing import Curve, split_places
from ..claims.evidence import Evidence, read_evidence
from ..claims.judging import Judgement, judge
from ..claims.ledger import load_ledger
from ..gather import Frame, Gathered, gather
from .cells import Cell, list_cells
from .naming import digest, make_name
from .shapes import Square

PEER = "peer_"  # how other libraries' mechanisms are called


@dataclass(frozen=True)
class Details:
    """What a mechanism says of itself once it is made: options with their defaults, growth, what it can do.

    limits: what it does not promise. opening: its docstring's first paragraph. squares: its pattern, if it has one.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    time: str = ""
    memory: str = ""
    can: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    opening: str = ""
    squares: tuple[Square, ...] = ()


@dataclass(frozen=True)
class Run:
    """A run's folder. digest: of its rows as they were written, so that a run keeps it wherever it lies."""

    name: str
    digest: str
    found: Gathered

    @property
    def link(self) -> str:
        return f"r/{self.digest}/index.html"

    @property
    def last(self) -> Mapping[str, Any]:
        """The last session; empty where nothing is known."""
        return self.found.sessions[-1] if self.found.sessions else {}

    def read(self, table: str, name: str) -> str:
        """What its last session says, of its suite or its environment; empty where it does not."""
        said = self.last.get(table)
        return str(said.get(name) or "") if isinstance(said, Mapping) else ""

    @property
    def suite(self) -> str:
        return self.read("suite", "name") or "not known"

    @property
    def title(self) -> str:
        return self.read("suite", "title")

    @property
    def commit(self) -> str:
        git = (self.last.get("environment") or {}).get("git") or {}
        return str(git.get("revision") or "")[:7]

    @property
    def day(self) -> str:
        return str(self.last.get("started") or "")[:10]

    @cached_property
    def machines(self) -> tuple[str, ...]:
        return tuple(sorted(map(str, self.found.rows["machine"].dropna().unique())))

    @property
    def counts(self) -> tuple[int, int]:
        """Cases that gave a result, and all."""
        return int((self.found.rows["status"] == "ok").sum()), len(self.found.rows)


@dataclass(frozen=True)
class Mechanism:
    """A mechanism by its name: of the catalogue, or one that only rows know. details: None where it was not made."""

    name: str
    family: str
    sentence: str
    details: Details | None = None

    @property
    def is_listed(self) -> bool:
        """Whether its family's card names it: all but other libraries' and those of no family."""
        return self.family in FAMILIES and not self.name.startswith(PEER)

    @property
    def link(self) -> str:
        return f"m/{make_name(self.name)}.html"


@dataclass(frozen=True)
class Material:
    """All that pages are made from. rows: of all runs, with labels and losses."""

    runs: tuple[Run, ...]
    found: Gathered
    rows: Frame
    boards: tuple[Board, ...]
    cells: tuple[Cell, ...]
    judgement: Judgement
    mechanisms: Mapping[str, Mechanism]

    @cached_property
    def run_of(self) -> Mapping[str, Run]:
        """The run in which each session's rows are."""
        return {str(each): run for run in self.runs for each in run.found.rows["run_id"].dropna().unique()}

    @cached_property
    def places(self) -> list[tuple[dict[str, Any], list[Curve]]]:
        """All places at which something was timed, with their mechanisms' times over lengths."""
        return split_places(self.rows)

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        return tuple(sorted(map(str, self.rows["task"].dropna().unique())))


def read_material(paths: Sequence[Path], details: Mapping[str, Details]) -> Material:
    """Raises `UsageError` for none, for a folder without a run, and for rows of a newer version."""
    runs: dict[str, Run] = {}
    kept: list[Path] = []
    for path in paths:
        run = Run(path.resolve().name, _digest_rows(path), gather([path]))
        if run.digest not in runs:
            runs[run.digest] = run
            kept.append(path)
    found = gather(kept)
    rows = losses.add_losses(select.add_labels(found.rows))
    evidence = read_evidence(kept)
    return Material(
        runs=tuple(runs.values()),
        found=found,
        rows=rows,
        boards=tuple(make_decisions(rows)),
        cells=tuple(list_cells(evidence.seen, rows, found.cpus)),
        judgement=_judge(evidence),
        mechanisms=list_mechanisms(catalogue(), rows, details),
    )


def _judge(evidence: Evidence) -> Judgement:
    return judge(load_ledger(), evidence)


def _digest_rows(path: Path) -> str:
    """The same for a run that was packed since: of its lines, not of its files."""
    made = hashlib.sha256()
    files = shards(path)
    if not files:
        raise UsageError(f"{path}: holds no run; name a run's folder")
    for file in files:
        for data, _ in scan(file):
            made.update(data)
    return made.hexdigest()[:12]


def list_mechanisms(entries: Iterable[Entry], rows: Frame, details: Mapping[str, Details]) -> dict[str, Mechanism]:
    """Those of the catalogue, then those that only rows name, such as other libraries'."""
    known = {e.name: Mechanism(e.name, e.family, e.sentence, details.get(e.name)) for e in entries}
    seen = zip(rows["variant"].tolist(), rows["family"].tolist(), strict=True)
    families = {name: str(family or "") for variant, family in dict.fromkeys(seen) for name in names_in(str(variant))}
    more = {name: Mechanism(name, family, _tell_unknown(name)) for name, family in sorted(families.items())}
    return known | {name: one for name, one in more.items() if name not in known}


def _tell_unknown(name: str) -> str:
    return "Of another library." if name.startswith(PEER) else "Of a plug-in, or of another version."


def digest_of(text: str) -> str:
    """A short name of a text, for ids in pages."""
    return digest(text.encode())[:8]
