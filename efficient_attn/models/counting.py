"""Count a model's parameters by purpose."""

from collections import Counter

from torch import nn

from ..contract import Attention
from ..layers.multi_head import MultiHeadAttention
from ..layers.positions import Encoding

EMBEDDINGS = (nn.Embedding, Encoding)
ATTENTION = (MultiHeadAttention, Attention)


def count_parameters(model: nn.Module) -> dict[str, int]:
    """The number of a model's parameters by part: ``attention`` (projections and parameters of mechanisms),
    ``embeddings`` (of tokens and positions), ``mixer`` (the rest: feed-forward parts, convolutions, recurrence, norms,
    heads). Fixed ones (``requires_grad`` is False) do not count."""
    counts = Counter({"attention": 0, "embeddings": 0, "mixer": 0})
    _count(model, "mixer", counts, set())
    return dict(counts)


def _count(module: nn.Module, part: str, counts: Counter[str], counted_ids: set[int]) -> None:
    part = "attention" if isinstance(module, ATTENTION) else "embeddings" if isinstance(module, EMBEDDINGS) else part
    for parameter in module.parameters(recurse=False):
        if parameter.requires_grad and id(parameter) not in counted_ids:
            counted_ids.add(id(parameter))
            counts[part] += parameter.numel()
    for child in module.children():
        _count(child, part, counts, counted_ids)
