"""Repairing a run before it goes on: damaged lines move to a file of their own, good ones stay byte for byte."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from . import durable
from .rows import Record
from .shards import Damage, scan

QUARANTINE = "quarantine.jsonl"


def repair(folder: Path, paths: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """The good records of a folder's shards, in order, and a sentence for each damaged line that was moved.

    All shards are read before one is touched: a newer version's records stop it, and then nothing was altered. Damage
    is safe in the quarantine before it is cut out, so that a crash in between loses nothing.
    """
    lines_by_path = {path: list(scan(path)) for path in paths}
    damages = [it for lines in lines_by_path.values() for _, it in lines if isinstance(it, Damage)]
    if damages:
        _quarantine(folder / QUARANTINE, damages)
    for path in dict.fromkeys(damage.path for damage in damages):
        _cut_out(path, lines_by_path[path])
    records = [it for lines in lines_by_path.values() for _, it in lines if isinstance(it, Record)]
    return records, [f"{damage}; moved to {QUARANTINE}, the case is measured again" for damage in damages]


def _quarantine(path: Path, damages: Sequence[Damage]) -> None:
    file = durable.open_to_append(path)
    try:
        durable.append(file, "".join(map(_entry, damages)).encode())
    finally:
        os.close(file)


def _entry(damage: Damage) -> str:
    text = damage.data.decode("utf-8", "backslashreplace")
    return json.dumps({"file": damage.path.name, "line": damage.line, "reason": damage.why, "text": text}) + "\n"


def _cut_out(path: Path, lines: Sequence[tuple[bytes, Record | Damage]]) -> None:
    """Leave the good lines: a torn end is cut off in place, anything else takes a new file."""
    good = [data for data, it in lines if isinstance(it, Record)]
    if all(it.torn for _, it in lines if isinstance(it, Damage)):
        durable.truncate(path, sum(map(len, good)))
    else:
        durable.replace(path, b"".join(good))
