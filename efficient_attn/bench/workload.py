"""What one call of a case is: the inputs, the mask, and the function that is timed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..contract.mechanism import Attention
from ..contract.shapes import Sample, Shape, Values
from ..contract.state import state_bytes
from ..errors import UnsupportedError
from ..instruments.guard import Meddled
from ..instruments.memory import Footprint, footprint, training_footprint
from ..instruments.timing import Timed
from .case import Case
from .padding import make_mask
from .place import RESERVE

BACKWARD = 2.5  # a backward pass does five matrix products where the forward does two
FLUSH = 512 * 2**20  # bytes written to drive everything else out of the caches
SETTLING = 2  # decode steps after a new state that are not timed: they find the caches full of what made it
LEAST_STEPS = 16  # decode steps a pass at least


class Workload:
    """A case made ready to run. Building it creates the mechanism and draws the inputs."""

    def __init__(self, case: Case, shape: Shape | None = None) -> None:
        self.case, self.shape = case, shape or case.shape
        self.attn: Attention = case.create()
        self.call: Callable[..., Tensor] = self.attn
        self.graph_breaks = 0
        self.mask = make_mask(case, self.shape)
        self.sample = draw(case, self.attn, self.shape)

    def warm(self) -> None:
        """Have the mechanism compiled where the case asks for that; its first call then takes a while."""
        if not self.case.cell.place.compiled:
            return
        if self.case.cell.place.mode not in ("forward", "forward_backward"):
            raise UnsupportedError(f"{self.case.cell.place.mode}: only forward and forward_backward are compiled")
        self.call, before = torch.compile(self.attn), count_graph_breaks()
        getattr(self, str(self.case.cell.place.mode))()
        self.graph_breaks = count_graph_breaks() - before

    @property
    def bytes_moved(self) -> int:
        """What any implementation must read and write: inputs and results once, when decoding the state's tensors.

        Padding need not be read.
        """
        if self.case.cell.place.mode == "decode":
            return state_bytes(self.after_context(self.shape.m))
        s, size = self.shape, self.sample.q.element_size()
        once = sum(x.numel() for x in self.drawn) + s.batch * s.heads * s.n * s.value_dim
        needed = once * sum(self.case.row_lengths) // (self.case.shape.batch * self.case.shape.n)
        return needed * size * (2 if self.case.cell.place.mode == "forward_backward" else 1)

    def footprint(self) -> Footprint:
        """What one call allocates, and the kernels that it runs."""
        device = self.case.cell.place.device
        if self.case.cell.place.mode == "forward_backward":
            leaves = self._leaves()
            return training_footprint(
                lambda: self._forward(leaves), lambda out: self._backward(leaves, out), device=device
            )
        if self.case.cell.place.mode == "decode":
            return footprint(self.decoding.step, device=device)
        return footprint(getattr(self, str(self.case.cell.place.mode)), device=device)

    def clamped_rows(self) -> int | None:
        """How many of a pass' rows had no sum of weights to be divided by; None where it cannot be told."""
        if self.case.cell.place.mode == "decode" or self.mask.cu_seqlens is not None:
            return None
        return self.attn.clamped_rows(*self.tensors, self.mask, **self.sample.inputs)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Values]:
        return self.sample.q, self.sample.k, self.sample.v

    @property
    def drawn(self) -> tuple[Tensor, ...]:
        """All that was drawn."""
        return tuple(x for x in (*self.tensors, *self.sample.inputs.values()) if x is not None)

    def forward(self) -> Tensor:
        with torch.no_grad():
            out = self.call(*self.tensors, self.mask, **self.sample.inputs)
            if torch.is_grad_enabled():  # seen only here: what is outside is put back on the way out
                raise Meddled("it turned gradients on and left them so")
        return out

    def forward_backward(self) -> tuple[Tensor, ...]:
        """Gradients of q, k, v, extra inputs and parameters for a fixed gradient of the output."""
        leaves = self._leaves()
        return self._backward(leaves, self._forward(leaves))

    def _leaves(self) -> list[Tensor]:
        return [x.detach().requires_grad_() for x in self.drawn]

    def _forward(self, leaves: list[Tensor]) -> Tensor:
        count = len(leaves) - len(self.sample.inputs)
        q, k, *v = leaves[:count]
        inputs = dict(zip(self.sample.inputs, leaves[count:], strict=True))
        return self.call(q, k, v[0] if v else None, self.mask, **inputs)

    def _backward(self, leaves: list[Tensor], out: Tensor) -> tuple[Tensor, ...]:
        sources = [*leaves, *self.attn.parameters()]
        # a mechanism may leave one unused, fixed weights their queries, say: its gradient is then zero
        return torch.autograd.grad(out, sources, self._upstream(out), allow_unused=True, materialize_grads=True)

    def _upstream(self, out: Tensor) -> Tensor:
        if not hasattr(self, "_gradient"):
            generator = torch.Generator().manual_seed(self.case.cell.effort.seed)
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
            state = self.new_state(positions)
            return self.attn.absorb(self.sample.k, self.sample.v, state, **of_keys(self.attn, self.sample))

    @cached_property
    def decoding(self) -> Decoding:
        return Decoding(self)

    def subject(self) -> Timed:
        """What the case's mode times, under the conditions that the cell asks for."""
        place = self.case.cell.place
        if place.mode == "decode":
            subject = self.decoding.subject()
        else:
            call = getattr(self, str(place.mode))
            subject = repeat(replay(call) if place.cuda_graph else call)
        return subject if place.cache == "warm" else chill(subject, place.device)


