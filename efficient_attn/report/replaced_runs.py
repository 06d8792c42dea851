"""Which published runs are replaced by newer ones of their kind.

A run is replaced by a later one of the same suite, overrides, allocator settings and processor that tried each of its
mechanisms with a result, in each of its parts, and has at least as many results. A run of an earlier protocol is also
replaced by one of the present protocol on any processor; if the run has no overrides, the later one may have some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..results.overrides import gather_overrides
from ..results.store import describe_older_protocol
from .gather import Frame, ReportData

CASE_COLUMNS = ("part", "task", "variant", "mode", "causal")  # without sizes, which a suite may have changed


@dataclass(frozen=True)
class PublishedRun:
    """What decides whether a run replaces another. started: of its last session, as ISO 8601. results: number of rows
    with a result. measured: the cases with a result, without sizes. tried: those with any outcome. older_protocol: its
    description, empty for a present one."""

    name: str
    suite: str
    allocator: str
    overrides: frozenset[str]
    processors: frozenset[str]
    older_protocol: str
    started: str
    results: int
    measured: frozenset[tuple[str, ...]]
    tried: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, name: str, run: ReportData) -> PublishedRun:
        """Read it from a run's rows and sessions."""
        last_session: Mapping[str, Any] = run.sessions[-1]
        rows = run.loaded[run.loaded["status"] != "interrupted"]
        ok = rows[rows["status"] == "ok"]
        return cls(
            name=name,
            suite=str((last_session.get("suite") or {}).get("name") or ""),
            allocator=str((last_session.get("allocator") or {}).get("left alone", "")),
            overrides=frozenset(gather_overrides(run.sessions)),
            processors=frozenset(str(machine).partition("#")[0] for machine in rows["machine"].dropna()),
            older_protocol=describe_older_protocol(*run.sessions),
            started=str(last_session.get("started") or ""),
            results=len(ok),
            measured=_list_cases(ok),
            tried=_list_cases(rows),
        )

    def replaces(self, older: PublishedRun) -> bool:
        """Whether this run replaces another."""
        if self.older_protocol and not older.older_protocol:
            return False
        outdated = bool(older.older_protocol) and not self.older_protocol
        same_kind = (self.suite, self.allocator) == (older.suite, older.allocator) and self.suite != ""
        same_kind &= self.overrides == older.overrides or (outdated and not older.overrides)
        measured_again = older.measured <= self.tried and older.results <= self.results
        same_processor = older.processors <= self.processors
        return same_kind and measured_again and (outdated or same_processor) and self.started > older.started


def find_replaced(runs: Iterable[PublishedRun]) -> dict[str, tuple[str, ...]]:
    """The runs that replace each replaced run, latest first, by its name."""
    by_start = sorted(runs, key=lambda run: run.started, reverse=True)
    replacing = {older.name: tuple(run.name for run in by_start if run.replaces(older)) for older in by_start}
    return {name: names for name, names in replacing.items() if names}


def _list_cases(rows: Frame) -> frozenset[tuple[str, ...]]:
    return frozenset(zip(*(rows[column].astype(str) for column in CASE_COLUMNS), strict=True))
