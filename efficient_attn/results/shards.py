"""Files of a run's rows, one record a line: list them, and read records and damaged lines.

Published runs are compressed (``rows.jsonl.gz``): read in the same way, never written to.
"""

import gzip
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from .rows import MAX_LINE_BYTES, NewerSchemaError, Record

ROWS_FILE, COMPRESSED_SUFFIX = "rows.jsonl", ".gz"
ROWS_FILE_PATTERN = re.compile(r"(rows.*)\.jsonl(\.gz)?")


class DamagedRecord(UserWarning):
    """A line of a run's rows, or its run.json, is damaged, and was left out."""


@dataclass(frozen=True)
class Damage:
    """A line that is not a complete record."""

    path: Path
    line: int
    reason: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


def warn_of_damages(damages: Iterable[Damage]) -> None:
    """Warn about the skipped lines of each file: their number, and the first."""
    for text, path in describe_damages(damages):
        remedy = "" if path.suffix == COMPRESSED_SUFFIX else " (`--resume` measures it again)"
        warnings.warn(f"{text}; left out{remedy}", DamagedRecord, stacklevel=3)


def describe_damages(damages: Iterable[Damage]) -> list[tuple[str, Path]]:
    """The damage of each file in one line: the first, and the number of others."""
    by_path: dict[Path, list[Damage]] = {}
    for damage in damages:
        by_path.setdefault(damage.path, []).append(damage)
    counts = {path: len(of_path) - 1 for path, of_path in by_path.items()}
    others = {path: f", and {n} other line{'s' if n > 1 else ''}" if n else "" for path, n in counts.items()}
    return [(f"{of_path[0]}{others[path]}", path) for path, of_path in by_path.items()]


def list_shards(run: Path) -> list[Path]:
    """A run's row files by name, ``rows.jsonl`` first; records in later files are later. ``run`` may be one file."""
    if is_shard(run) and run.is_file():
        return [run]
    matches = ((ROWS_FILE_PATTERN.fullmatch(path.name), path) for path in run.glob("rows*"))
    numbered = [(match[1], not match[2], path) for match, path in matches if match and path.is_file()]
    return [path for *_, path in sorted(numbered)]


def list_run_folders(folder: Path) -> list[Path]:
    """The runs' folders in a folder, by name, without links."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink() and list_shards(path))


def is_shard(path: Path) -> bool:
    """Whether a path names a file of rows, not a folder."""
    return path.name.removesuffix(COMPRESSED_SUFFIX).endswith(".jsonl")


def scan_lines(path: Path) -> Iterator[tuple[bytes, Record | Damage]]:
    """Each line as a record or as damage, long ones in pieces. Raises `UsageError` for records of a newer version."""
    number, data = 0, b"\n"
    try:
        with gzip.open(path) if path.suffix == COMPRESSED_SUFFIX else path.open("rb") as lines:
            while True:
                number += data.endswith(b"\n")
                data = lines.readline(MAX_LINE_BYTES)
                if not data:
                    return
                yield data, _read_line(path, number, data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield b"", Damage(path, number, f"cannot be unpacked from here on: {error}", b"")


def _read_line(path: Path, number: int, data: bytes) -> Record | Damage:
    if not data.endswith(b"\n"):
        is_long = len(data) == MAX_LINE_BYTES
        return Damage(path, number, f"more than {MAX_LINE_BYTES} bytes" if is_long else "cut off: no end of line", data)
    try:
        return Record.from_line(data.decode())
    except NewerSchemaError as error:
        raise UsageError(f"{path}:{number}: {error}") from error
    except UnicodeDecodeError:
        return Damage(path, number, "not a complete record: no UTF-8", data)
    except ValueError as error:
        return Damage(path, number, str(error), data)


def strip_digest(case_key: str) -> str:
    """The key of a case without its digest, which depends on sources."""
    stem, mark, digest = case_key.rpartition("#")  # the name of a part may contain "#" too
    return stem if mark and "/" not in digest else case_key