class Decoding:
    """Single steps after a context that the state has absorbed, one after the other as in generation."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.token = draw(workload.case, workload.attn, replace(workload.shape, n=1, m=1))
        self.reset()

    def reset(self) -> None:
        self.state = None  # released first, so that two states never exist at once
        self.state = self.workload.after_context(self.workload.shape.m + RESERVE)

    def settle(self) -> None:
        """A new state, and the first steps after it."""
        self.reset()
        for _ in range(SETTLING):
            self.step()

    def step(self) -> Tensor:
        q, k, v, inputs = self.token
        with torch.no_grad():
            out, self.state = self.workload.attn.step(q, k, v, self.state, **inputs)
        return out

    def subject(self) -> Timed:
        return Timed(repeat(self.step).run, self.settle, limit=RESERVE - SETTLING, least=LEAST_STEPS)


def chill(subject: Timed, device: str) -> Timed:
    """The same with its data driven out of the caches before every call, which is then timed alone."""
    # several times what last-level caches hold today; the larger ones of GPUs have 50 MiB
    other = torch.zeros(FLUSH // 4, device=device)

    def reset() -> None:
        subject.reset()
        other.add_(1)

    return Timed(subject.run, reset, limit=1)


def replay(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a captured CUDA graph, launched whole instead of kernel by kernel."""
    if not torch.cuda.is_available():
        raise UnsupportedError("CUDA graphs need a CUDA device")
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):  # capture must not be the first time
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def count_graph_breaks() -> int:
    """How often torch.compile had to leave its graph so far, in this process."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def repeat(call: Callable[[], Any]) -> Timed:
    def run(count: int) -> None:
        for _ in range(count):
            call()

    return Timed(run)


def of_keys(attn: Attention, sample: Sample) -> dict[str, Tensor]:
    """The further inputs that belong to keys: all that a state takes in without being asked for an output."""
    return {name: x for name, x in sample.inputs.items() if attn.traits.inputs[name].side == "key"}


def draw(case: Case, attn: Attention, shape: Shape) -> Sample:
    """Inputs of a shape, a pure function of the seed and the sizes: all mechanisms of a cell get the same queries."""
    sizes = (
        f"{case.cell.effort.seed} {shape.batch} {shape.heads} {shape.n} {shape.m} {shape.head_dim} {shape.value_dim}"
    )
    generator = torch.Generator().manual_seed(zlib.crc32(sizes.encode()))  # of a wider seed torch drops the upper half
    dtype = getattr(torch, case.cell.place.dtype)
    return attn.sample(shape, generator=generator, dtype=dtype, device=case.cell.place.device)
