"""What the picker knows: for each use, direction, machine and length one cell, as plain data for the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ... import units
from .cells import Cell, Timed

USES = ("train", "prompt", "decode")
FEWEST = 3  # mechanisms: of two there is little to pick
USE_WORDS = {"train": "training step", "prompt": "reading a prompt", "decode": "decoding a token"}
QUALITIES = (("", "any"), ("0.0001", "exact"), ("0.1", "error at most 0.1"), ("0.5", "error at most 0.5"))


def make_picker(cells: Iterable[Cell], links: Mapping[str, str]) -> dict[str, Any]:
    """The cells with most mechanisms, one a question; labels and texts stand there once. links: pages by mechanism."""
    chosen: dict[tuple[str, bool, str, int], Cell] = {}
    for cell in cells:
        key = (cell.use, bool(cell.row.causal), str(cell.row.machine), cell.length)
        held = chosen.get(key)
        if cell.use in USES and len(cell.cases) >= FEWEST and (held is None or _weigh(cell) > _weigh(held)):
            chosen[key] = cell
    texts: dict[str, int] = {}

    def note(text: str) -> int:
        return texts.setdefault(text, len(texts))

    entries = [
        [use, int(causal), note(machine), length, note(cell.place), [_as_list(one, note, links) for one in cell.cases]]
        for (use, causal, machine, length), cell in sorted(chosen.items())
    ]
    return {"cells": entries, "texts": list(texts)}


def _weigh(cell: Cell) -> tuple[int, bool, str]:
    """What answers best: most mechanisms whose loss is known, then full precision."""
    return sum(one.error is not None for one in cell.cases), cell.row.dtype == "float32", cell.place


def _as_list(one: Timed, note: Any, links: Mapping[str, str]) -> list[Any]:
    """Label, link, time, its ends, speedup in words, error, loss and memory in words."""
    row = one.row
    ends = [round(end, 6) if end is not None else None for end in (row.latency_ms_low, row.latency_ms_high)]
    error = None if one.error is None else float(f"{one.error:.4g}")
    loss = f"{one.loss} on {one.error_on}" if one.error_on and one.error else one.loss
    memory = units.size(one.memory) if one.memory is not None else units.NONE
    name = row.variant.partition(":")[0]
    return [note(one.label), note(links.get(name, "")), row.latency_ms and round(row.latency_ms, 6), *ends,
            note(one.tell_time()), note(one.tell_speedup()), error, note(loss), note(memory)]  # fmt: skip
