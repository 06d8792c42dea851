"""A job, and the messages between its caller, the engine that runs it, and the worker."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from ..results.rows import Status

MAX_MESSAGE_BYTES = 2**28


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


class ForeignBytes(Exception):
    """What came from a worker's pipe is no message of ours."""

    def __str__(self) -> str:
        return "something else than results was written into the pipe of results, by this case"


@dataclass(frozen=True)
class ResultPipe:
    """One end of the pipe from a worker. token: with which each message begins, unlike what a mechanism may write."""

    connection: Connection
    token: bytes

    def send(self, message: Any) -> None:
        """Send a message."""
        self.connection.send_bytes(self.token + ForkingPickler.dumps(message))

    def receive(self) -> Any:
        """The next message. Raises `ForeignBytes` for anything else, and `EOFError` at the end."""
        try:
            data = self.connection.recv_bytes(MAX_MESSAGE_BYTES)
        except EOFError:
            raise
        except OSError as error:  # a length that no message has
            raise ForeignBytes from error
        if not data.startswith(self.token):
            raise ForeignBytes
        return pickle.loads(data[len(self.token) :])


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
