"""Attention by a learned bilinear form."""

import torch
from torch import Tensor, nn

from ...contract import Dims
from ...errors import UsageError
from ...kernels.dense import expand_heads, widen
from .scored import ScoredAttention, cast_parameter, count_heads, group_heads


class General(ScoredAttention):
    """softmax(q^T W k) v with a learned W for each key-value head (Luong et al. 2015, arXiv:1508.04025, "general").

    W ``[Hkv, D, D]`` is drawn from ``seed``, N(0, 1 / D^2), so that scores have unit variance if q and k have. Needs
    dims with head_dim, and kv_heads or heads; raises `UsageError` without them.
    """

    def __init__(self, *, dims: Dims = Dims(), seed: int = 0) -> None:
        super().__init__()
        heads, width = count_heads("general", dims), dims.head_dim
        if width is None:
            raise UsageError("general needs dims with head_dim, the size of its learned form")
        generator = torch.Generator().manual_seed(seed)
        self.form = nn.Parameter(torch.randn(heads, width, width, generator=generator) / width)

    @property
    def kv_heads(self) -> int:
        return self.form.shape[0]

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ expand_heads(cast_parameter(self.form, q)[None], q.shape[1]) @ k.mT

    def transform_queries(self, q: Tensor) -> Tensor:
        transformed = group_heads(widen(q), self.kv_heads) @ cast_parameter(self.form, q)[:, None]
        return transformed.flatten(1, 2)
