"""A job, and the messages between its caller, the engine that runs it, and the worker."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableSequence
from typing import Any, Protocol

from ..results.rows import Status


class StageBoard:
    """A worker's current case, stage and deadline, in shared memory that its parent can read while the worker hangs."""

    def __init__(self, fields: MutableSequence[float]) -> None:
        self._fields = fields

    def set_stage(self, case: int, stage: int, seconds: float) -> None:
        """Record the case, its stage and the time limit of the stage."""
        self._fields[:] = [case, stage, time.monotonic() + seconds]

    @property
    def position(self) -> tuple[int, int]:
        """The index of the current case, and its stage."""
        return int(self._fields[0]), int(self._fields[1])

    @property
    def left(self) -> float:
        """Seconds until the worker is overdue."""
        return self._fields[2] - time.monotonic()


class Job(Protocol):
    """Work for a worker, which sends results as it computes them. The job and its results must be picklable."""

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Do the work; ``send`` returns results to the parent process."""


class WorkerDied(Exception):
    """A worker ended before its job finished. case: the index of its current case, -1 before the first one."""

    def __init__(self, case: int, stage: int, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.case, self.stage, self.reason = case, stage, reason
        self.status: Status = status
