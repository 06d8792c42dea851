"""Repair a run before it is resumed: damaged lines are moved to their own file, intact ones are unchanged."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from . import durable
from .rows import Record
from .shards import Damage, describe_damages, scan_lines

QUARANTINE_FILE = "quarantine.jsonl"


def repair(folder: Path, paths: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """The intact records of a folder's shards in order, and a description of the damaged lines that were moved.

    All shards are read before one is changed, because records of a newer version raise `UsageError`. Damaged lines are
    stored in the quarantine before they are removed, so that a crash in between loses nothing.
    """
    records, damages = [], []
    intact_lines: dict[Path, list[bytes]] = {path: [] for path in paths}
    for path in paths:
        for data, content in scan_lines(path):
            if isinstance(content, Damage):
                damages.append(content)
            else:
                records.append(content)
                intact_lines[path].append(data)
    if damages:
        file = durable.open_to_append(folder / QUARANTINE_FILE)
        try:
            durable.append(file, "".join(map(format_damage, damages)).encode())
        finally:
            os.close(file)
    for path in dict.fromkeys(damage.path for damage in damages):
        durable.replace(path, b"".join(intact_lines[path]))
    texts = [text for text, _ in describe_damages(damages)]
    return records, [f"{text}; moved to {QUARANTINE_FILE}, and measured again" for text in texts]


def format_damage(damage: Damage) -> str:
    """A line of the quarantine."""
    text = damage.data.decode("utf-8", "backslashreplace")
    return json.dumps({"file": damage.path.name, "line": damage.line, "reason": damage.reason, "text": text}) + "\n"
