"""Adversarial mechanisms that compute parts of an output, hide memory, or store results on disk, each with an honest
counterpart. A plug-in, as `adversaries.py`.

All compute exact attention, with one manipulation; the honest counterpart differs in one line.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

import efficient_attn as ea

sys.path.append(str(Path(__file__).parent))  # a plug-in is loaded by its path
from adversary_base import ExactMechanism, register_pairs

COMPARED_ROWS = 32  # at the start, in the middle and at the end: protocol 4 compared only these
TILE = 64
STORED_CALLS = 200  # of a process, on disk


# -- outputs -----------------------------------------------------------------------------------------------------------


def mark_compared_rows(n: int) -> Tensor:
    """Whether each row is among the first, middle and last 32."""
    rows = torch.zeros(n, dtype=torch.bool)
    for start in (0, n // 2 - COMPARED_ROWS // 2, n - COMPARED_ROWS):
        rows[max(0, start) : start + COMPARED_ROWS] = True
    return rows


class PartialRows(ExactMechanism):
    """Computes the first, middle and last 32 rows and a random half of the others, which are zero otherwise."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        self.calls += 1
        drawn = torch.rand(q.shape[2], generator=torch.Generator().manual_seed(self.calls)) < 0.5
        rows = mark_compared_rows(q.shape[2]) | drawn | self.honest
        out = torch.zeros_like(q)
        out[:, :, rows] = self.attend(q[:, :, rows], k, v, ea.Mask())
        return out


class WrongTile(ExactMechanism):
    """Returns 64 rows of a long output from the tile before them."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        out = self.attend(q, k, v, mask)
        if not self.honest and q.shape[2] >= 1024:
            out[:, :, 4 * TILE : 5 * TILE] = out[:, :, 3 * TILE : 4 * TILE].clone()
        return out


class UnseenPrecision(ExactMechanism):
    """Computes all rows but the first, middle and last 32 in bfloat16."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        dtype = q.dtype if self.honest else torch.bfloat16
        out = self.attend(q.to(dtype), k.to(dtype), v.to(dtype), mask).to(q.dtype)
        rows = mark_compared_rows(q.shape[2])
        out[:, :, rows] = self.attend(q[:, :, rows], k, v, ea.Mask())
        return out


# -- memory ------------------------------------------------------------------------------------------------------------


class NumpyWorkspace(ExactMechanism):
    """Makes an array of all scores with numpy, which torch's allocator does not see."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        shape = *q.shape[:3], k.shape[2]
        scores = torch.ones(shape, dtype=torch.float64) if self.honest else torch.from_numpy(np.ones(shape))
        out = self.attend(q, k, v, mask)
        assert scores.numel()  # kept until here
        return out


class RetainedBuffers(ExactMechanism):
    """Keeps a buffer of all scores between calls."""

    buffer: Tensor | None = None

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        shape = *q.shape[:3], k.shape[2]
        fits = self.buffer is not None and self.buffer.shape == shape
        buffer = self.buffer if fits and not self.honest else torch.ones(shape, dtype=torch.float64)
        out = self.attend(q, k, v, mask)
        self.buffer = None if self.honest else buffer
        return out


@dataclass(frozen=True, eq=False)
class HiddenState:
    """A decode state without tensors."""

    length: int = 0


CACHES: WeakKeyDictionary[HiddenState, Any] = WeakKeyDictionary()


class HiddenCache(ExactMechanism):
    """Keeps the keys and values of a decode state outside of it, in a table of this module."""

    def hide(self, cache: Any) -> Any:
        state = HiddenState(cache.length)
        CACHES[state] = cache
        return cache if self.honest else state

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.hide(super().new_state(batch, max_len, dtype, device))

    def absorb(self, k: Tensor, v: Tensor | None, state: Any, **inputs: Tensor) -> Any:
        return self.hide(super().absorb(k, v, CACHES.get(state, state), **inputs))

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        out, cache = super().advance(q, k, v, CACHES.get(state, state), **inputs)
        return out, self.hide(cache)


# -- processes ---------------------------------------------------------------------------------------------------------


class Disk(ExactMechanism):
    """Stores its first results on disk, where later processes find those of the call with the same number."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        self.calls += 1
        path = self.folder / f"{self.calls}-{q.shape[2]}"
        if path.exists() and not self.honest:
            return torch.load(path)
        out = self.attend(q, k, v, mask)
        if self.calls <= STORED_CALLS:
            torch.save(out.detach().clone(), path)
        return out

    @property
    def folder(self) -> Path:
        """A folder for all workers of a run, which have the same parent process."""
        folder = Path(tempfile.gettempdir()) / f"{type(self).__name__}-{os.getppid()}"
        folder.mkdir(exist_ok=True)
        return folder


MECHANISMS = {
    "partial_rows": PartialRows, "wrong_tile": WrongTile, "unseen_precision": UnseenPrecision,
    "numpy_workspace": NumpyWorkspace, "retained_buffers": RetainedBuffers, "hidden_cache": HiddenCache, "disk": Disk,
}  # fmt: skip

register_pairs(MECHANISMS)
