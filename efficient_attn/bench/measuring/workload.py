"""The workload of a case: its mechanism, inputs and mask, and the call that is timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ...contract.mechanism import Attention
from ...contract.shapes import Sample, Shape
from ...errors import UnsupportedError
from ...instruments.global_state import GlobalStateChanged
from ...instruments.memory import Footprint, measure_footprint, measure_growth
from ..case import Case
from .held_state import HeldState, measure_held_state
from .inputs import draw_inputs, list_tensors, make_inputs
from .padded_rows import make_mask, supports_positions

BACKWARD = 2.5  # the backward pass computes five matrix products, the forward pass two


class Workload:
    """A case with its mechanism and inputs. shape: another one than the case's, for verification."""

    def __init__(self, case: Case, shape: Shape | None = None) -> None:
        self.case, self.shape = case, shape or case.shape
        self.attn: Attention = case.create()
        self.call: Callable[..., Tensor] = self.attn
        self.graph_breaks = 0
        self.mask = make_mask(case, self.shape)
        self.sample = draw_inputs(case, self.attn, self.shape)
        self._gradient: Tensor | None = None

    def warm(self) -> None:
        """Make the slow call in which the mechanism is compiled, if the case requests it or it compiles itself, or in
        which a GPU's libraries are loaded and its kernels compiled. When decoding, it is a step from an empty state."""
        mode, device = self.case.group.config.mode, self.case.group.config.device
        if self.case.group.config.compiled:
            if mode not in ("forward", "forward_backward"):
                raise UnsupportedError(f"{mode}: only forward and forward_backward are compiled")
            self.call, before = torch.compile(self.attn), count_graph_breaks()
            self.make_call(self.sample)
            self.graph_breaks = count_graph_breaks() - before
        elif self.attn.compiles or device == "cuda":
            if mode == "decode":
                self._make_first_step()
            else:
                self.make_call(self.sample)

    def _make_first_step(self) -> None:
        q, k, v, inputs = draw_inputs(self.case, self.attn, replace(self.shape, n=1, m=1))
        with torch.no_grad():
            self.attn.step(q, k, v, self.new_state(1), **inputs)

    def make_call(self, sample: Sample) -> Any:
        """One call of the case's mode, except decoding, on this sample."""
        return getattr(self, str(self.case.group.config.mode))(sample)

    @cached_property
    def oracle(self) -> Attention:
        """The same mechanism as its dense reference."""
        return self.case.create(backend="dense")

    @cached_property
    def reference_supports_positions(self) -> bool:
        """Whether the reference computes rows at ``Mask.query_positions``."""
        return supports_positions(self.oracle, self.sample)

    @cached_property
    def held_state(self) -> HeldState:
        """The size of the decode state after the context. Read it before any other step."""
        device = self.case.group.config.device
        return measure_held_state(self.attn, lambda: self.after_context(self.shape.m), device=device)

    @property
    def bytes_moved(self) -> int:
        """The least number of bytes that any implementation has to read and write: inputs and results once, without
        padding; for a decode step, the keys and values that the newest position sees, or the state if it is smaller."""
        s, size, attn = self.shape, self.sample.q.element_size(), self.attn
        if self.case.group.config.mode == "decode":  # a strided pattern, for one, sees few
            pairs = attn.pairs(1, s.m, True)
            visible_keys = min(attn.growth.step_cost(s.m), math.inf if pairs is None else pairs)
            position = size * sum(x.numel() // s.m for x in (self.sample.k, self.sample.v) if x is not None)
            return min(self.held_state.total, math.ceil(visible_keys * position))
        once = sum(x.numel() for x in self.sampled_inputs) + s.batch * s.heads * s.n * s.value_dim
        needed = once * sum(self.case.row_lengths) // (self.case.shape.batch * self.case.shape.n)
        return needed * size * (2 if self.case.group.config.mode == "forward_backward" else 1)

    def footprint(
        self, step: Callable[[], object] | None = None, *, first_call: Callable[[], object] | None = None
    ) -> Footprint:
        """The allocations and kernels of a call after a first one with other inputs. step: the call, when decoding.
        first_call: the first one; it releases its result."""
        device = self.case.group.config.device
        first_call = first_call or partial(self.make_call, *self.draw_others(1)) if step is None else first_call
        if self.case.group.config.mode == "forward_backward":
            leaves = make_leaves(self.sample)
            self.make_upstream()
            forward, backward = partial(self._forward, leaves), partial(self._backward, leaves)
            return measure_footprint(forward, backward, device=device, first_call=first_call)
        return measure_footprint(step or partial(self.make_call, self.sample), device=device, first_call=first_call)

    def measure_growth(self, calls: int) -> int:
        """The least number of bytes that any of some calls, each with other inputs, leaves allocated after its result
        is released."""
        samples = iter(self.draw_others(calls))
        return measure_growth(lambda: self.make_call(next(samples)), calls, device=self.case.group.config.device)

    def draw_others(self, count: int) -> list[Sample]:
        """Further inputs, each with other contents."""
        seed = self.case.group.sampling.seed + 1
        return make_inputs(self.case, self.attn, self.shape, self.sample, seed=seed, sets=count).change(count)

    def clamped_rows(self) -> int | None:
        """The number of rows whose weights nearly cancel in a sample; None if unknown."""
        if self.case.group.config.mode == "decode" or self.mask.cu_seqlens is not None:
            return None
        q, k, v, inputs = self.sample
        return self.attn.clamped_rows(q, k, v, self.mask, **inputs)

    @property
    def sampled_inputs(self) -> tuple[Tensor, ...]:
        """All tensors of the sample."""
        return tuple(list_tensors(self.sample))

    def forward(self, sample: Sample) -> Tensor:
        """The output for a sample, without gradients."""
        q, k, v, inputs = sample
        with torch.no_grad():
            out = self.call(q, k, v, self.mask, **inputs)
            if torch.is_grad_enabled():  # only visible here, because no_grad restores the mode on exit
                raise GlobalStateChanged("it turned gradients on and did not restore the mode")
        return out

    def forward_backward(
        self, sample: Sample, upstream: Tensor | None = None, *, attn: Attention | None = None
    ) -> tuple[Tensor, ...]:
        """The output, and the gradients of q, k, v, further inputs and parameters, for a fixed or a given output
        gradient. attn: another instance than the workload's, for comparison."""
        leaves = make_leaves(sample)
        out = self._forward(leaves, attn)
        return out, *self._backward(leaves, out, upstream, attn)

    def _forward(self, leaves: Sample, attn: Attention | None = None) -> Tensor:
        q, k, v, inputs = leaves
        return (self.call if attn is None else attn)(q, k, v, self.mask, **inputs)

    def _backward(
        self, leaves: Sample, out: Tensor, upstream: Tensor | None = None, attn: Attention | None = None
    ) -> tuple[Tensor, ...]:
        upstream = self.upstream(out) if upstream is None else upstream
        # a mechanism may ignore an input (fixed weights ignore queries): its gradient is zero
        sources = [*list_tensors(leaves), *(attn or self.attn).parameters()]
        return torch.autograd.grad(out, sources, upstream, allow_unused=True, materialize_grads=True)

    def make_upstream(self) -> None:
        """Make the gradient of outputs of the expected size now, so that its memory is not a call's."""
        s = self.shape
        self.upstream(self.sample.q.new_empty(s.batch, s.heads, s.n, s.value_dim))

    def upstream(self, out: Tensor) -> Tensor:
        """The fixed gradient of an output."""
        gradient = self._gradient
        if gradient is None or (gradient.shape, gradient.dtype) != (out.shape, out.dtype):
            generator = torch.Generator().manual_seed(self.case.group.sampling.seed)
            gradient = self._gradient = torch.randn(out.shape, generator=generator).to(out)
        return gradient

    def prefill(self, sample: Sample) -> Tensor:
        """The output of one `step` with the whole prompt and a new state."""
        q, k, v, inputs = sample
        with torch.no_grad():
            return self.attn.step(q, k, v, self.new_state(self.shape.m), **inputs)[0]

    def new_state(self, positions: int) -> Any:
        """An empty decode state for so many positions."""
        return self.attn.init_state(self.shape.batch, positions, self.sample.q.dtype, self.sample.q.device)

    def after_context(self, positions: int, sample: Sample | None = None) -> Any:
        """A decode state for so many positions, with all keys and values absorbed."""
        sample = sample or self.sample
        with torch.no_grad():
            state = self.new_state(positions)
            return self.attn.absorb(sample.k, sample.v, state, **list_key_inputs(self.attn, sample))


def make_leaves(sample: Sample) -> Sample:
    """The same inputs as leaves that require gradients; a tensor that two inputs share becomes two leaves."""
    q, k, v, inputs = sample
    values = None if v is None else v.detach().requires_grad_()
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    return Sample(q.detach().requires_grad_(), k.detach().requires_grad_(), values, leaves)


def count_graph_breaks() -> int:
    """The number of graph breaks of torch.compile in this process."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def list_key_inputs(attn: Attention, sample: Sample) -> dict[str, Tensor]:
    """The further inputs that belong to keys, which `Attention.absorb` gets."""
    return {name: x for name, x in sample.inputs.items() if attn.traits.inputs[name].side == "key"}
