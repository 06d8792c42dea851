"""Repair a run before it is resumed: damaged lines are moved to their own file, intact ones are unchanged."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from . import durable
from .rows import Record
from .shards import Damage, scan_lines

QUARANTINE_FILE = "quarantine.jsonl"


def repair(folder: Path, paths: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """The intact records of a folder's shards in order, and a description of each damaged line that was moved.

    All shards are read before one is changed, because records of a newer version raise `UsageError`. Damaged lines are
    stored in the quarantine before they are removed, so that a crash in between loses nothing.
    """
    lines_by_path = {path: list(scan_lines(path)) for path in paths}
    damages = [content for lines in lines_by_path.values() for _, content in lines if isinstance(content, Damage)]
    if damages:
        _quarantine(folder / QUARANTINE_FILE, damages)
    for path in dict.fromkeys(damage.path for damage in damages):
        _remove_damage(path, lines_by_path[path])
    records = [content for lines in lines_by_path.values() for _, content in lines if isinstance(content, Record)]
    return records, [f"{damage}; moved to {QUARANTINE_FILE}, the case is measured again" for damage in damages]


def _quarantine(path: Path, damages: Sequence[Damage]) -> None:
    file = durable.open_to_append(path)
    try:
        durable.append(file, "".join(map(_format_damage, damages)).encode())
    finally:
        os.close(file)


def _format_damage(damage: Damage) -> str:
    text = damage.data.decode("utf-8", "backslashreplace")
    return json.dumps({"file": damage.path.name, "line": damage.line, "reason": damage.reason, "text": text}) + "\n"


def _remove_damage(path: Path, lines: Sequence[tuple[bytes, Record | Damage]]) -> None:
    """Keep the intact lines: a truncated end is cut off in place; otherwise the file is replaced."""
    intact = [data for data, content in lines if isinstance(content, Record)]
    if all(content.torn for _, content in lines if isinstance(content, Damage)):
        durable.truncate(path, sum(map(len, intact)))
    else:
        durable.replace(path, b"".join(intact))
