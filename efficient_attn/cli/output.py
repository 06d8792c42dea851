"""Output of verbs: JSON, files, and lines that name files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def print_files(files: Mapping[str, str | Path]) -> None:
    """Print a line for each file that was written."""
    for label, file in files.items():
        print(f"{label}: {file}")


def write_file(file: Path, content: str | bytes) -> None:
    """Write a file that was derived from rows. Raises `UsageError` for a file that this package did not write."""
    from ..results import file_marks

    file_marks.write_derived(file, content if isinstance(content, bytes) else content.encode())


def to_json_text(value: Any) -> str:
    """A value as indented JSON."""
    return json.dumps(value, indent=2, default=str) + "\n"


def print_json(value: Any) -> int:
    """Print a value as JSON; returns exit code 0."""
    print(to_json_text(value), end="")
    return 0
