"""Synthetic runs to compare: groups of a baseline and a variant, with the noise of a shared machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from efficient_attn.results.compare import Change, Comparison, compare
from efficient_attn.results.exchange import ImportedRun
from efficient_attn.results.rows import Record, Row
from efficient_attn.results.store import RunWriter

COSTS = {"full": 10.0, "linear": 2.0}  # ms
ENVIRONMENT = {"machine": "Xeon-x2-15GiB", "torch": "2.13.0", "threads_default": 2, "cpu": "Xeon", "cores": 2}


def key(variant: str, length: int, *, digest: str = "0") -> str:
    return f"tiny/all/forward/{variant}/n{length}-b1-h4-kv4-d64/float32-cpu-t1-all#{digest}"


def record(variant: str, length: int, rounds: Sequence[float] = (), **known: Any) -> Record:
    """A case; without rounds (ms, one sample each) it has no time."""
    process = known.pop("process", None)
    digest = known.pop("digest", "0")
    row = Row(
        case_key=key(variant, length, digest=digest), variant=variant, suite="tiny", run_id="r", task="speed",
        mode="forward", seq_len=length, machine=ENVIRONMENT["machine"],
    )  # fmt: skip
    if len(rounds):
        row.latency_ms = float(np.median(rounds))
        row.latency_ms_low, row.latency_ms_high = row.latency_ms * 0.98, row.latency_ms * 1.02
    if variant == "full" and len(rounds):
        row.speedup = row.speedup_low = row.speedup_high = 1.0
    for name, value in known.items():
        setattr(row, name, value)
    samples: dict[str, Any] = {"latency_ms": [[float(ms)] for ms in rounds], "calls": 4} if len(rounds) else {}
    return Record(row, samples | ({"process": list(process)} if process is not None else {}))


def failed(variant: str, length: int, status: str = "oom", reason: str = "no memory left") -> Record:
    return record(variant, length, status=status, reason=reason)


def measured(
    rng: np.random.Generator,
    *,
    groups: int = 3,
    factors: Mapping[str, float] | None = None,
    noise: float = 0.015,
    shared: float = 0.05,
    machine: float = 0.0,
    by_process: float = 0.0,
    processes: int = 5,
    rounds: int = 4,
    **known: Any,
) -> list[Record]:
    """The records of one session. factors: by which the times of a variant are multiplied.

    Standard deviations of log times: noise, of each value; shared, of a round for all variants; machine, of the whole
    session; by_process, of one variant in one process.
    """
    found, process = [], np.repeat(np.arange(processes), rounds)
    session = rng.normal(0, machine)
    for length in (64 * 2**i for i in range(groups)):
        together = rng.normal(session, shared, len(process))
        for variant, ms in COSTS.items():
            own = np.repeat(rng.normal(0, by_process, processes), rounds) + rng.normal(0, noise, len(process))
            values = ms * length / 64 * (factors or {}).get(variant, 1.0) * np.exp(together + own)
            found.append(record(variant, length, values.tolist(), process=process.tolist(), **known))
    return found


def measured_in_pairs(
    rng: np.random.Generator, *, cases: int = 12, pairs: int = 24, noise: float, disturbed: float, slowdown: float
) -> tuple[list[Record], list[Record]]:
    """The records of two runs whose process runs alternate in random order, on a machine of changing speed. The first
    case of the second is slower.

    noise: the standard deviation of the differences of pairs. disturbed: the share of process runs that are slowed
    down, on average by a half.
    """
    sides: tuple[list[Record], list[Record]] = ([], [])
    for number in range(cases):
        speed, order = rng.normal(0, 0.2, pairs), rng.integers(0, 2, pairs)
        for side, records in enumerate(sides):
            own = rng.normal(0, noise / math.sqrt(2), pairs) + (rng.random(pairs) < disturbed) * rng.exponential(
                0.5, pairs
            )
            factor = 1 + slowdown if side and not number else 1
            values = factor * 10 * np.exp(speed + own)
            one = record("linear", 64 * 2**number, values.tolist(), process=list(range(pairs)))
            one.samples["started"] = [2.0 * pair + (order[pair] ^ side) for pair in range(pairs)]
            records.append(one)
    return sides


def run(records: Sequence[Record], name: str = "base", **environment: Any) -> ImportedRun:
    return ImportedRun(name=name, records=records, environments=[ENVIRONMENT | environment])


def write(folder: Path, records: Sequence[Record], **environment: Any) -> Path:
    """A run's folder as the store writes it."""
    with RunWriter(folder) as writer:
        writer.write_session(
            {"run_id": "r", "started": "2026-01-02T03:04:05+00:00", "environment": ENVIRONMENT | environment}
        )
        for one in records:
            writer.write(one)
    return folder


def steady(ms: float, *, spread: float = 0.001, rounds: int = 8) -> list[float]:
    """Rounds around a value, without random noise."""
    return [ms * math.exp(spread * (-1) ** i) for i in range(rounds)]


LINEAR = key("linear", 64).partition("#")[0]


def compare_rows(old: Sequence[Record], new: Sequence[Record], **options: Any) -> Comparison:
    return compare(run(old, "a"), run(new, "b"), **options)


def change_of(found: Comparison, name: str = LINEAR) -> Change:
    (change,) = [c for c in found.changes if c.name == name]
    return change
