"""What one call of a case is: the inputs, the mask, and the function that is timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...contract.decode_state import state_bytes
from ...contract.mechanism import Attention
from ...contract.shapes import Sample, Shape
from ...errors import UnsupportedError
from ...instruments.global_state import GlobalStateChanged
from ...instruments.memory import Footprint, measure_footprint, measure_training_footprint
from ..case import Case
from .inputs import draw_inputs, list_tensors
from .padded_rows import make_mask

BACKWARD = 2.5  # a backward pass does five matrix products where the forward does two


class Workload:
    """A case made ready to run. Building it creates the mechanism and draws the inputs."""

    def __init__(self, case: Case, shape: Shape | None = None) -> None:
        self.case, self.shape = case, shape or case.shape
        self.attn: Attention = case.create()
        self.call: Callable[..., Tensor] = self.attn
        self.graph_breaks = 0
        self.mask = make_mask(case, self.shape)
        self.sample = draw_inputs(case, self.attn, self.shape)

    def warm(self) -> None:
        """Have the mechanism compiled where the case asks for that, or where it does so itself: in a call that is no
        other's warming up, and that takes a while."""
        mode = self.case.group.config.mode
        if self.case.group.config.compiled:
            if mode not in ("forward", "forward_backward"):
                raise UnsupportedError(f"{mode}: only forward and forward_backward are compiled")
            self.call, before = torch.compile(self.attn), count_graph_breaks()
            self.make_call(self.sample)
            self.graph_breaks = count_graph_breaks() - before
        elif self.attn.compiles and mode != "decode":  # where first steps are not timed
            self.make_call(self.sample)

    def make_call(self, sample: Sample) -> Any:
        """One call of the case's mode, but for decoding, on this sample."""
        return getattr(self, str(self.case.group.config.mode))(sample)

    @cached_property
    def oracle(self) -> Attention:
        """The same mechanism as its own dense oracle."""
        return self.case.create(backend="dense")

    @property
    def bytes_moved(self) -> int:
        """What any implementation must read and write: inputs and results once; when decoding what the step sees.

        Padding need not be read.
        """
        if self.case.group.config.mode == "decode":
            return min(state_bytes(self.after_context(self.shape.m)), self._visible_bytes)
        s, size = self.shape, self.sample.q.element_size()
        once = sum(x.numel() for x in self.sampled_inputs) + s.batch * s.heads * s.n * s.value_dim
        needed = once * sum(self.case.row_lengths) // (self.case.shape.batch * self.case.shape.n)
        return needed * size * (2 if self.case.group.config.mode == "forward_backward" else 1)

    @property
    def _visible_bytes(self) -> int:
        """The keys and values that the newest position sees: of a whole past a strided pattern reads few."""
        m, attn = self.shape.m, self.attn
        pairs = attn.pairs(1, m, True)
        visible_keys = min(attn.growth.step_cost(m), math.inf if pairs is None else pairs)
        keys = (self.sample.k, self.sample.v)
        position = sum(x.numel() // m for x in keys if x is not None) * self.sample.q.element_size()
        return math.ceil(visible_keys * position)

    def footprint(self, step: Callable[[], object] | None = None) -> Footprint:
        """What one call allocates, and the kernels that it runs. step: the call, when decoding."""
        device = self.case.group.config.device
        if self.case.group.config.mode == "forward_backward":
            leaves = make_leaves(self.sample)
            return measure_training_footprint(
                lambda: self._forward(leaves),
                lambda out: self._backward(leaves, out, self.upstream(out)),
                device=device,
            )
        return measure_footprint(step or (lambda: self.make_call(self.sample)), device=device)

    def clamped_rows(self) -> int | None:
        """How many of a pass' rows had no sum of weights to be divided by; None where it cannot be told."""
        if self.case.group.config.mode == "decode" or self.mask.cu_seqlens is not None:
            return None
        q, k, v, inputs = self.sample
        return self.attn.clamped_rows(q, k, v, self.mask, **inputs)

    @property
    def sampled_inputs(self) -> tuple[Tensor, ...]:
        """All that was drawn."""
        return tuple(list_tensors(self.sample))

    def forward(self, sample: Sample) -> Tensor:
        q, k, v, inputs = sample
        with torch.no_grad():
            out = self.call(q, k, v, self.mask, **inputs)
            if torch.is_grad_enabled():  # seen only here: what is outside is put back on the way out
                raise GlobalStateChanged("it turned gradients on and left them so")
        return out

    def forward_backward(self, sample: Sample, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
        """The output, and gradients of q, k, v, extra inputs and parameters for a gradient of the output, fixed unless
        one is given.
        """
        leaves = make_leaves(sample)
        out = self._forward(leaves)
        return out, *self._backward(leaves, out, self.upstream(out) if upstream is None else upstream)

    def _forward(self, leaves: Sample) -> Tensor:
        q, k, v, inputs = leaves
        return self.call(q, k, v, self.mask, **inputs)

    def _backward(self, leaves: Sample, out: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
        # a mechanism may leave one unused, fixed weights their queries, say: its gradient is then zero
        sources = [*list_tensors(leaves), *self.attn.parameters()]
        return torch.autograd.grad(out, sources, upstream, allow_unused=True, materialize_grads=True)

    def upstream(self, out: Tensor) -> Tensor:
        """The fixed gradient of an output."""
        if not hasattr(self, "_gradient"):
            generator = torch.Generator().manual_seed(self.case.group.sampling.seed)
            self._gradient = torch.randn(out.shape, generator=generator).to(out)
        return self._gradient

    def prefill(self, sample: Sample) -> Tensor:
        """A whole prompt through `step`, into a new state; its output."""
        q, k, v, inputs = sample
        with torch.no_grad():
            return self.attn.step(q, k, v, self.new_state(self.shape.m), **inputs)[0]

    def new_state(self, positions: int) -> Any:
        return self.attn.init_state(self.shape.batch, positions, self.sample.q.dtype, self.sample.q.device)

    def after_context(self, positions: int, sample: Sample | None = None) -> Any:
        """A state made for so many positions, which has taken in all keys and values."""
        sample = sample or self.sample
        with torch.no_grad():
            state = self.new_state(positions)
            return self.attn.absorb(sample.k, sample.v, state, **list_key_inputs(self.attn, sample))


def make_leaves(sample: Sample) -> Sample:
    """The same inputs, wanting gradients, each one of its own even where one tensor stands for two."""
    q, k, v, inputs = sample
    made = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    values = None if v is None else v.detach().requires_grad_()
    return Sample(q.detach().requires_grad_(), k.detach().requires_grad_(), values, made)


def count_graph_breaks() -> int:
    """How often torch.compile had to leave its graph so far, in this process."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def list_key_inputs(attn: Attention, sample: Sample) -> dict[str, Tensor]:
    """The further inputs that belong to keys: all that a state takes in without being asked for an output."""
    return {name: x for name, x in sample.inputs.items() if attn.traits.inputs[name].side == "key"}
