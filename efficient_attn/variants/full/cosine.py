"""Attention by cosine similarity."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...contract import Dims
from ...kernels.dense import expand_heads, widen
from .scored import ScoredAttention, cast_parameter, count_heads, group_heads

MIN_NORM = 1e-6  # lower bound of a vector's length, so that gradients do not overflow
INITIAL_TEMPERATURE = 10.0


class Cosine(ScoredAttention):
    """softmax(t cos(q, k)) v, the cosine of the angle between query and key times a temperature t, which starts at 10
    and is learned for each key-value head: no score is larger than t, whatever the lengths of q and k (Henry et al.
    2020, arXiv:2010.04245).

    Needs dims with kv_heads or heads; raises `UsageError` without them.
    """

    def __init__(self, *, dims: Dims = Dims()) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.full((count_heads("cosine", dims),), INITIAL_TEMPERATURE))

    @property
    def kv_heads(self) -> int:
        return len(self.temperature)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        norms = (x.square().sum(-1).sqrt().clamp(min=MIN_NORM) for x in (q, k))
        q_norm, k_norm = norms
        temperature = expand_heads(cast_parameter(self.temperature, q)[None, :, None, None], q.shape[1])
        return temperature * (q @ k.mT) / (q_norm[..., None] * k_norm[..., None, :])

    def transform_queries(self, q: Tensor) -> Tensor:
        directions = group_heads(F.normalize(widen(q), dim=-1, eps=MIN_NORM), self.kv_heads)
        return (directions * cast_parameter(self.temperature, q)[:, None, None, None]).flatten(1, 2)

    def transform_keys(self, k: Tensor) -> Tensor:
        """In float32 of half precision: gradients by lengths cancel, and rounding before that would be left."""
        return F.normalize(widen(k), dim=-1, eps=MIN_NORM)
