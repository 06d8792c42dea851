"""What one call of a case is: the inputs, the mask, and the function that is timed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..mask import Mask
from ..mechanism import Attention
from ..shapes import Sample, Shape
from .case import Case
from .timing import Subject

RESERVE = 32  # decode steps a pass at most: the context then stays what it is said to be


class Workload:
    """A case made ready to run. Building it creates the mechanism and draws the inputs."""

    def __init__(self, case: Case, shape: Shape | None = None) -> None:
        self.case, self.shape = case, shape or case.shape
        self.attn: Attention = case.create()
        self.mask = Mask(causal=case.cell.causal)
        self.sample = draw(case, self.attn, self.shape)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.sample.q, self.sample.k, self.sample.v

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.attn(*self.tensors, self.mask, **self.sample.inputs)

    def forward_backward(self) -> tuple[Tensor, ...]:
        """Gradients of q, k, v, extra inputs and parameters for a fixed gradient of the output."""
        leaves = [x.detach().requires_grad_() for x in (*self.tensors, *self.sample.inputs.values())]
        inputs = dict(zip(self.sample.inputs, leaves[3:], strict=True))
        out = self.attn(leaves[0], leaves[1], leaves[2], self.mask, **inputs)
        sources = [*leaves, *self.attn.parameters()]
        # a mechanism may leave one unused, fixed weights their queries, say: its gradient is then zero
        return torch.autograd.grad(out, sources, self._upstream(out), allow_unused=True, materialize_grads=True)

    def _upstream(self, out: Tensor) -> Tensor:
        if not hasattr(self, "_gradient"):
            generator = torch.Generator().manual_seed(self.case.cell.seed)
            self._gradient = torch.randn(out.shape, generator=generator).to(out)
        return self._gradient

    def prefill(self) -> tuple[Tensor, Any]:
        """A whole prompt through `step`, into a new state."""
        with torch.no_grad():
            state = self.new_state(self.shape.m)
            return self.attn.step(*self.tensors, state, **self.sample.inputs)

    def new_state(self, positions: int) -> Any:
        return self.attn.init_state(self.shape.batch, positions, self.sample.q.dtype, self.sample.q.device)

    def after_context(self, positions: int) -> Any:
        """A state made for so many positions, which has taken in all keys and values."""
        with torch.no_grad():
            return self.attn.absorb(self.sample.k, self.sample.v, self.new_state(positions))

    @cached_property
    def decoding(self) -> Decoding:
        return Decoding(self)

    def subject(self) -> Subject:
        """What the case's mode times."""
        if self.case.cell.mode == "decode":
            return self.decoding.subject()
        return repeated(getattr(self, str(self.case.cell.mode)))


class Decoding:
    """Single steps behind a context that the state has absorbed, one after the other as in generation."""

    def __init__(self, workload: Workload) -> None:
        if workload.sample.inputs:
            raise UnsupportedError(f"{workload.attn.label}: decoding with extra inputs is not measured yet")
        self.workload = workload
        self.token = draw(workload.case, workload.attn, replace(workload.shape, n=1, m=1))
        self.reset()

    def reset(self) -> None:
        self.state = None  # released first, so that two states never exist at once
        self.state = self.workload.after_context(self.workload.shape.m + RESERVE)

    def step(self) -> Tensor:
        with torch.no_grad():
            out, self.state = self.workload.attn.step(self.token.q, self.token.k, self.token.v, self.state)
        return out

    def subject(self) -> Subject:
        # generation is one step after the other: the first ones behind a new state would find its cache cold
        return Subject(repeated(self.step).run, self.reset, limit=RESERVE, least=RESERVE // 2)


def repeated(call: Callable[[], Any]) -> Subject:
    def run(count: int) -> None:
        for _ in range(count):
            call()

    return Subject(run)


def draw(case: Case, attn: Attention, shape: Shape) -> Sample:
    """Inputs of a shape, a pure function of the seed and the sizes: all mechanisms of a cell get the same queries."""
    sizes = f"{case.cell.seed} {shape.batch} {shape.heads} {shape.n} {shape.m} {shape.head_dim} {shape.value_dim}"
    generator = torch.Generator().manual_seed(zlib.crc32(sizes.encode()))  # of a wider seed torch drops the upper half
    dtype = getattr(torch, case.cell.dtype)
    return attn.sample(shape, generator=generator, dtype=dtype, device=case.cell.device)
