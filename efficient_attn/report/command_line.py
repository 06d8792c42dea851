"""Format a run's command for readers, without the author's absolute paths."""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from ..results.sanitize import sanitize_line


def format_command(command: Any) -> str:
    """Format a command line. An absolute ``--out`` is removed; other absolute paths are reduced to their names."""
    return sanitize_line(command if isinstance(command, str) else shlex.join(_shorten(map(str, command or ()))))


def _shorten(words: Iterable[str]) -> Iterator[str]:
    words = iter(words)
    for word in words:
        option, mark, value = word.partition("=")
        if word == "--out":
            value = next(words, "")
            yield from () if _is_absolute(value) else (word, value)
        elif mark and option.startswith("--"):
            yield from () if option == "--out" and _is_absolute(value) else (f"{option}={_shorten_path(value)}",)
        else:
            yield _shorten_path(word)


def _is_absolute(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()


def _shorten_path(word: str) -> str:
    return PureWindowsPath(word).name or word if _is_absolute(word) else word
