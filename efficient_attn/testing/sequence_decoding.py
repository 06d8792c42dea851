"""Decoding of a call with a state, whose rows are compared with expected ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from .mechanism_call import Call
from .probing import accepts_chunks
from .subject import Subject
from .tensor_comparison import GRADIENT_TOLERANCES, TOLERANCES, assert_close


def new_state(attn: Attention, call: Call, max_len: int | None = None) -> Any:
    """An empty state for the positions of a call, or for max_len positions."""
    q = call["q"]
    return attn.init_state(q.shape[0], max_len or q.shape[2], q.dtype, q.device)


def supported_sizes(subject: Subject, sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes of steps, or single positions if a step of the mechanism accepts only one."""
    return tuple(sizes) if accepts_chunks(subject) else (1,) * sum(sizes)


def step_tolerance(subject: Subject, dtype: torch.dtype, *, rounded: bool = True) -> float:
    """The tolerance of the rows of steps: the declared one of a lossy state, if it is larger than that of the dtype.

    rounded: whether the expected rows have the same dtype, and not float64.
    """
    tolerances = GRADIENT_TOLERANCES if rounded else TOLERANCES
    return max(tolerances[dtype], subject.traits.state_tolerance)


@dataclass
class Decoding:
    """Decodes a call with one state, and compares the rows with those of ``want``.

    want: in the dtype of the call, or in float64, which is compared within the tolerance of the call's dtype.
    """

    subject: Subject
    attn: Attention
    call: Call
    want: Tensor
    at: int = 0  # the next position
    state: Any = None  # before that position; by default an empty one

    def __post_init__(self) -> None:
        if self.state is None:
            self.state = new_state(self.attn, self.call)

    def step(self, sizes: Sequence[int], label: str) -> list[tuple[slice, Tensor]]:
        """Decode the next positions in steps of these sizes, and return positions and output of each."""
        outputs = []
        dtype, sizes = self.call["q"].dtype, supported_sizes(self.subject, sizes)
        for at, out, state in self.call.steps(self.attn, self.state, sizes, self.at):
            step = f"positions {at.start} to {at.stop - 1}, {label}"
            assert out.dtype == dtype, f"{step}: {dtype} in, {out.dtype} out"
            tolerance = step_tolerance(self.subject, dtype, rounded=self.want.dtype == dtype)
            assert_close(out, self.want[:, :, at], step, tolerance=tolerance)
            self.state = state
            outputs.append((at, out))
        self.at += sum(sizes)
        return outputs

    def absorb(self, length: int) -> None:
        """Absorb the next positions, one after another if steps accept only one."""
        for size in supported_sizes(self.subject, (length,)):
            self.state = self.call.both(slice(self.at, self.at + size)).absorb(self.attn, self.state)
            self.at += size


def start_decodings(subject: Subject, n: int, *seeds: int) -> list[Decoding]:
    """Decodings of calls that are drawn with these seeds, all on one instance."""
    shape = subject.shape(n, batch=1, heads=2 * (subject.attn.kv_heads or 1))
    attn = subject.make(shape)
    calls = [subject.draw(shape, mask=Mask(causal=True), seed=seed) for seed in seeds]
    return [Decoding(subject, attn, call, call.run(attn)) for call in calls]
