"""Additive attention."""

import torch
from torch import Tensor, nn

from ...contract import Dims, Mask, Traits
from ...contract.decode_state import KVCache, preallocate
from ...errors import UsageError, check_at_least_one
from ...kernels.dense import expand_heads, widen
from ...kernels.softmax import additive_scores
from ...kernels.softmax.additive_scores import AdditiveInputs, AdditiveOptions
from .scored import SCORED_TRAITS_WITHOUT_DROPOUT, ScoredAttention, cast_parameter, count_heads, group_heads


class Additive(ScoredAttention):
    """softmax(u . tanh(W_q q + W_k k)) v, with a small network as score of query and key (Bahdanau et al. 2014,
    arXiv:1409.0473, "concat" of Luong et al. 2015).

    hidden: A, the width of the network, head_dim unless given. Parameters of each key-value head, drawn from ``seed``:
    ``w_q`` and ``w_k [Hkv, A, D]``, N(0, 1 / 2D), so that sums have unit variance if q and k have; ``u [Hkv, A]``, N(0,
    1 / A). Needs dims with head_dim, and kv_heads or heads; raises `UsageError` without them.

    Backend ``blocks`` stores the sums of some queries and keys at a time: its memory grows with N, not with N M A.
    """

    backends = ("blocks", "dense")

    def __init__(self, *, hidden: int | None = None, dims: Dims = Dims(), seed: int = 0) -> None:
        super().__init__()
        heads, width = count_heads("additive", dims), dims.head_dim
        if width is None:
            raise UsageError("additive needs dims with head_dim, the input width of its network")
        check_at_least_one("additive", hidden=hidden)
        hidden, generator = hidden or width, torch.Generator().manual_seed(seed)
        weights = (torch.randn(heads, hidden, width, generator=generator) for _ in range(2))
        self.w_q, self.w_k = (nn.Parameter(w * (2 * width) ** -0.5) for w in weights)
        self.u = nn.Parameter(torch.randn(heads, hidden, generator=generator) * hidden**-0.5)

    @property
    def traits(self) -> Traits:
        return SCORED_TRAITS_WITHOUT_DROPOUT

    @property
    def kv_heads(self) -> int:
        return len(self.u)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        w_q, w_k, u = (expand_heads(cast_parameter(w, q)[None], q.shape[1]) for w in (self.w_q, self.w_k, self.u))
        return (((q @ w_q.mT)[:, :, :, None] + (k @ w_k.mT)[:, :, None]).tanh() * u[:, :, None, None]).sum(-1)

    def transform_queries(self, q: Tensor) -> Tensor:
        return (group_heads(widen(q), self.kv_heads) @ cast_parameter(self.w_q, q).mT[:, None]).flatten(1, 2)

    def transform_keys(self, k: Tensor) -> Tensor:
        return widen(k) @ cast_parameter(self.w_k, k).mT

    def attend_transformed(self, q: Tensor, keys: Tensor, v: Tensor, mask: Mask) -> Tensor:
        n, m = q.shape[2], keys.shape[2]
        x, u = self.transform_queries(q), cast_parameter(self.u, q)
        inputs = AdditiveInputs(x, widen(keys), widen(v), u, mask.key_valid(m))
        return additive_scores.attend(inputs, AdditiveOptions(mask.causal, mask.start(n, m))).to(q.dtype)

    def dense_pairs(self, n: int, m: int) -> int:
        """The reference stores the sum of every pair."""
        return n * m * self.u.shape[1]

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        batch_size, heads, width, value_width = self.dims.cache_sizes(batch, self.kv_heads)
        key_width = width if self.backend == "dense" else self.u.shape[1]
        return preallocate(KVCache(max_len), (batch_size, heads, key_width, value_width), dtype, device)
