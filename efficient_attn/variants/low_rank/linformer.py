"""Linformer."""

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from ...contract import Attention, Budget, Dims, Growth, Mask, Shape, Traits
from ...errors import UsageError, check_at_least_one
from ...kernels.dense import softmax_attention, widen
from ...kernels.low_rank.projection import project
from ...kernels.softmax.sdpa import attend_fused

Share = Literal["heads", "key_value"] | None


class Linformer(Attention):
    """Softmax over ``rank`` learned linear combinations of the keys (Wang et al. 2020, arXiv:2006.04768):
    softmax(q (E k)^T / sqrt(D)) F v. The reference is

        w = einsum("bhnd,rm,bhmd->bhnr", q, E, k).div(D**0.5).softmax(-1)
        out = einsum("bhnr,rm,bhme->bhne", w, F, v)

    rank: their number. share: ``key_value`` learns one matrix E = F for all heads, in the paper's experiments as
    good as more; ``heads`` one E and one F; None (``none`` in a spec) an E and an F for each key-value head. Each is
    ``[rank, max_len]`` and drawn from N(0, 1 / max_len), so that max_len keys of unit variance give combinations of
    unit variance; M < max_len keys use the first M columns. Padding is zero. In half precision
    combinations are rounded, so that errors are about twice those of exact attention. Needs dims with max_len, for
    share=None also with kv_heads or heads; raises `UsageError` without them, and for more than max_len keys.
    """

    backends = ("projected", "dense")

    def __init__(self, *, rank: int = 256, share: Share = "key_value", dims: Dims = Dims(), seed: int = 0) -> None:
        super().__init__()
        check_at_least_one("linformer", rank=rank)
        heads = 1 if share else dims.kv_heads or dims.heads
        if dims.max_len is None or heads is None:
            required = "max_len" if share else "max_len, and kv_heads or heads,"
            raise UsageError(f"linformer:share={share or 'none'} needs dims with {required} for its projections")
        self._rank, self._max_len = rank, dims.max_len
        size, generator = (heads, rank, dims.max_len), torch.Generator().manual_seed(seed)
        self.by_keys = nn.Parameter(torch.randn(size, generator=generator) * dims.max_len**-0.5)
        self.by_values = None
        if share != "key_value":
            self.by_values = nn.Parameter(torch.randn(size, generator=generator) * dims.max_len**-0.5)

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        return {"rank": budget.keys}

    @property
    def traits(self) -> Traits:
        return Traits(causal=False, strictly_causal=False, decode=False, normalised=False, positional=True)

    @property
    def growth(self) -> Growth:
        return Growth("O(N k), k mixtures", "O(N)", partial(_count_work, self._rank))

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        """With gradients, also those of the projections."""
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        return size + (itemsize * sum(x.numel() for x in self.parameters()) if training else 0)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        e, f = self._select_projections(k)
        allowed = torch.ones(1, dtype=torch.bool, device=q.device)
        return softmax_attention(q, widen(e) @ widen(k), widen(f) @ widen(v), allowed)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        e, f = self._select_projections(k)
        mixed = project(e, k, v) if self.by_values is None else project(e, k) + project(f, v)
        return attend_fused(q, *mixed)

    def _select_projections(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """E and F for these keys, ``[1 or Hkv, rank, M]``."""
        heads, m = k.shape[1:3]
        if m > self._max_len:
            raise UsageError(f"linformer was created for max_len={self._max_len}, got {m} keys")
        e = self.by_keys
        if e.shape[0] not in (1, heads):
            raise UsageError(f"linformer:share=none was created for {e.shape[0]} key-value heads, got {heads}")
        f = e if self.by_values is None else self.by_values
        return (e, f) if m == self._max_len else (e[..., :m], f[..., :m])


def _count_work(rank: int, n: int, m: int, causal: bool) -> float:
    """The work of a call over that of one key and query. A function of the module, so that it can be pickled."""
    return rank * (n + m)
