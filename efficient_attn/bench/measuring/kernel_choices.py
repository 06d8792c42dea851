"""Choices between implementations of a kernel: measured once a session, in a worker, and the same in all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ...engines.job import Engine, StageBoard, WorkerDied
from ...kernels.autotuning import autotuner, cache
from ...kernels.autotuning.candidates import TimingTable, TuningPoint
from ...kernels.half_precision import HALF
from ...kernels.products import PRODUCTS
from ...kernels.softmax.decode import DECODE
from ..readiness import Finding

TUNABLES = (PRODUCTS, HALF, DECODE)  # measured before a run, and shown by ``doctor``
LIMIT_S = 120.0

Tables: TypeAlias = Mapping[str, TimingTable]  # by the name of the choice
Choices: TypeAlias = dict[int, Tables]  # by threads


@dataclass(frozen=True, kw_only=True)
class AutotuneKernels:
    """Load or measure the tables of timings for each number of threads. Sends pairs of both."""

    threads: tuple[int | None, ...]

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Load or measure the tables, and send each with its number of threads."""
        board.set_stage(0, 0, LIMIT_S)
        default = torch.get_num_threads()
        for count in sorted({threads or default for threads in self.threads}):
            torch.set_num_threads(count)
            send((count, autotuner.find_tables(TUNABLES, count)))
        torch.set_num_threads(default)


def autotune(engine: Engine, threads: Iterable[int | None], sessions: Sequence[Mapping[str, Any]]) -> Choices:
    """The tables of a session: those of earlier ``sessions`` in its folder, so that all rows of a run agree, or else
    this machine's. None if a worker died; rules then decide."""
    tables_by_threads = {
        count: table for session in sessions for count, table in read_choices(session.get("choices", {})).items()
    }
    try:
        settled = dict(engine.carry_out(AutotuneKernels(threads=tuple(dict.fromkeys(threads)))))
    except WorkerDied as death:
        reason = f"by rule: timing failed ({death.how})"
        settled = {
            count: dict.fromkeys((c.name for c in TUNABLES), TimingTable(source=reason)) for count in threads if count
        }
    return {count: {**tables, **tables_by_threads.get(count, {})} for count, tables in settled.items()}


def apply_choices(choices: Choices) -> None:
    """In a worker: decide by these tables, for the threads that it has."""
    count = torch.get_num_threads()
    autotuner.use_tables(choices.get(count, {}), count)


def choices_as_json(choices: Choices) -> dict[str, Any]:
    """The tables as stored in ``run.json``: by threads, then selection."""
    return {
        str(count): {
            name: {
                "source": table.source,
                "seconds": table.seconds,
                "timings": [[point.kind, list(point.sizes), dict(times)] for point, times in table.timings],
            }
            for name, table in tables.items()
        }
        for count, tables in choices.items()
    }


def read_choices(stored: Mapping[str, Any]) -> Choices:
    """Read what `choices_as_json` wrote."""
    return {
        int(count): {
            name: TimingTable(
                tuple((TuningPoint(kind, tuple(sizes)), times) for kind, sizes, times in stored_table["timings"]),
                stored_table["source"],
                stored_table["seconds"],
            )
            for name, stored_table in tables.items()
        }
        for count, tables in stored.items()
    }


def check_choices(threads: int) -> Finding:
    """How kernels are selected on this machine; measures missing timings."""
    tables = autotuner.find_tables(TUNABLES, threads)
    seconds = sum(table.seconds for table in tables.values())
    numbers = {"threads": threads, "seconds": seconds, "sources": {n: t.source for n, t in tables.items()}}
    odd = sorted({table.source for table in tables.values() if not table.cached})
    if not any(table.timings for table in tables.values()):
        return Finding(topic="choices", said="; ".join(odd), level="note", numbers=numbers)
    points = sum(len(table.timings) for table in tables.values())
    message = f"forms of {', '.join(tables)} timed at {points} points in {seconds:.1f} s"
    message += f"; {'; '.join(odd)}" if odd else f", stored in {cache.folder()}"
    return Finding(topic="choices", said=message, level="note" if odd else "ok", numbers=numbers)
