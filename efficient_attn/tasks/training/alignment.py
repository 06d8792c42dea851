"""Alignment: the weights of source tokens for each token that a trained model writes (Bahdanau et al. 2014,
arXiv:1409.0473)."""

from typing import Any

import torch
from torch import Tensor, nn

from ...contract import Attention, Mask
from .learners import Learner
from .problem import Batch

MAX_TOKENS = 48  # of a source or an answer in a plot
DECIMALS = 3  # of a stored weight


@torch.no_grad()
def compute_alignment(learner: Learner, batch: Batch, device: str) -> list[list[float]] | None:
    """For one example, the weights ``[T, M]`` of the source's tokens for each written one, averaged over heads; None if
    the model does not attend to a source, if a mechanism computes its own values, or if it is too long for a plot."""
    attn, begun = _find_attention(learner.model), batch.begun
    if attn is None or begun is None or not attn.traits.values:
        return None
    if max(begun.shape[1], batch.inputs.shape[1]) > MAX_TOKENS:
        return None
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    learner.model.eval()
    lengths = None if batch.lengths is None else batch.lengths[:1]
    with attn.register_forward_pre_hook(lambda _, args, keywords: calls.append((args, keywords)), with_kwargs=True):
        learner.predict(Batch(batch.inputs[:1], batch.targets[:1], begun[:1], lengths), device)
    weights = torch.cat([_compute_weights(attn, *args, **keywords)[0].mean(0) for args, keywords in calls])
    return [[round(float(x), DECIMALS) for x in row] for row in weights]


def _find_attention(model: nn.Module) -> Attention | None:
    """The attention to the source: that of a recurrent model, or of a transformer's last layer."""
    decoder = getattr(model, "decoder", None)
    attention = decoder.layers[-1].cross.attn if decoder is not None else getattr(model, "attn", None)
    return attention if isinstance(attention, Attention) else None


def _compute_weights(
    attn: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None, **inputs: Tensor
) -> Tensor:
    """A call's weights ``[B, H, N, M]``, from calls with columns of the identity as v, as many at once as v has."""
    parts = []
    for first in range(0, k.shape[2], v.shape[-1]):
        units = torch.zeros_like(v)
        count = min(v.shape[-1], k.shape[2] - first)
        units[:, :, first : first + count, :count] = torch.eye(count, dtype=v.dtype, device=v.device)
        parts.append(attn(q, k, units, mask, **inputs)[..., :count])
    return torch.cat(parts, -1)
