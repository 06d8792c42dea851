"""Output of verbs: JSON, lines of text, and files."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any


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


def print_result(args: Namespace, data: Any, lines: Iterable[str]) -> int:
    """Print data with ``--json``, otherwise lines of text; returns exit code 0."""
    if args.json:
        return print_json(data)
    for line in lines:
        print(line)
    return 0
