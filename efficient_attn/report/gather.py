"""Runs from disk as one frame of rows and a list of the sessions that made them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from ..errors import UsageError
from ..results import frames, store
from ..results.exchange import name_cell
from ..results.overrides import list_overrides
from ..results.rows import Record, Row
from ..results.sanitize import clean, clean_all
from ..results.section import DamagedSection, Section
from ..results.shards import Damage, warn

# pandas' own annotations reject most of what it accepts, so that a frame and a column are anything to type checkers
Frame: TypeAlias = Any
FrameColumn: TypeAlias = Any
LearningCurve: TypeAlias = tuple[tuple[float, float], ...]
AlignmentWeights: TypeAlias = tuple[tuple[float, ...], ...]

FORMULA_START = re.compile(r"[=+\-@\t\r]")  # what a spreadsheet takes for a formula begins so
MOST_TOKENS = 64  # of an alignment: more would be no picture


@dataclass(frozen=True)
class ReportData:
    """Every row of the runs, in the order in which they were written, and what wrote them.

    loaded: the rows as `ea.load` gives them. rows: the same, each with a ``baseline`` (the suite's, where its part has
    none), then ``baseline_kv_heads`` (those of the case, where the baseline has several in a cell),
    ``mean_value_error`` (the error of predicting the mean of v, where it was measured), ``curve`` (pairs of a step
    and a score on validation, where a model was trained) and ``alignment`` (weights of a source's tokens, a line a
    written one, where a model was trained to write).
    sessions: run.json's, each with its ``run``. damaged: where the lines are that were left out. sections: what tasks
    brought; of one name the last.
    """

    loaded: Frame
    rows: Frame
    sessions: tuple[dict[str, Any], ...]
    damaged: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()

    @property
    def csv(self) -> str:
        return as_csv(self.loaded)

    @property
    def overrides(self) -> dict[str, tuple[str, ...]]:
        """The sessions that ran something else than their suite says, by their ``run_id``, with what was changed."""
        overrides_by_run = {str(session.get("run_id")): list_overrides(session) for session in self.sessions}
        return {run: overrides for run, overrides in overrides_by_run.items() if overrides}

    @property
    def cpus(self) -> dict[str, str]:
        """What each machine's processor is called, where its environment says so."""
        environments = (s.get("environment") or {} for s in self.sessions)
        return {str(e["machine"]): str(e["cpu"]) for e in environments if e.get("machine") and e.get("cpu")}


def as_csv(rows: Frame) -> str:
    """The rows as a table in which no cell is a formula to a spreadsheet: what would be one begins with a quote."""
    escaped = {
        name: rows[name].map(_escape_formula) for name in rows.columns if any(map(_is_formula, rows[name].unique()))
    }
    return rows.assign(**escaped).to_csv(index=False)


def _is_formula(value: Any) -> bool:
    return isinstance(value, str) and FORMULA_START.match(value) is not None


def _escape_formula(value: Any) -> Any:
    return f"'{value}" if _is_formula(value) else value


def gather(runs: Sequence[Path]) -> ReportData:
    """Read the runs (folders, or their ``rows.jsonl``). Raises `UsageError` for none, or for one that holds no run."""
    if not runs:
        raise UsageError("report: needs at least one run's folder")
    rows: list[Row] = []
    baselines: list[str | None] = []
    heads: list[int | None] = []
    means: list[float] = []
    curves: list[LearningCurve | None] = []
    alignments: list[AlignmentWeights | None] = []
    sessions: list[dict[str, Any]] = []
    sections: dict[str, Section] = {}
    damaged: list[str] = []

    def record_damage(damage: Damage) -> None:
        warn(damage)
        damaged.append(clean(f"{damage.path.parent.resolve().name}/{damage.path.name}:{damage.line}"))

    for path in _drop_repeated_runs(runs):
        folder = store.rows_path(path).parent
        folder_sessions = _read_sessions(folder)
        records = frames.read_records(path, damaged=record_damage)
        rows += [record.row for record in records]
        means += [_compute_mean(record.samples.get("mean_value_error")) for record in records]
        curves += [_read_curve(record.samples) for record in records]
        alignments += [_read_alignment(record.samples) for record in records]
        suite_baseline = frames.find_suites_baseline(folder)
        folder_baselines = [record.row.baseline or suite_baseline for record in records]
        baselines += folder_baselines
        heads += _find_baseline_heads(records, folder_baselines)
        sessions += folder_sessions
        sections |= {section.name: section for section in _read_sections(folder, folder_sessions)}
    loaded = frames.frame(rows)
    extra_columns = {
        "baseline": pd.array(baselines, dtype="string"),
        "baseline_kv_heads": pd.array(heads, dtype="Int64"),
        "mean_value_error": np.array(means, dtype=float),
        "curve": pd.Series(curves, index=loaded.index, dtype=object),
        "alignment": pd.Series(alignments, index=loaded.index, dtype=object),
    }
    return ReportData(loaded, loaded.assign(**extra_columns), tuple(sessions), tuple(damaged), tuple(sections.values()))


