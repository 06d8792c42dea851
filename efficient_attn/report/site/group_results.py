"""Benchmark groups: mechanisms timed interleaved, with their ranks and the intervals of the ranks.

Only mechanisms timed in the same group of one session are ranked; never across machines.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ... import units
from ...results.differences import list_rounds
from ...results.exchange import name_group
from ...results.rows import Record, Row
from ...spec import format_label
from .. import approximation_errors, formatting, select
from ..claims.evidence import EvidenceRow
from ..gather import Frame
from .page_names import make_name

SEED, RESAMPLES = 0, 1000
MIN_ROUNDS = 4  # shared rounds needed for an interval
SETTING_COLUMNS = tuple(name for name in select.SETTING_COLUMNS if name != "baseline")
GROUP_COLUMNS = (*SETTING_COLUMNS, "part", "mode", "causal", "cache", "compiled", "cuda_graph", "inputs", "budget")
USE_BY_MODE = {"forward_backward": "train", "forward": "prompt", "prefill": "prompt", "decode": "decode"}


@dataclass(frozen=True)
class Rank:
    """A rank within a group, 1 for the fastest, with its 95% interval."""

    position: int
    low: int
    high: int

    def format_rank(self) -> str:
        """``3 (2-4)``; without the interval if it contains a single rank."""
        interval = f" ({self.low}{units.INTERVAL_DASH}{self.high})" if self.low < self.high else ""
        return f"{self.position}{interval}"


@dataclass(frozen=True)
class TimedMechanism:
    """A mechanism in a group. error_text: its error against exact attention, with the conditions of its measurement.
    rank: None with too few rounds."""

    label: str
    row: Row
    error_text: str
    rank: Rank | None

    @property
    def memory(self) -> float | None:
        """Bytes of the state when decoding, else peak memory."""
        return self.row.state_bytes if self.row.mode == "decode" else self.row.peak_memory_bytes

    def format_time(self) -> str:
        """The time with its interval."""
        return units.duration(self.row.latency_ms, self.row.latency_ms_low, self.row.latency_ms_high)

    def format_speedup(self) -> str:
        """The speedup with its interval."""
        return units.ratio(self.row.speedup, self.row.speedup_low, self.row.speedup_high)


@dataclass(frozen=True)
class GroupResult:
    """Mechanisms that one session timed interleaved, fastest first."""

    key: tuple[Any, ...]
    length: int
    config_text: str
    cases: tuple[TimedMechanism, ...]

    @cached_property
    def row(self) -> Row:
        """One of its rows, for the columns that all share."""
        return self.cases[0].row

    @property
    def use(self) -> str:
        """``train``, ``prompt`` or ``decode``; any other mode unchanged."""
        return USE_BY_MODE.get(str(self.row.mode), str(self.row.mode))

    def describe(self) -> str:
        """``forward, causal, 8K``, with the part and other columns that its rows share."""
        row = self.row
        more = (row.part, row.cache and f"{row.cache} cache", "compiled" if row.compiled else "", row.budget)
        parts = (formatting.format_slice(row.mode, row.causal), units.short_length(self.length), *more)
        return ", ".join(str(text) for text in parts if text)


def list_groups(evidence_rows: Iterable[EvidenceRow], rows: Frame, cpus: Mapping[str, str]) -> list[GroupResult]:
    """Return all groups of at least two timed mechanisms. rows: with errors."""
    errors = _list_errors(rows)
    records_by_group: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for evidence_row in evidence_rows:
        row = evidence_row.record.row
        if row.task == "speed" and row.latency_ms is not None and row.seq_len is not None:
            records_by_group[str(row.run_id), name_group(evidence_row.record)].append(evidence_row.record)
    results = (_make_group(records, errors, cpus) for records in records_by_group.values() if len(records) > 1)
    return sorted(results, key=lambda group: (str(group.key), group.length))


def _list_errors(rows: Frame) -> dict[tuple[str, str], dict[str, Any]]:
    """Approximation error columns of each case, by session and case key."""
    keys = zip(map(str, rows["run_id"]), map(str, rows["case_key"]), strict=True)
    records = rows[["variant", *approximation_errors.ERROR_COLUMNS]].to_dict("records")
    return dict(zip(keys, records, strict=True))


def _make_group(
    records: Sequence[Record], errors: Mapping[tuple[str, str], Mapping[str, Any]], cpus: Mapping[str, str]
) -> GroupResult:
    first = records[0].row
    key = tuple(getattr(first, name) for name in GROUP_COLUMNS)
    config_text = formatting.format_config({name: getattr(first, name) for name in SETTING_COLUMNS}, dict(cpus))
    rows = [record.row for record in records]
    cases = []
    for label, row, rank in zip(_make_unique_labels(rows), rows, rank_records(records), strict=True):
        error_columns = errors[str(row.run_id), row.case_key]
        error_text = approximation_errors.describe_error(error_columns, with_conditions=True)
        cases.append(TimedMechanism(label, row, error_text, rank))
    cases.sort(key=lambda entry: entry.row.latency_ms or math.inf)
    return GroupResult(key, int(first.seq_len or 0), config_text, tuple(cases))


def _make_unique_labels(rows: Sequence[Row]) -> list[str]:
    """Labels; repeated ones get the number of key-value heads."""
    labels = [format_label(row.variant, row.backend) for row in rows]
    return [
        f"{label} (kv_heads={row.kv_heads})" if labels.count(label) > 1 else label
        for label, row in zip(labels, rows, strict=True)
    ]


# -- ranks ---------------------------------------------------------------------------------------------------------


def rank_records(records: Sequence[Record]) -> list[Rank | None]:
    """Rank records by mean log time, with 95% intervals from a seeded bootstrap.

    Rounds are resampled jointly for all mechanisms, as disturbances affect a whole round: first processes, then rounds
    within each. All ranks are None with fewer than `MIN_ROUNDS` shared rounds.
    """
    times_by_round = [list_rounds(record) for record in records]
    shared = sorted(set.intersection(*map(set, times_by_round)))
    if len(shared) < MIN_ROUNDS:
        return [None] * len(records)
    times = np.log(np.array([[times[round_id] for round_id in shared] for times in times_by_round]))
    weights = _draw_weights([process for process, _ in shared])
    resampled_ranks = _compute_ranks(weights @ times.T)
    low, high = np.quantile(resampled_ranks, (0.025, 0.975), axis=0, method="nearest").astype(int).tolist()
    positions = _compute_ranks(times.mean(axis=1)[None, :])[0].tolist()
    return [Rank(p, min(a, p), max(b, p)) for p, a, b in zip(positions, low, high, strict=True)]


def _draw_weights(processes: Sequence[int]) -> Any:
    """Share of each round in each resample, ``[RESAMPLES, rounds]``."""
    random = np.random.default_rng(SEED)
    indices_by_process = [np.flatnonzero(np.array(processes) == process) for process in dict.fromkeys(processes)]
    weights = np.zeros((RESAMPLES, len(processes)))
    for weight_row in weights:
        for chosen in random.integers(len(indices_by_process), size=len(indices_by_process)):
            indices = indices_by_process[chosen]
            np.add.at(weight_row, indices[random.integers(len(indices), size=len(indices))], 1.0)
    return weights / weights.sum(axis=1, keepdims=True)


def _compute_ranks(values: Any) -> Any:
    """Ranks within each row, from 1 for the smallest value."""
    return values.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") + 1


# -- leaderboards --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaderboard:
    """A suite on one machine: the group of the longest length of every configuration."""

    suite: str
    machine: str
    groups: tuple[GroupResult, ...]

    @property
    def page(self) -> str:
        """The address of its page."""
        return f"b/{make_name(self.suite, self.machine)}.html"

    @property
    def cells(self) -> int:
        """The number of its groups."""
        return len(self.groups)


def list_leaderboards(groups: Iterable[GroupResult]) -> list[Leaderboard]:
    """Return one leaderboard for each suite and machine, largest groups first. Of groups that only differ in length, it
    contains the longest, and of those the one with most mechanisms."""
    groups_by_board: dict[tuple[str, str], dict[tuple[Any, ...], GroupResult]] = defaultdict(dict)
    for group in groups:
        board_groups = groups_by_board[str(group.row.suite), str(group.row.machine)]
        best = board_groups.get(group.key, group)
        board_groups[group.key] = max(best, group, key=lambda group: (group.length, len(group.cases)))

    def sort_key(group: GroupResult) -> tuple[int, str, str]:
        return -len(group.cases), group.config_text, group.describe()

    return [
        Leaderboard(suite, machine, tuple(sorted(board_groups.values(), key=sort_key)))
        for (suite, machine), board_groups in sorted(groups_by_board.items())
    ]
