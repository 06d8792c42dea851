"""Load runs from disk as one frame of rows and a list of sessions."""

import math
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
from ..results.exchange import name_group
from ..results.overrides import gather_overrides
from ..results.rows import Record, Row
from ..results.sanitize import sanitize_json, sanitize_line
from ..results.section import DamagedSection, Section
from ..results.shards import Damage, warn_of_damages

# pandas' annotations reject much of what it accepts, hence Any
Frame: TypeAlias = Any
FrameColumn: TypeAlias = Any
LearningCurve: TypeAlias = tuple[tuple[float, float], ...]
AlignmentWeights: TypeAlias = tuple[tuple[float, ...], ...]

FORMULA_START = re.compile(r"[=+\-@\t\r]")  # spreadsheets evaluate cells that start like this
# the columns that `gather` adds to those of rows
ADDED_DTYPES = {"baseline": "string", "baseline_kv_heads": "Int64", "mean_value_error": "float64"}
ADDED_DTYPES |= {"curve": "object", "alignment": "object"}
SAMPLES_READ = frozenset({"steps", "validation", "alignment", "mean_value_error"})
MOST_TOKENS = 64  # larger alignments are not plotted


@dataclass(frozen=True)
class ReportData:
    """All rows of the runs in the order of writing, with their sessions.

    loaded: the rows as returned by `ea.load`. rows: the same with the columns ``baseline`` (of the suite, if its part
    has none), ``baseline_kv_heads`` (of the case, if the baseline has several in a group), ``mean_value_error`` (error
    of predicting the mean of v, if measured), ``curve`` (pairs of step and validation score, if trained) and
    ``alignment`` (target tokens, source tokens: weights, if trained to write).
    sessions: those of run.json, each with its ``run``. damaged: locations of omitted lines. sections: those of the
    tasks; the last of each name.
    """

    loaded: Frame
    rows: Frame
    sessions: tuple[dict[str, Any], ...]
    damaged: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()

    @property
    def run_notes(self) -> dict[str, str]:
        """Notes on the rows of sessions with overrides or of an earlier protocol, by ``run_id``."""
        notes = {}
        for session in self.sessions:
            overridden = "with overrides" if gather_overrides([session]) else ""
            notes[str(session.get("run_id"))] = overridden, store.describe_older_protocol(session)
        return {run: ", ".join(filter(None, texts)) for run, texts in notes.items() if any(texts)}

    @property
    def cpus(self) -> dict[str, str]:
        """Processor name of each machine, if known."""
        environments = (s.get("environment") or {} for s in self.sessions)
        return {str(e["machine"]): str(e["cpu"]) for e in environments if e.get("machine") and e.get("cpu")}


def join_notes(notes: Mapping[str, str], run_ids: Iterable[str]) -> str:
    """The notes on these sessions, each once."""
    return ", ".join(dict.fromkeys(notes[run] for run in dict.fromkeys(run_ids) if run in notes))


def as_csv(rows: Frame) -> str:
    """The rows as CSV. Cells that a spreadsheet would evaluate as formulas are prefixed with a quote."""
    escaped = {
        name: rows[name].map(_escape_formula) for name in rows.columns if any(map(_is_formula, rows[name].unique()))
    }
    return rows.assign(**escaped).to_csv(index=False)


def _is_formula(value: Any) -> bool:
    return isinstance(value, str) and FORMULA_START.match(value) is not None


def _escape_formula(value: Any) -> Any:
    return f"'{value}" if _is_formula(value) else value


