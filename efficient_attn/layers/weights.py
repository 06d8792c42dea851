"""Initial weights. They depend on a seed and a name only, and do not use torch's global generator."""

import zlib

import torch
from torch import Tensor, nn


def make_generator(seed: int, name: str) -> torch.Generator:
    """A generator for a seed and a name, so that random values of different parts are independent."""
    return torch.Generator().manual_seed(zlib.crc32(f"{name} {seed}".encode()))


def make_projection(width: int, size: int, *, bias: bool, seed: int, name: str) -> nn.Linear:
    """A linear map with Xavier-uniform weights and zero biases."""
    # through the meta device, where torch's own initialization does not use the global generator
    linear = nn.Linear(width, size, bias=bias, device="meta").to_empty(device="cpu")
    nn.init.xavier_uniform_(linear.weight, generator=make_generator(seed, name))
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def make_embedding(count: int, width: int, *, seed: int, name: str) -> nn.Embedding:
    """An embedding of ``count`` tokens, drawn from N(0, 1 / width)."""
    vectors = torch.randn(count, width, generator=make_generator(seed, name)) * width**-0.5
    return nn.Embedding(count, width, _weight=vectors)


def draw_uniform(module: nn.Module, bound: float, *, seed: int, name: str) -> None:
    """Draw all parameters of a module uniformly from [-bound, bound]."""
    generator = make_generator(seed, name)
    with torch.no_grad():
        for parameter in module.parameters():
            values: Tensor = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
            parameter.copy_(values)
