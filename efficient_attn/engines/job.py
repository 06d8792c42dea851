"""A job, and all that passes between who wants it done, the engine that carries it out, and the worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, MutableSequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..results.rows import Status


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a case may take: seconds in all, and bytes beyond an idle worker's. None: the suite's, the machine's."""

    timeout_s: float | None = None
    memory_bytes: int | None = None


class StageBoard:
    """Where a worker says what it is at, in memory that its parent sees even when the worker hangs."""

    def __init__(self, fields: MutableSequence[float]) -> None:
        self._fields = fields

    def set_stage(self, case: int, stage: int, seconds: float | None = None) -> None:
        """Say which case is at which stage, and for how long at most."""
        self._fields[:] = [case, stage, 0 if seconds is None else time.monotonic() + seconds]

    @property
    def case(self) -> int:
        return int(self._fields[0])

    @property
    def stage(self) -> int:
        return int(self._fields[1])

    @property
    def left(self) -> float | None:
        """Seconds until the worker is overdue; None without a limit."""
        return self._fields[2] - time.monotonic() if self._fields[2] else None


class Job(Protocol):
    """Work for a worker: it sends results as it computes them. The job and its results must be picklable."""

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None: ...


class WorkerDied(Exception):
    """A worker ended before its work did: at which case and stage, and how."""

    def __init__(self, case: int, stage: int, status: Status, how: str) -> None:
        super().__init__(how)
        self.case, self.stage, self.how = case, stage, how
        self.status: Status = status


@dataclass
class EngineTimes:
    """What a session's workers cost: their number, seconds until they ran, seconds that they worked."""

    starts: int = 0
    starting_s: float = 0.0
    working_s: float = 0.0


class Engine(Protocol):
    """Carries jobs out, one after another, and keeps account of what its workers cost."""

    account: EngineTimes

    @property
    def name(self) -> str: ...

    def start(self) -> None:
        """Get ready, if that takes time. Returns at once."""
        ...

    def carry_out(self, job: Job) -> Iterator[Any]:
        """Yield the results that the job sends. Raises `WorkerDied` if its worker ends early."""
        ...
