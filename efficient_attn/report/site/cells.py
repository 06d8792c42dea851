"""What was measured side by side: a cell's mechanisms with their times, and their ranks with intervals.

Only what one session timed in one cell is ranked. Nothing is ranked across machines.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ... import units
from ...results.differences import list_rounds
from ...results.exchange import name_cell
from ...results.rows import Record, Row
from ...spec import label_of
from .. import losses, words
from ..claims.evidence import Seen
from ..gather import Frame

SEED, DRAWS = 0, 1000
FEWEST = 4  # rounds that all have: of fewer no interval is told
PLACE = ("suite", "machine", "device", "dtype", "threads", "batch", "heads", "head_dim", "fill")
APART = (*PLACE, "part", "mode", "causal", "cache", "compiled", "cuda_graph", "inputs", "budget")
USES = {"forward_backward": "train", "forward": "prompt", "prefill": "prompt", "decode": "decode"}


@dataclass(frozen=True)
class Rank:
    """A place among a cell's mechanisms, 1 for the fastest, and between which places it may really be (95%)."""

    at: int
    low: int
    high: int

    def tell(self) -> str:
        return str(self.at) if self.low == self.high else f"{self.at} ({self.low}{units.TO}{self.high})"


@dataclass(frozen=True)
class Timed:
    """A mechanism in a cell. rank: None where too few rounds tell it. error: against exact attention, if known."""

    label: str
    row: Row
    loss: str
    error: float | None
    error_on: str
    rank: Rank | None

    @property
    def memory(self) -> float | None:
        """Bytes: of the state when decoding, else at the peak."""
        return self.row.state_bytes if self.row.mode == "decode" else self.row.peak_memory_bytes

    def tell_time(self) -> str:
        return units.duration(self.row.latency_ms, self.row.latency_ms_low, self.row.latency_ms_high)

    def tell_speedup(self) -> str:
        return units.ratio(self.row.speedup, self.row.speedup_low, self.row.speedup_high)


@dataclass(frozen=True)
class Cell:
    """The mechanisms that one session timed beside each other, the fastest first."""

    key: tuple[Any, ...]
    length: int
    place: str
    cases: tuple[Timed, ...]

    @cached_property
    def row(self) -> Row:
        """One of its rows, for what all of them share."""
        return self.cases[0].row

    @property
    def use(self) -> str:
        """``train``, ``prompt`` or ``decode``; a mode that is none of them as it is."""
        return USES.get(str(self.row.mode), str(self.row.mode))

    def tell_what(self) -> str:
        """``forward, causal, 8K``, with the part and what else its rows share."""
        row = self.row
        more = (row.part, row.cache and f"{row.cache} cache", "compiled" if row.compiled else "", row.budget)
        said = (words.slice_words(row.mode, row.causal), units.short_length(self.length), *more)
        return ", ".join(str(text) for text in said if text)


def list_cells(seen: Iterable[Seen], rows: Frame, cpus: Mapping[str, str]) -> list[Cell]:
    """All cells in which at least two mechanisms were timed. rows: with losses."""
    known = _list_losses(rows)
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for each in seen:
        row = each.record.row
        if row.task == "speed" and row.latency_ms is not None and row.seq_len is not None:
            groups[str(row.run_id), name_cell(each.record)].append(each.record)
    made = (_make_cell(records, known, cpus) for records in groups.values() if len(records) > 1)
    return sorted(made, key=lambda cell: (str(cell.key), cell.length))


def _list_losses(rows: Frame) -> dict[tuple[str, str], dict[str, Any]]:
    """What each case loses, by its session and key."""
    names = ["variant", "error", "error_of_mean", "error_on"]
    keys = zip(rows["run_id"].tolist(), rows["case_key"].tolist(), strict=True)
    lines = zip(*(rows[name].tolist() for name in names), strict=True)
    return {
        (str(run), str(case)): dict(zip(names, line, strict=True))
        for (run, case), line in zip(keys, lines, strict=True)
    }


