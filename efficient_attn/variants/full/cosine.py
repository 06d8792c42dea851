"""Attention by cosine similarity."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...contract.shapes import Dims
from ...kernels.dense import expand_heads, widen
from .scored import ScoredAttention, by_group, count_heads, fit_dtype

SHORTEST = 1e-6  # a vector that is shorter counts as one of this length, lest gradients overflow
START = 10.0


class Cosine(ScoredAttention):
    """softmax(t cos(q, k)) v, the cosine of the angle between query and key times a temperature t, which starts at 10
    and is learned for each key-value head: no score is larger than t, whatever the lengths of q and k (Henry et al.
    2020, arXiv:2010.04245).

    Needs dims with kv_heads or heads; raises `UsageError` without them.
    """

    def __init__(self, *, dims: Dims = Dims()) -> None:  # noqa: B008  (frozen)
        super().__init__()
        self.temperature = nn.Parameter(torch.full((count_heads("cosine", dims),), START))

    @property
    def kv_heads(self) -> int:
        return len(self.temperature)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        lengths = (x.square().sum(-1).sqrt().clamp(min=SHORTEST) for x in (q, k))
        of_q, of_k = lengths
        warm = expand_heads(fit_dtype(self.temperature, q)[None, :, None, None], q.shape[1])
        return warm * (q @ k.mT) / (of_q[..., None] * of_k[..., None, :])

    def turn_queries(self, q: Tensor) -> Tensor:
        turned = by_group(F.normalize(widen(q), dim=-1, eps=SHORTEST), self.kv_heads)
        return (turned * fit_dtype(self.temperature, q)[:, None, None, None]).flatten(1, 2)

    def turn_keys(self, k: Tensor) -> Tensor:
        """In float32 of half precision: gradients by lengths cancel, and rounding before that would be left."""
        return F.normalize(widen(k), dim=-1, eps=SHORTEST)
