"""Run foreign layers: tensors instead of projections, and random numbers from our seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..errors import UnsupportedError


class FixedOutput(nn.Module):
    """Replaces a projection, and returns a given tensor, whatever it is applied to."""

    output: Tensor | None = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        assert self.output is not None
        return self.output


@contextmanager
def fixed_outputs(layer: nn.Module, **outputs: Tensor) -> Iterator[None]:
    """In this context the layer's `FixedOutput` modules of these names return these tensors; afterwards they hold
    none."""
    try:
        for name, tensor in outputs.items():
            getattr(layer, name).output = tensor
        yield
    finally:
        for name in outputs:
            getattr(layer, name).output = None


@contextmanager
def seeded_generator(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Code in this context uses torch's global generator, of the CPU or a CUDA device, with a seed; its state is
    restored.

    Unlike ``torch.manual_seed``, which seeds every device's generator and could not be undone.
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
