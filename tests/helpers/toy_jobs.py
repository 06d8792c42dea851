"""Jobs for workers that end in all the ways a process can end, in a module that workers can import."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from efficient_attn.engines.job import StageBoard
from efficient_attn.engines.worker import limit_memory


def segfault() -> None:
    ctypes.string_at(0)


def hang_in_c() -> None:
    ctypes.PyDLL(None).sleep(1000)  # does not release the interpreter's lock


def hang_in_python() -> None:
    while True:
        time.sleep(0.01)


def fail() -> None:
    raise KeyError("lost")


def exhaust() -> None:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def leave() -> None:
    os._exit(3)


def exit_normally() -> None:
    sys.exit(4)


def kill(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(10)


def multiply() -> None:
    import torch

    torch.set_num_threads(2)
    torch.mm(torch.ones(600, 600), torch.ones(600, 600))


ENDS: dict[str, Callable[[], None]] = {
    f.__name__: f for f in (segfault, hang_in_c, hang_in_python, fail, exhaust, leave)
}
ENDS |= {"exit": exit_normally, "multiply": multiply}
ENDS |= {name: lambda name=name: kill(name) for name in ("SIGKILL", "SIGTERM", "SIGABRT")}


@dataclass(frozen=True)
class Tells:
    """Sends each value, then its process id and whether torch was imported before."""

    things: tuple[Any, ...] = ()

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        for thing in self.things:
            send(thing)
        send((os.getpid(), "torch" in sys.modules))


@dataclass(frozen=True)
class Ends:
    """Sets its stage, sends one message, then ends in one of the ways in ENDS."""

    how: str
    seconds: float = 60.0

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        board.set_stage(2, 1, self.seconds)
        send("begun")
        ENDS[self.how]()


@dataclass(frozen=True)
class Allocates:
    """Allocates memory under a limit, and sends the size or the error."""

    allowed: int
    wanted: int

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        import torch

        limit_memory(self.allowed)
        try:
            allocated = torch.ones(self.wanted, dtype=torch.uint8)
        except RuntimeError as error:
            send(str(error))
        else:
            send(allocated.numel())


@dataclass(frozen=True)
class HangsAndTells:
    """Sends its process id, then ends in one of the ways in ENDS."""

    how: str

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        send(os.getpid())
        ENDS[self.how]()


@dataclass(frozen=True)
class Forks:
    """Sends its process id and that of a copy, in which the job fails or sends a message too."""

    fails: bool

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        parent, copy = os.getpid(), os.fork()
        if copy == 0 and self.fails:
            raise KeyError("lost")
        send(parent)
        send(copy)
