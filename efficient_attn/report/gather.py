"""Runs from disk as one frame of rows and a list of the sessions that made them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from ..errors import UsageError
from ..results import frames, store
from ..results.rows import Row
from ..results.shards import Damage, warn

# pandas' own annotations reject most of what it accepts, so that a frame and a column are anything to type checkers
Frame: TypeAlias = Any
Column: TypeAlias = Any


@dataclass(frozen=True)
class Gathered:
    """Every row of the runs, in the order in which they were written, and what wrote them.

    rows: the columns of `Row`, then ``baseline`` (what speedups are against: its part's, else the suite's) and
    ``mean_value_error`` (the error of predicting the mean of v, where it was measured). sessions: run.json's, each with
    its ``run``.
    damaged: where the lines are that were left out.
    """

    rows: Frame
    sessions: tuple[dict[str, Any], ...]
    damaged: tuple[str, ...] = ()

    @property
    def csv(self) -> str:
        """The rows as they are loaded, without what was added here."""
        return self.rows[list(frames.DTYPES)].to_csv(index=False)

    @property
    def cpus(self) -> dict[str, str]:
        """What each machine's processor is called, where its environment says so."""
        found = (s.get("environment") or {} for s in self.sessions)
        return {str(e["machine"]): str(e["cpu"]) for e in found if e.get("machine") and e.get("cpu")}


def gather(runs: Sequence[Path]) -> Gathered:
    """Read the runs (folders, or their ``rows.jsonl``). Raises `UsageError` for none, or for one that holds no run."""
    if not runs:
        raise UsageError("report: needs at least one run's folder")
    rows: list[Row] = []
    baselines: list[str | None] = []
    means: list[float] = []
    sessions: list[dict[str, Any]] = []
    damaged: list[str] = []

    def leave_out(damage: Damage) -> None:
        warn(damage)
        damaged.append(f"{damage.path.parent.resolve().name}/{damage.path.name}:{damage.line}")

    for path in _distinct(runs):
        folder = store.rows_path(path).parent
        described = _sessions(folder)
        first = len(rows)
        for record in store.read(path, damaged=leave_out):
            rows.append(record.row)
            means.append(_mean(record.samples.get("mean_value_error")))
        baseline, own = _baseline(described), _baselines_of_parts(rows[first:])
        baselines += [own.get(_part(row), baseline) for row in rows[first:]]
        sessions += described
    added = pd.DataFrame({"baseline": pd.array(baselines, dtype="string"), "mean_value_error": means})
    added = added.astype({"mean_value_error": "float64"})
    return Gathered(pd.concat([frames.frame(rows), added], axis=1), tuple(sessions), tuple(damaged))


def _distinct(runs: Iterable[Path]) -> list[Path]:
    """Each run once: a run that is named twice must not count twice."""
    return list({store.rows_path(Path(run)).resolve(): Path(run) for run in runs}.values())


def _sessions(folder: Path) -> list[dict[str, Any]]:
    """What a folder says of its sessions. One that ended is described again at its end: the last word counts."""
    last: dict[Any, dict[str, Any]] = {}
    for number, session in enumerate(store.about(folder)):
        last[session.get("run_id") or number] = {**session, "run": folder.resolve().name}
    return list(last.values())


def _baseline(sessions: Iterable[dict[str, Any]]) -> str | None:
    named = [(session.get("suite") or {}).get("baseline") for session in sessions]
    return next((str(name) for name in named if name), None)


def _baselines_of_parts(rows: Iterable[Row]) -> dict[str, str]:
    """For suites whose parts have baselines of their own: in each part, the variant that was paired with itself."""
    ones = (row for row in rows if (row.speedup, row.speedup_low, row.speedup_high) == (1, 1, 1))
    return {_part(row): row.variant for row in ones}


def _part(row: Row) -> str:
    """The part of its suite that a row comes from, as its key has it."""
    return "/".join((row.case_key or "").split("/")[:2])


def _mean(value: Any) -> float:
    """The mean of a number or of nested lists of numbers (heads, batches); NaN for anything else."""
    try:
        return float(np.mean(np.asarray(value, dtype=float)))
    except (TypeError, ValueError):
        return float("nan")
