"""Load runs from disk as one frame of rows and a list of sessions."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import UsageError
from ..results import store
from ..results.gathered import ADDED_DTYPES, gather_rows
from ..results.overrides import gather_overrides
from ..results.sanitize import sanitize_json, sanitize_line
from ..results.section import DamagedSection, Section
from ..results.shards import warn_of_damages

# pandas' annotations reject much of what it accepts, hence Any
Frame: TypeAlias = Any
FrameColumn: TypeAlias = Any
FORMULA_START = re.compile(r"[=+\-@\t\r]")  # spreadsheets evaluate cells that start like this


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
    sessions: list[dict[str, Any]] = []
    sections: dict[str, Section] = {}
    paths = list({store.find_rows_path(Path(run)).resolve(): Path(run) for run in runs}.values())
    for path in paths:
        folder = store.find_rows_path(path).parent
        folder_sessions = _read_sessions(folder)
        sessions += folder_sessions
        sections |= {section.name: section for section in _read_sections(folder, folder_sessions)}
    gathered, damages = gather_rows(paths)
    warn_of_damages(damages)
    places = (f"{damage.path.parent.resolve().name}/{damage.path.name}:{damage.line}" for damage in damages)
    loaded, added = gathered
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
