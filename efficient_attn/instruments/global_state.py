"""Watch the global state of a process: threads, dtypes, random numbers, inputs, the clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import integrity


class GlobalStateChanged(Exception):
    """A mechanism changed global state."""


@dataclass(frozen=True)
class GlobalSetting:
    """A setting of the whole process. describe: a change, from the values before and after it."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    describe: Callable[[Any, Any], str]


def _describe_switch(label: str) -> Callable[[Any, Any], str]:
    return lambda before, after: f"it turned {label} {'on' if after else 'off'} and did not restore it"


def _describe_change(label: str) -> Callable[[Any, Any], str]:
    return lambda before, after: f"it changed {label} from {before} to {after}"


_TINY = torch.tensor(1e-40)


def _flushes_denormals() -> bool:
    """Whether denormal numbers are flushed to zero, which torch does not report."""
    return not bool((_TINY * 1).item())


def _set_niceness(value: int) -> None:
    with suppress(PermissionError):  # only root may lower the niceness again
        os.setpriority(os.PRIO_PROCESS, 0, value)


def _list_settings() -> Iterator[GlobalSetting]:
    yield GlobalSetting(torch.get_num_threads, torch.set_num_threads, _describe_change("the number of threads"))
    yield GlobalSetting(torch.get_default_dtype, torch.set_default_dtype, _describe_change("the default dtype"))
    yield GlobalSetting(torch.is_grad_enabled, torch.set_grad_enabled, _describe_switch("gradients"))
    deterministic = torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    yield GlobalSetting(*deterministic, _describe_switch("deterministic algorithms"))
    precision = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    yield GlobalSetting(*precision, _describe_change("the precision of matrix products"))
    denormals = _flushes_denormals, torch.set_flush_denormal
    yield GlobalSetting(*denormals, _describe_switch("the flushing of denormal numbers"))
    onednn = torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled
    yield GlobalSetting(*onednn, _describe_switch("oneDNN's kernels"))
    if hasattr(os, "sched_getaffinity"):
        affinity = lambda: os.sched_getaffinity(0), lambda cpus: os.sched_setaffinity(0, cpus)
        yield GlobalSetting(*affinity, _describe_change("the processors that it may use"))
    if hasattr(os, "getpriority"):
        niceness = lambda: os.getpriority(os.PRIO_PROCESS, 0), _set_niceness
        yield GlobalSetting(*niceness, _describe_change("the process's niceness"))


SETTINGS = tuple(_list_settings())


@dataclass(frozen=True)
class GlobalState:
    """The process's settings at one moment, in the order of `SETTINGS`, and torch's random state."""

    values: tuple[Any, ...]
    random: Tensor

    @classmethod
    def capture(cls) -> GlobalState:
        """The current settings and random state."""
        return cls(tuple(setting.read() for setting in SETTINGS), torch.get_rng_state())

    def restore(self) -> None:
        """Restore them, and measuring functions that were replaced."""
        for setting, value in zip(SETTINGS, self.values, strict=True):
            if setting.read() != value:
                setting.write(value)
        torch.set_rng_state(self.random)
        integrity.restore()

    def describe_change(self) -> str | None:
        """A description of the first change since then; None without changes."""
        if reason := integrity.describe_replacement():
            return reason
        current = GlobalState.capture()
        for setting, a, b in zip(SETTINGS, self.values, current.values, strict=True):
            if a != b:
                return setting.describe(a, b)
        if not torch.equal(current.random, self.random):
            return "it used torch's global random number generator, so that results depend on earlier calls"
        return None


@contextmanager
def watch_global_state(tensors: Sequence[Tensor] = ()) -> Iterator[None]:
    """Raise `GlobalStateChanged` if code in this context changes global settings or writes into these tensors.

    The settings are restored in any case, so that later mechanisms are not affected.
    """
    before, versions = GlobalState.capture(), [t._version for t in tensors]
    try:
        yield
        reason = before.describe_change()
        if reason is None and versions != [t._version for t in tensors]:
            reason = "it wrote into its inputs"
        if reason is not None:
            raise GlobalStateChanged(reason)
    finally:
        if before.describe_change():
            before.restore()