def gather(runs: Sequence[Path]) -> ReportData:
    """Read the runs (folders, or their ``rows.jsonl``). Raises `UsageError` for none, or a folder without one."""
    if not runs:
        raise UsageError("report: needs at least one run's folder")
    rows: list[Row] = []
    added_values: list[tuple[Any, ...]] = []
    sessions: list[dict[str, Any]] = []
    sections: dict[str, Section] = {}
    damages: list[Damage] = []
    for path in {store.find_rows_path(Path(run)).resolve(): Path(run) for run in runs}.values():
        folder = store.find_rows_path(path).parent
        folder_sessions = _read_sessions(folder)
        records = frames.read_records(path, on_damage=damages.append)
        rows += [record.row for record in records]
        suite_baseline = frames.find_suite_baseline(folder)
        baselines = [record.row.baseline or suite_baseline for record in records]
        kv_heads = _find_baseline_heads(records, baselines)
        for record, baseline, heads in zip(records, baselines, kv_heads, strict=True):
            added_values.append((baseline, heads, *_read_samples(record.samples)))
        sessions += folder_sessions
        sections |= {section.name: section for section in _read_sections(folder, folder_sessions)}
    warn_of_damages(damages)
    places = (f"{damage.path.parent.resolve().name}/{damage.path.name}:{damage.line}" for damage in damages)
    loaded = frames.make_frame(rows)
    added = pd.DataFrame(added_values, columns=list(ADDED_DTYPES), index=loaded.index).astype(ADDED_DTYPES)
    all_rows = loaded.assign(**{name: added[name] for name in ADDED_DTYPES})
    return ReportData(loaded, all_rows, tuple(sessions), tuple(map(sanitize_line, places)), tuple(sections.values()))


def _read_sessions(folder: Path) -> list[dict[str, Any]]:
    """Sessions of a folder. A finished session is written again at its end; the last version is used."""
    latest_by_run: dict[Any, dict[str, Any]] = {}
    for number, session in enumerate(store.read_sessions(folder)):
        latest_by_run[session.get("run_id") or number] = sanitize_json({**session, "run": folder.resolve().name})
    return list(latest_by_run.values())


def _read_sections(folder: Path, sessions: Iterable[dict[str, Any]]) -> Iterator[Section]:
    """Sections of the sessions' tasks. Invalid ones are omitted with a warning, as the rows are intact."""
    for session in sessions:
        entries = session.get("sections") or []
        for entry in entries if isinstance(entries, list) else [entries]:
            try:
                yield Section.from_json(entry)
            except ValueError as error:
                message = f"{folder / store.RUN_FILE}: not a section of a report: {error}; left out"
                warnings.warn(message, DamagedSection, stacklevel=2)


def _find_baseline_heads(records: Sequence[Record], baselines: Sequence[str | None]) -> list[int | None]:
    """Key-value heads of the baseline in each record's group. If it runs with several: those of the case that others
    are paired with, else the most, even if that case failed."""
    groups = [name_group(record) for record in records]
    heads_by_group: dict[str, tuple[bool, int]] = {}
    for name, record, baseline in zip(groups, records, baselines, strict=True):
        row = record.row
        if row.variant == baseline and row.kv_heads is not None:
            heads_by_group[name] = max(heads_by_group.get(name, (False, 0)), (row.is_baseline, row.kv_heads))
    return [heads_by_group[name][1] if name in heads_by_group else None for name in groups]


def _read_samples(samples: Mapping[str, Any]) -> tuple[float, LearningCurve | None, AlignmentWeights | None]:
    """The mean of the values as an approximation, its error, the learning curve, and the alignment."""
    if SAMPLES_READ.isdisjoint(samples):  # as nearly always
        return math.nan, None, None
    curve = _read_curve(_read_array(samples, "steps", "validation"))
    alignment = _read_alignment(_read_array(samples, "alignment"))
    return float(_read_array(samples, "mean_value_error").mean()), curve, alignment


def _read_array(samples: Mapping[str, Any], *names: str) -> np.ndarray:
    """The samples of these names as an array with a row for each; a single NaN if they are missing or invalid."""
    try:
        return np.asarray([samples[name] for name in names], dtype=float)
    except (KeyError, TypeError, ValueError):
        return np.array(np.nan)


def _read_curve(points: np.ndarray) -> LearningCurve | None:
    if points.ndim != 2:
        return None
    finite = points[:, np.isfinite(points).all(axis=0)]
    return tuple(zip(*finite.tolist(), strict=True)) or None


def _read_alignment(weights: np.ndarray) -> AlignmentWeights | None:
    if weights.ndim != 3 or not weights.size or max(weights.shape) > MOST_TOKENS or not np.isfinite(weights).all():
        return None
    return tuple(map(tuple, weights[0].clip(0.0, 1.0).tolist()))
