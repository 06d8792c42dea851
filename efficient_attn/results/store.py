"""A run's folder: rows as JSON lines, written so that what was written stays, and the environment beside them.

``run.json`` says what ran, where and how; ``rows.jsonl`` holds a record a line. Nothing is ever overwritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import UsageError
from .rows import Record

ROWS, RUN = "rows.jsonl", "run.json"


class Writer:
    """The one writer of a run's folder. Each record is one write and one fsync."""

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        """Open a folder that is new or empty, or with ``resume`` one that holds a run already."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            holds = sorted(p.name for p in folder.iterdir())
            if holds and not resume:
                raise UsageError(f"{folder}: not empty (holds {holds[0]}); choose another --out, or add --resume")
            if holds and ROWS not in holds:
                raise UsageError(f"{folder}: holds no run to resume (no {ROWS}); choose another --out")
            self.folder = folder
            self.done = {r.row.case_key: r.row.status for r in read(folder)} if holds else {}
            self._file = os.open(folder / ROWS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be written: {error.strerror or error}; choose another --out") from error

    def write(self, record: Record) -> None:
        line = record.to_line().encode()
        written = os.write(self._file, line)
        if written < len(line):  # the next write says why: a full disk, say
            os.write(self._file, line[written:])
        os.fsync(self._file)
        self.done[record.row.case_key] = record.row.status

    def describe(self, session: dict[str, Any]) -> None:
        """Keep what ran and where: beside those of earlier sessions, in place of this one's."""
        path = self.folder / RUN
        earlier = [s for s in about(self.folder) if s.get("run_id") != session.get("run_id")]
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"sessions": [*earlier, session]}, indent=2, allow_nan=False) + "\n")
        temporary.replace(path)

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(folder: Path) -> Iterator[Record]:
    """The records of a run, in the order in which they were written."""
    path = rows_path(folder)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield Record.from_line(line.decode())
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(f"{path}:{number}: {error}") from error


def about(folder: Path) -> list[dict[str, Any]]:
    """The descriptions of the sessions that wrote a run: suite, command line, environment, machine."""
    path = folder / RUN
    if not path.is_file():
        return []
    try:
        return json.loads(path.read_text(encoding="utf-8"))["sessions"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: damaged: {error}") from error


def rows_path(folder: Path) -> Path:
    """Where a run's rows are; `UsageError` when the folder holds none."""
    path = folder if folder.suffix == ".jsonl" else folder / ROWS
    if not path.is_file():
        raise UsageError(f"{folder}: no run here (no {ROWS})")
    return path
