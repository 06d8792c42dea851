"""What it takes to run somebody else's code inside ours: tensors in place of projections, random numbers of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..errors import UnsupportedError


class FixedOutput(nn.Module):
    """Stands where a projection stood, and hands over what it was given, whatever it is applied to."""

    output: Tensor | None = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        assert self.output is not None
        return self.output


@contextmanager
def fixed_outputs(layer: nn.Module, **outputs: Tensor) -> Iterator[None]:
    """Inside, the layer's `Handed` of these names hand over these tensors; after, the layer holds none of them."""
    try:
        for name, tensor in outputs.items():
            getattr(layer, name).output = tensor
        yield
    finally:
        for name in outputs:
            getattr(layer, name).output = None


@contextmanager
def seeded_generator(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """What runs inside draws from torch's global generator, on the CPU or a CUDA device; it is put back as it was.

    Not ``torch.manual_seed``, which seeds every device's generator and so could not be undone.
    """
    generator = torch.default_generator
    if device is not None and device.type == "cuda":
        generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    elif device is not None and device.type != "cpu":
        raise UnsupportedError(f"random numbers of a seed's own are drawn on the CPU and on CUDA, not on {device.type}")
    state = generator.get_state()
    try:
        generator.manual_seed(seed % 2**63)
        yield
    finally:
        generator.set_state(state)
