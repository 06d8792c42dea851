"""A watch over what all mechanisms of a process share: threads, dtype, gradient mode, random numbers, inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


class Meddled(Exception):
    """A mechanism changed what is not its own."""


@dataclass(frozen=True)
class Globals:
    """torch's settings for the whole process at one moment."""

    threads: int
    dtype: torch.dtype
    gradients: bool
    deterministic: bool
    random: Tensor

    @classmethod
    def now(cls) -> Globals:
        return cls(
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_rng_state(),
        )

    def restore(self) -> None:
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(self.gradients)
        torch.use_deterministic_algorithms(self.deterministic)
        torch.set_rng_state(self.random)

    def changed(self) -> str | None:
        """What differs now, in words; None when nothing does."""
        now = Globals.now()
        if now.threads != self.threads:
            return f"it changed the number of threads from {self.threads} to {now.threads}"
        if now.dtype != self.dtype:
            return f"it changed the default dtype from {self.dtype} to {now.dtype}"
        if now.gradients != self.gradients:
            return f"it turned gradients {'on' if now.gradients else 'off'} and left them so"
        if now.deterministic != self.deterministic:
            return f"it turned deterministic algorithms {'on' if now.deterministic else 'off'} and left them so"
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