def _drop_repeated_runs(runs: Iterable[Path]) -> list[Path]:
    """Each run once: a run that is named twice must not count twice."""
    return list({store.rows_path(Path(run)).resolve(): Path(run) for run in runs}.values())


def _read_sessions(folder: Path) -> list[dict[str, Any]]:
    """What a folder says of its sessions. One that ended is described again at its end: the last word counts."""
    latest_by_run: dict[Any, dict[str, Any]] = {}
    for number, session in enumerate(store.read_about(folder)):
        latest_by_run[session.get("run_id") or number] = clean_all({**session, "run": folder.resolve().name})
    return list(latest_by_run.values())


def _read_sections(folder: Path, sessions: Iterable[dict[str, Any]]) -> Iterator[Section]:
    """The sections that the sessions' tasks brought. What is none is left out, with a warning: the rows are whole."""
    for session in sessions:
        entries = session.get("sections") or []
        for entry in entries if isinstance(entries, list) else [entries]:
            try:
                yield Section.from_json(entry)
            except ValueError as error:
                message = f"{folder / store.RUN}: not a section of a report: {error}; left out"
                warnings.warn(message, DamagedSection, stacklevel=2)


def _find_baseline_heads(records: Sequence[Record], baselines: Sequence[str | None]) -> list[int | None]:
    """For cells in which the baseline runs with several numbers of key-value heads: those of the case that others were
    paired with, or else the most, even if that case failed."""
    groups = [name_cell(record) for record in records]
    heads_by_group: dict[str, tuple[bool, int]] = {}
    for name, record, baseline in zip(groups, records, baselines, strict=True):
        row = record.row
        if row.variant == baseline and row.kv_heads is not None:
            heads_by_group[name] = max(
                heads_by_group.get(name, (False, 0)), (frames.is_baseline_record(row), row.kv_heads)
            )
    return [heads_by_group[name][1] if name in heads_by_group else None for name in groups]


def _compute_mean(value: Any) -> float:
    """The mean of a number or of nested lists of numbers (heads, batches); NaN for anything else."""
    try:
        return float(np.mean(np.asarray(value, dtype=float)))
    except (TypeError, ValueError):
        return float("nan")


def _read_curve(samples: Mapping[str, Any]) -> LearningCurve | None:
    """Pairs of a step and a score, as training keeps them; None for anything else."""
    try:
        pairs = zip(samples["steps"], samples["validation"], strict=True)
        points = tuple((float(step), float(score)) for step, score in pairs)
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(pair for pair in points if np.isfinite(pair).all()) or None


def _read_alignment(samples: Mapping[str, Any]) -> AlignmentWeights | None:
    """Lines of shares from 0 to 1, all as long; None for anything else."""
    try:
        weights = np.asarray(samples["alignment"], dtype=float)
    except (KeyError, TypeError, ValueError):
        return None
    if weights.ndim != 2 or not weights.size or max(weights.shape) > MOST_TOKENS or not np.isfinite(weights).all():
        return None
    return tuple(tuple(float(x) for x in row) for row in weights.clip(0.0, 1.0))
