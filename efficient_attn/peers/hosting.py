"""Run layers of other libraries: given tensors replace their projections, and random numbers come from our seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..contract.mechanism import Attention
from ..errors import UnsupportedError


class FixedOutput(nn.Module):
    """Replaces a projection: returns the tensor that was set, whatever its input."""

    output: Tensor | None = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        assert self.output is not None
        return self.output


def make_layer(create: Callable[[], nn.Module], *projections: str) -> nn.Module:
    """A library's layer in evaluation mode, with a `FixedOutput` for each of these projections.

    The other parameters must be unused: they are on the meta device.
    """
    with torch.device("meta"):  # nothing is allocated, and no random number is drawn
        layer = create()
    for name in projections:
        setattr(layer, name, FixedOutput())
    return layer.eval()


def check_value_width(attn: Attention, q: Tensor, v: Tensor) -> None:
    """Raise `UnsupportedError` for values that are not as wide as keys."""
    if v.shape[-1] != q.shape[-1]:
        raise UnsupportedError(f"{attn.label} requires values as wide as keys, got {v.shape[-1]} and {q.shape[-1]}")


@contextmanager
def fixed_outputs(layer: nn.Module, **outputs: Tensor) -> Iterator[None]:
    """Set the outputs of the layer's `FixedOutput` modules, by name, within this context."""
    try:
        for name, tensor in outputs.items():
            getattr(layer, name).output = tensor
        yield
    finally:
        for name in outputs:
            getattr(layer, name).output = None


@contextmanager
def seeded_generator(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generator of the CPU or of a CUDA device within this context, and restore its state.

    ``torch.manual_seed`` would seed the generators of all devices.
    """
    generator = torch.default_generator
    if device is not None and device.type == "cuda":
        generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    elif device is not None and device.type != "cpu":
        raise UnsupportedError(f"seeded random numbers are drawn on the CPU and on CUDA, not on {device.type}")
    state = generator.get_state()
    try:
        generator.manual_seed(seed % 2**63)
        yield
    finally:
        generator.set_state(state)
