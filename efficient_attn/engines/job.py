"""A job, and the messages between its caller, the engine that runs it, and the worker."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from ..results.rows import Status

LENGTH_BYTES = 8  # of a message's length, which follows the token
PIECE_BYTES = 2**16


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


@dataclass
class ResultPipe:
    """One end of the pipe from a worker. token: with which each message begins, unlike what a mechanism may write."""

    connection: Connection
    token: bytes
    _received: bytearray = field(default_factory=bytearray)

    def send(self, message: Any) -> None:
        """Send a message."""
        content = bytes(ForkingPickler.dumps(message))
        data = memoryview(self.token + len(content).to_bytes(LENGTH_BYTES, "little") + content)
        while data:
            data = data[os.write(self.connection.fileno(), data) :]

    def receive(self, seconds: float) -> Any:
        """The next message, None if it has not come in this time. Raises `ForeignBytes` for anything else, whatever its
        size, and `EOFError` at the end. It never waits for the rest of something that is no message."""
        while (message := self._take_message()) is None and self.connection.poll(seconds):
            piece = os.read(self.connection.fileno(), PIECE_BYTES)
            if not piece:
                raise EOFError
            self._received += piece
            seconds = 0
        return message

    def _take_message(self) -> Any:
        """The first message of what has been received, if it is complete."""
        start = len(self.token) + LENGTH_BYTES
        if not self.token.startswith(self._received[: len(self.token)]):
            raise ForeignBytes
        end = start + int.from_bytes(self._received[len(self.token) : start], "little")
        if len(self._received) < max(start, end):
            return None
        content = bytes(self._received[start:end])
        del self._received[:end]
        return pickle.loads(content)


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
