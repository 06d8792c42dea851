"""Jobs for workers that end in every way a process can end. In a module of their own: workers import them by name."""

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
    ctypes.PyDLL(None).sleep(1000)  # keeps the interpreter's lock all the while


def hang_in_python() -> None:
    while True:
        time.sleep(0.01)


def fail() -> None:
    raise KeyError("lost")


def leave() -> None:
    os._exit(3)


def exit_politely() -> None:
    sys.exit(4)


def kill(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(10)


def multiply() -> None:
    import torch

    torch.set_num_threads(2)
    torch.mm(torch.ones(600, 600), torch.ones(600, 600))


ENDS: dict[str, Callable[[], None]] = {f.__name__: f for f in (segfault, hang_in_c, hang_in_python, fail, leave)}
ENDS |= {"exit": exit_politely, "multiply": multiply}
ENDS |= {name: lambda name=name: kill(name) for name in ("SIGKILL", "SIGTERM", "SIGABRT")}


@dataclass(frozen=True)
class Tells:
    """Tells each thing, then its process and the modules that were there from the start."""

    things: tuple[Any, ...] = ()

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        for thing in self.things:
            send(thing)
        send((os.getpid(), "torch" in sys.modules))


@dataclass(frozen=True)
class Ends:
    """Says what it is at, tells one thing, then ends in some way."""

    how: str
    seconds: float | None = None

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        board.set_stage(2, 1, self.seconds)
        send("begun")
        ENDS[self.how]()


@dataclass(frozen=True)
class Allocates:
    """Takes bytes that the limit does not allow, and some that it does."""

    allowed: int
    wanted: int

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        import torch

        limit_memory(self.allowed)
        try:
            held = torch.ones(self.wanted, dtype=torch.uint8)
        except RuntimeError as error:
            send(str(error))
        else:
            send(held.numel())


@dataclass(frozen=True)
class HangsAndTells:
    """Tells its process, then hangs."""

    how: str

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        send(os.getpid())
        ENDS[self.how]()
