"""A layer over the ranks of a group, and the same layer in one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.distributed import ContextParallel, get_ranks, join_sequence, split_sequence

D_MODEL, LENGTH = 32, 24


@dataclass(frozen=True)
class LayerCase:
    """options: of the layer. cross: the length of the context, if there is one. steps: of gradient descent before."""

    scheme: str
    causal: bool
    options: dict[str, Any] = field(default_factory=dict)
    cross: int = 0
    padding: bool = False
    autocast: bool = False
    steps: int = 1

    def create(self, group: Any = None) -> ea.MultiHeadAttention:
        """With a group, the layer of a rank."""
        parallel = None if group is None else ContextParallel(self.scheme, group)  # pyright: ignore[reportArgumentType]
        return ea.MultiHeadAttention(D_MODEL, 4, **self.options, context_parallel=parallel)

    def train(self, group: Any = None) -> dict[str, Tensor]:
        """The whole output, the gradient of the input, and those of the parameters, after some steps."""
        generator = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(2, LENGTH, D_MODEL, generator=generator) for _ in range(2))
        context = torch.randn(2, self.cross, D_MODEL, generator=generator) if self.cross else None
        valid = torch.arange(self.cross or LENGTH) >= torch.tensor([[0], [5]]) if self.padding else None
        order = ContextParallel(self.scheme).order(self.causal)  # pyright: ignore[reportArgumentType]

        def select(x: Any) -> Any:
            return x if group is None or x is None else split_sequence(x, order=order, group=group)

        layer, mask, results = self.create(group), ea.Mask(self.causal, key_mask=select(valid)), {}
        for _ in range(self.steps):
            layer.zero_grad()
            part = select(x).clone().requires_grad_()
            with torch.autocast("cpu", enabled=self.autocast):
                out = layer(part, select(context), mask)
            (out * select(weight)).sum().backward()
            assert part.grad is not None
            results = {"out": out.detach(), "x": part.grad}
            if group is not None:
                results = {name: join_sequence(x, order=order, group=group) for name, x in results.items()}
            for name, parameter in layer.named_parameters():
                assert parameter.grad is not None
                if group is not None:  # the gradient of the sum of losses over ranks
                    torch.distributed.all_reduce(parameter.grad, group=group)
                results[name] = parameter.grad.clone()
                parameter.data -= 0.01 * parameter.grad
        return results


def train_on_rank(group: Any, case: LayerCase) -> dict[str, Tensor]:
    return case.train(group)


def compare_compiled(group: Any, scheme: str, variant: str) -> float:
    """The difference of a compiled layer from itself, after a backward pass of both."""
    parallel = ContextParallel(scheme, group)  # pyright: ignore[reportArgumentType]
    layer = ea.MultiHeadAttention(D_MODEL, 4, variant=variant, context_parallel=parallel)
    compiled: Any = torch.compile(layer, backend="eager")
    x, gradients = torch.ones(1, 4, D_MODEL) * torch.arange(4.0)[:, None], []
    for call in (layer, compiled):
        part = x.clone().requires_grad_()
        call(part, mask=ea.Mask(True)).square().sum().backward()
        assert part.grad is not None
        gradients.append(part.grad)
    return float((gradients[0] - gradients[1]).abs().max())


def call_absolute(group: Any) -> Tensor:
    """A left-padded call of a mechanism whose positions count from the first key of a row."""
    attn = ea.LinearAttention(ea.feature_maps.cosine(64))
    q, k, v = (torch.ones(1, 2, 4, 8) for _ in range(3))
    mask = ea.Mask(key_mask=torch.arange(4)[None] > 1)
    return ContextParallel("state", group).attend(attn, q, k, v, mask)


def call_with_lengths(group: Any, lengths: list[int], scheme: str = "ring") -> Any:
    """A call with parts of different lengths."""
    layer = ea.MultiHeadAttention(8, 2, context_parallel=ContextParallel(scheme, group))  # pyright: ignore[reportArgumentType]
    return layer(torch.ones(1, lengths[get_ranks(group).rank], 8)).detach()


def call_with_mask(group: Any, fields: dict[str, Any]) -> Any:
    """A call of a causal layer with a mask of these fields."""
    layer = ea.MultiHeadAttention(8, 2, context_parallel=ContextParallel("ring", group))
    return layer(torch.ones(2, 4, 8), mask=ea.Mask(True, **fields)).detach()


def call_without_gradient(group: Any) -> Any:
    """A call that needs a gradient on the first rank only."""
    layer = ea.MultiHeadAttention(8, 2, context_parallel=ContextParallel("ring", group))
    layer.requires_grad_(get_ranks(group).rank == 0)
    return layer(torch.ones(1, 4, 8)).detach()