def _make_cell(
    records: Sequence[Record], known: Mapping[tuple[str, str], Mapping[str, Any]], cpus: Mapping[str, str]
) -> Cell:
    first = records[0].row
    key = tuple(getattr(first, name) for name in APART)
    place = words.place_words({name: getattr(first, name) for name in PLACE}, dict(cpus))
    labels = _name_apart([record.row for record in records])
    ranks = rank_records(records)
    cases = [
        _make_case(label, record.row, known.get((str(record.row.run_id), record.row.case_key)), rank)
        for label, record, rank in zip(labels, records, ranks, strict=True)
    ]
    return Cell(key, int(first.seq_len or 0), place, tuple(sorted(cases, key=lambda it: it.row.latency_ms or math.inf)))


def _make_case(label: str, row: Row, loss: Mapping[str, Any] | None, rank: Rank | None) -> Timed:
    if loss is None:
        return Timed(label, row, f"error {losses.NOT_MEASURED}", None, "", rank)
    error = float(loss["error"]) if units.there(loss["error"]) else 0.0 if losses.is_exact(loss) else None
    on = str(loss["error_on"]) if units.there(loss["error_on"]) else ""
    return Timed(label, row, losses.tell(loss), error, on, rank)


def _name_apart(rows: Sequence[Row]) -> list[str]:
    """Labels, with the number of key-value heads where two would be one."""
    labels = [label_of(row.variant, row.backend) for row in rows]
    twice = {label for label in labels if labels.count(label) > 1}
    return [
        f"{label} (kv_heads={row.kv_heads})" if label in twice else label
        for label, row in zip(labels, rows, strict=True)
    ]


# -- ranks ---------------------------------------------------------------------------------------------------------


def rank_records(records: Sequence[Record]) -> list[Rank | None]:
    """The rank of each by the mean of log(time), with the interval of the rank by bootstrap, the same every time.

    Rounds are drawn for all mechanisms at once, since what disturbs a round disturbs all of them: first processes,
    then rounds of each. None for all where fewer than `FEWEST` rounds are known of all.
    """
    rounds = [list_rounds(record) for record in records]
    shared = sorted(set.intersection(*(set(each) for each in rounds)))
    if len(shared) < FEWEST:
        return [None] * len(records)
    times = np.log(np.array([[each[at] for at in shared] for each in rounds]))
    weights = _draw_weights([process for process, _ in shared])
    drawn = _rank(weights @ times.T)
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0, method="nearest").astype(int)
    at = _rank(times.mean(axis=1)[None, :])[0]
    return [Rank(int(a), int(min(b, a)), int(max(c, a))) for a, b, c in zip(at.tolist(), low, high, strict=True)]


def _draw_weights(processes: Sequence[int]) -> Any:
    """How often each round is drawn, a line a drawing, as shares."""
    random = np.random.default_rng(SEED)
    places = [np.flatnonzero(np.array(processes) == each) for each in dict.fromkeys(processes)]
    weights = np.zeros((DRAWS, len(processes)))
    for line in weights:
        for chosen in random.integers(len(places), size=len(places)):
            own = places[chosen]
            np.add.at(line, own[random.integers(len(own), size=len(own))], 1.0)
    return weights / weights.sum(axis=1, keepdims=True)


def _rank(values: Any) -> Any:
    """Ranks along each line from 1, the least first."""
    return values.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") + 1


# -- boards --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaderboard:
    """A suite on one machine: of every place the cell of the longest length."""

    suite: str
    machine: str
    cells: tuple[Cell, ...]


def list_leaderboards(cells: Iterable[Cell]) -> list[Leaderboard]:
    places: dict[tuple[str, str], dict[tuple[Any, ...], Cell]] = defaultdict(dict)
    for cell in cells:
        own = places[str(cell.row.suite), str(cell.row.machine)]
        held = own.get(cell.key)
        if held is None or (cell.length, len(cell.cases)) > (held.length, len(held.cases)):
            own[cell.key] = cell
    return [Leaderboard(suite, machine, tuple(_order(own))) for (suite, machine), own in sorted(places.items())]


def _order(own: Mapping[tuple[Any, ...], Cell]) -> Iterator[Cell]:
    """Those with most mechanisms first."""
    yield from sorted(own.values(), key=lambda cell: (-len(cell.cases), cell.place, cell.tell_what()))
