"""What it takes to run somebody else's code inside ours: tensors in place of projections, random numbers of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..errors import UnsupportedError


class Handed(nn.Module):
    """Stands where a projection stood, and hands over what it was given, whatever it is applied to."""

    given: Tensor | None = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        assert self.given is not None
        return self.given


@contextmanager
def handing(layer: nn.Module, **given: Tensor) -> Iterator[None]:
    """Inside, the layer's `Handed` of these names hand over these tensors; after, the layer holds none of them."""
    try:
        for name, tensor in given.items():
            getattr(layer, name).given = tensor
        yield
    finally:
        for name in given:
            getattr(layer, name).given = None


@contextmanager
def drawing_from(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """What runs inside draws from torch's global generator, on the CPU or a CUDA device; it is put back as it was.

    Not ``torch.manual_seed``, which seeds every device's generator and so could not be undone.
    """
    generator = torch.default_generator
    if device is not None and device.type == "cuda":
        generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    elif device is not None and device.type != "cpu":
        raise UnsupportedError(f"random numbers of a seed's own are drawn on the CPU and on CUDA, not on {device.type}")
    before = generator.get_state()
    try:
        generator.manual_seed(seed % 2**63)
        yield
    finally:
        generator.set_state(before)
