"""Losses of mechanisms besides the model's own, which train what only selects, such as an indexer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from ..contract import Attention
from ..contract.mask import EVERYTHING
from .multi_head import MultiHeadAttention


def train_selections(model: nn.Module) -> list[Attention]:
    """Make the projections trainable that only select, and return the mechanisms that have a loss for them.

    Layers leave these projections as they are drawn, because the model's own loss has no gradient by them. Call it
    before the optimizer is made.
    """
    mechanisms = []
    for layer in model.modules():
        if isinstance(layer, MultiHeadAttention) and _has_loss(layer.attn):
            mechanisms.append(layer.attn)
            for name, input_spec in layer.attn.traits.inputs.items():
                if not input_spec.gradient:
                    layer.get_submodule(f"{name}_proj").requires_grad_(True)
    return mechanisms


@contextmanager
def collect_auxiliary_losses(model: nn.Module) -> Iterator[list[Tensor]]:
    """The losses of all mechanisms in a model, one for each call in the block:

        with ea.collect_auxiliary_losses(model) as auxiliary:
            loss = compute_loss(model(tokens))
        sum(auxiliary, loss).backward()

    Calls in evaluation mode have none.
    """
    losses: list[Tensor] = []

    def add_loss(attn: Any, arguments: tuple[Any, ...], inputs: dict[str, Tensor], output: Tensor) -> None:
        q, k, _, mask = (*arguments, None)[:4]
        if attn.training:
            losses.append(attn.auxiliary_loss(q, k, mask or EVERYTHING, **inputs))

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, Attention) and _has_loss(module):
                handle = module.register_forward_hook(add_loss, with_kwargs=True)
                hooks.callback(handle.remove)
        yield losses


def _has_loss(attn: Attention) -> bool:
    return type(attn).auxiliary_loss is not Attention.auxiliary_loss
