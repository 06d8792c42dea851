"""Files that cases read: digests of data, and copies of plug-ins and small data for another machine."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from .case import Case
from .sources import PACKAGE, trace

DIGESTED_BYTES = 2**16  # at either end of a file
MOST_CARRIED_BYTES = 64 * 2**20  # of all files together
DATA_KEYS = ("activations", "data", "model", "text")  # keys of tasks, whose values may be files or folders


def digest_files(folder: str) -> str:
    """A digest of a folder's files, or of one file: their names, sizes, and first and last bytes, as they may have
    gigabytes. Raises `UsageError` for a file that cannot be read."""
    digest = hashlib.sha256()
    for path in _list_files(Path(folder)):
        try:
            with path.open("rb") as file:
                ends, size = [file.read(DIGESTED_BYTES)], path.stat().st_size
                file.seek(max(size - DIGESTED_BYTES, 0))
                ends.append(file.read(DIGESTED_BYTES))
        except OSError as error:
            raise UsageError(f"data: {path}: {error.strerror}") from error
        digest.update(f"{path.relative_to(folder)}\0{size}\0".encode(errors="surrogateescape") + b"\0".join(ends))
    return digest.hexdigest()[:12]


def _list_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


@dataclass(frozen=True)
class CarriedFiles:
    """Files that a run needs on another machine. contents: of those that are sent, by their path relative to the
    current folder there. plugins: what is imported there, in order. data: digests of all data by the path that cases
    name."""

    contents: Mapping[str, bytes] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def collect(cls, plugins: Iterable[str], cases: Iterable[Case]) -> CarriedFiles:
        """Plug-ins with what they import from their folder, and data under relative paths, as far as it is small.
        Larger data, and data under absolute paths, have to be on the other machine."""
        contents: dict[str, bytes] = {}
        names: list[str] = []
        for plugin in plugins:
            is_file = plugin.endswith(".py")
            files = [file for file in trace([Path(plugin)]) if PACKAGE not in file.parents] if is_file else []
            contents |= {_place(file): file.read_bytes() for file in files}
            names.append(_place(Path(plugin)) if is_file else plugin)
        paths = dict.fromkeys(_list_data(cases))
        for path in paths:
            files = _list_files(Path(path))
            is_small = sum(file.stat().st_size for file in files) <= MOST_CARRIED_BYTES
            if not Path(path).is_absolute() and ".." not in Path(path).parts and is_small:
                contents |= {str(file): file.read_bytes() for file in files}
        return cls(contents, tuple(names), {path: digest_files(path) for path in paths})

    def unpack(self, folder: Path) -> None:
        """Write the contents to a folder, which becomes the current one. Raises `UsageError` for data that is missing
        here, or differs."""
        for name, content in self.contents.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        for path, expected in self.data.items():
            state = "missing" if not Path(path).exists() else "different" if digest_files(path) != expected else ""
            if state:
                remedy = "put it on a disk that all nodes share, and name it by an absolute path"
                raise UsageError(f"{path}: {state} on this node; {remedy}")


def _list_data(cases: Iterable[Case]) -> Iterator[str]:
    """The files and folders that cases name."""
    for keys in dict.fromkeys(case.group.keys for case in cases):
        for name, value in keys:
            values = value if isinstance(value, tuple) else (value,)
            if name in DATA_KEYS:
                yield from (path for path in values if isinstance(path, str) and Path(path).exists())


def _place(file: Path) -> str:
    """Where a file of a plug-in is put: as in the current folder, others next to their neighbours."""
    folder = Path.cwd()
    if file.is_relative_to(folder):
        return str(file.relative_to(folder))
    return str(Path(f"plugins-{hashlib.sha256(bytes(file.parent)).hexdigest()[:8]}", file.name))
