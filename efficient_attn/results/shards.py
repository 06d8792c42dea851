"""A run's rows on disk: files of a record a line, read line by line, damaged lines kept apart from the rest."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from .rows import NewerSchemaError, Record

ROWS, PATTERN = "rows.jsonl", "rows*.jsonl"


class DamagedRecord(UserWarning):
    """A line of a run's rows that cannot be read, or not trusted, and was left out."""


@dataclass(frozen=True)
class Damage:
    """A line that is no whole record. torn: the file ends in the middle of it, as a killed process leaves it."""

    path: Path
    line: int
    why: str
    data: bytes

    @property
    def torn(self) -> bool:
        return not self.data.endswith(b"\n")

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.why}"


def warn(damage: Damage) -> None:
    """Tell a reader what was left out."""
    warnings.warn(f"{damage}; left out (`--resume` measures it again)", DamagedRecord, stacklevel=3)


def shards(run: Path) -> list[Path]:
    """A run's files of rows by name, ``rows.jsonl`` first: what a later one holds is later. ``run`` may be one file."""
    if run.suffix == ".jsonl" and run.is_file():
        return [run]
    return sorted((path for path in run.glob(PATTERN) if path.is_file()), key=lambda path: path.stem)


def scan(path: Path) -> Iterator[tuple[bytes, Record | Damage]]:
    """Each line as it stands, with the record or the damage that it is. `UsageError` for a newer version's."""
    with path.open("rb") as lines:
        for number, data in enumerate(lines, 1):
            if not data.endswith(b"\n"):
                yield data, Damage(path, number, "cut off: no end of line", data)
                continue
            try:
                yield data, Record.from_line(data.decode())
            except NewerSchemaError as error:
                raise UsageError(f"{path}:{number}: {error}") from error
            except UnicodeDecodeError:
                yield data, Damage(path, number, "not a complete record: no UTF-8", data)
            except ValueError as error:
                yield data, Damage(path, number, str(error), data)


def stem(case_key: str) -> str:
    """What a case is called whatever its sources were: the key without its digest."""
    return case_key.partition("#")[0]
