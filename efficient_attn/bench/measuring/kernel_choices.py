"""Timings by which implementations of kernels are selected: measured once a session, and the same in all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ...engines.job import StageBoard, WorkerDied
from ...engines.local import LocalEngine
from ...instruments.global_state import use_threads
from ...kernels.autotuning import autotuner, cache
from ...kernels.autotuning.candidates import TimingTable
from ...kernels.half_precision import HALF
from ...kernels.linear.bidirectional import SUMS
from ...kernels.linear.scan import SCAN
from ...kernels.native import building
from ...kernels.native.triton_step import why_no_triton
from ...kernels.products import PRODUCTS
from ...kernels.softmax.decode import DECODE
from ...kernels.softmax.sdpa_kernels import ATTENTION
from ...kernels.sparse.implementation_choice import TILES
from ..readiness import Finding

TUNABLES = (PRODUCTS, HALF, DECODE, SCAN, SUMS, TILES)  # measured before a run, and reported by ``doctor``
LIMIT_S = 120.0

Tables: TypeAlias = Mapping[str, TimingTable]  # by the name of the tunable
Choices: TypeAlias = dict[int, Tables]  # by the number of threads


@dataclass(frozen=True, kw_only=True)
class AutotuneKernels:
    """Load or measure the tables of timings for each number of threads."""

    threads: tuple[int | None, ...]

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Load or measure the tables, and send each with its number of threads."""
        board.set_stage(0, 0, LIMIT_S)
        for count in sorted({threads or torch.get_num_threads() for threads in self.threads}):
            with use_threads(count):
                send((count, autotuner.find_tables(TUNABLES, count)))


def autotune(engine: LocalEngine, threads: Iterable[int | None], sessions: Sequence[Mapping[str, Any]]) -> Choices:
    """The tables of a session: those of earlier ``sessions`` of its folder, so that all rows of a run agree, else this
    machine's. If the worker dies, the tables are empty and rules select the implementations. This process builds C++
    kernels that are missing beforehand, because workers do not."""
    building.build_all()
    earlier = read_earlier(sessions)
    try:
        measured = dict(engine.run(AutotuneKernels(threads=tuple(dict.fromkeys(threads)))))
    except WorkerDied as death:
        table = TimingTable(source=f"by rule: timing failed ({death.reason})")
        measured = {count: {tunable.name: table for tunable in TUNABLES} for count in threads if count}
    return {count: {**tables, **earlier.get(count, {})} for count, tables in measured.items()}


def read_earlier(sessions: Sequence[Mapping[str, Any]]) -> Choices:
    """The tables of earlier sessions, those of the last one of each number of threads."""
    return {count: table for session in sessions for count, table in read_choices(session.get("choices", {})).items()}


def apply_choices(choices: Choices) -> None:
    """In a worker: use the tables for its number of threads."""
    count = torch.get_num_threads()
    autotuner.use_tables(choices.get(count, {}), count)


def list_timed() -> Tables:
    """In a worker: the timings of kernels that are timed in the first call of a geometry, as on a GPU."""
    table = autotuner.list_timed(ATTENTION)
    return {ATTENTION.name: table} if table.timings else {}


def add_timed(choices: Choices, threads: int | None, timed: Tables) -> None:
    """Pass what `list_timed` found in a worker to all later ones, so that they select the same kernels."""
    if timed and threads is not None:
        choices[threads] = {**choices.get(threads, {}), **timed}


def choices_as_json(choices: Choices) -> dict[str, Any]:
    """The tables as stored in ``run.json``, by the number of threads and the name of the tunable."""
    return {
        str(count): {name: {"source": table.source} | table.as_json() for name, table in tables.items()}
        for count, tables in choices.items()
    }


def read_choices(stored: Mapping[str, Any]) -> Choices:
    """Read what `choices_as_json` wrote."""
    return {
        int(count): {name: TimingTable.from_json(table, table["source"]) for name, table in tables.items()}
        for count, tables in stored.items()
    }


def check_native() -> Finding:
    """Which kernels in C++ this processor can run; builds those that are missing."""
    reasons = {name: reason for name, reason in building.build_all().items() if reason}
    folders, processors, unused = building.locate_libraries(), building.find_class(), building.list_unused()
    numbers = {"processors": processors, "folders": folders, "reasons": reasons, "not_run": unused}
    if reasons:
        message = "; ".join(f"no {name} in C++: {reason}" for name, reason in reasons.items())
        return Finding(topic="native", message=f"{message}; torch is used instead", level="note", numbers=numbers)
    message = f"{', '.join(folders)} in C++ for {processors}, in {' and '.join(sorted(set(folders.values())))}"
    message += f"; not run on this processor: {', '.join(unused)}" if unused else ""
    return Finding(topic="native", message=message, numbers=numbers)


def check_triton() -> Finding:
    """Whether the GPU can run the decode steps in Triton; compiles one."""
    reason = why_no_triton(torch.device("cuda", torch.cuda.current_device()))
    message = f"no decode steps in Triton: {reason}; torch is used instead" if reason else "decode steps in Triton"
    return Finding(topic="native", message=message, level="note" if reason else "ok", numbers={"reason": reason})


def check_choices(threads: int) -> Finding:
    """How kernels are selected on this machine; measures timings that are not cached."""
    tables = autotuner.find_tables(TUNABLES, threads)
    seconds = sum(table.seconds for table in tables.values())
    numbers = {"threads": threads, "seconds": seconds, "sources": {n: t.source for n, t in tables.items()}}
    uncached = sorted({table.source for table in tables.values() if not table.cached})
    if not any(table.timings for table in tables.values()):
        return Finding(topic="choices", message="; ".join(uncached), level="note", numbers=numbers)
    points = sum(len(table.timings) for table in tables.values())
    message = f"implementations of {', '.join(tables)} timed at {points} points in {seconds:.1f} s"
    message += f"; {'; '.join(uncached)}" if uncached else f", stored in {cache.folder()}"
    return Finding(topic="choices", message=message, level="note" if uncached else "ok", numbers=numbers)
