"""A watch over what all mechanisms of a process share: threads, dtypes, random numbers, inputs, the clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import integrity


class Meddled(Exception):
    """A mechanism changed what is not its own."""


@dataclass(frozen=True)
class Setting:
    """Something that holds for the whole process. say: what was done to it, of its value before and now."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    say: Callable[[Any, Any], str]


def _turned(what: str) -> Callable[[Any, Any], str]:
    return lambda before, now: f"it turned {what} {'on' if now else 'off'} and left them so"


def _changed(what: str) -> Callable[[Any, Any], str]:
    return lambda before, now: f"it changed {what} from {before} to {now}"


_TINY = torch.tensor(1e-40)


def _flushes() -> bool:
    """Whether numbers too small to be normal become zero; torch tells nobody."""
    return not bool((_TINY * 1).item())


def _set_niceness(value: int) -> None:
    with suppress(PermissionError):  # who made itself nicer may not go back unless it is root; it is told in any case
        os.setpriority(os.PRIO_PROCESS, 0, value)


def _settings() -> Iterator[Setting]:
    yield Setting(torch.get_num_threads, torch.set_num_threads, _changed("the number of threads"))
    yield Setting(torch.get_default_dtype, torch.set_default_dtype, _changed("the default dtype"))
    yield Setting(torch.is_grad_enabled, torch.set_grad_enabled, _turned("gradients"))
    deterministic = torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    yield Setting(*deterministic, _turned("deterministic algorithms"))
    precision = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    yield Setting(*precision, _changed("the precision of matrix products"))
    yield Setting(_flushes, torch.set_flush_denormal, _turned("the flushing of denormal numbers"))
    yield Setting(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, _turned("oneDNN's kernels"))
    if hasattr(os, "sched_getaffinity"):
        affinity = lambda: os.sched_getaffinity(0), lambda cpus: os.sched_setaffinity(0, cpus)
        yield Setting(*affinity, _changed("the processors that it may use"))
    if hasattr(os, "getpriority"):
        yield Setting(lambda: os.getpriority(os.PRIO_PROCESS, 0), _set_niceness, _changed("the process's niceness"))


SETTINGS = tuple(_settings())


@dataclass(frozen=True)
class Globals:
    """The process's settings at one moment, in the order of `SETTINGS`, and the state of torch's random numbers."""

    values: tuple[Any, ...]
    random: Tensor

    @classmethod
    def now(cls) -> Globals:
        return cls(tuple(setting.read() for setting in SETTINGS), torch.get_rng_state())

    def restore(self) -> None:
        for setting, value in zip(SETTINGS, self.values, strict=True):
            if setting.read() != value:
                setting.write(value)
        torch.set_rng_state(self.random)
        integrity.mend()

    def changed(self) -> str | None:
        """What differs now, in words; None when nothing does."""
        if reason := integrity.broken():
            return reason
        now = Globals.now()
        for setting, a, b in zip(SETTINGS, self.values, now.values, strict=True):
            if a != b:
                return setting.say(a, b)
        if not torch.equal(now.random, self.random):
            return "it drew from torch's global random numbers, so results depend on what ran before"
        return None


@contextmanager
def watched(tensors: Sequence[Tensor] = ()) -> Iterator[None]:
    """Raise `Meddled` when what runs inside changed the process's settings or wrote into these tensors.

    The settings are put back in any case, so that the mechanisms that follow are not touched.
    """
    before, versions = Globals.now(), [t._version for t in tensors]
    try:
        yield
        reason = before.changed()
        if reason is None and versions != [t._version for t in tensors]:
            reason = "it wrote into its inputs"
        if reason is not None:
            raise Meddled(reason)
    finally:
        if before.changed():
            before.restore()
