"""Attention over the last keys, and the keys of the smallest norm."""

import torch
from torch import Tensor

from ...contract import Attention, Budget, Growth, Mask, Traits, Values, require_values
from ...contract.decode_state import preallocate
from ...errors import UsageError, check_at_least_one
from ...kernels.dense import softmax_attention
from ...kernels.smallest_norms import ROWS, NormCache, attend_smallest, keep_smallest


class KNorm(Attention):
    """Softmax over the last keys, and of the earlier ones over those of the smallest Euclidean norm, which receive much
    of the weight in trained decoders (Devoto et al. 2024, arXiv:2406.11430).

    window: the last keys, the query's own included. keys: the number of earlier ones, selected for each key-value head;
    of equal norms the first.

    A key that was dropped never returns, so that a decode state has ``window + keys`` positions, and a call takes time
    proportional to its length. Causal only. Gradients are those of the selected keys.
    """

    backends = ("rows", "dense")

    def __init__(self, *, window: int = 32, keys: int = 96) -> None:
        super().__init__()
        check_at_least_one("knorm", window=window, keys=keys)
        self.window, self.keys = window, keys

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """A quarter of the keys are the last."""
        if budget.keys < 4:
            raise UsageError(f"knorm: a quarter of {budget.keys} keys is less than one")
        return {"window": budget.keys // 4, "keys": budget.keys - budget.keys // 4}

    @property
    def traits(self) -> Traits:
        return Traits(exact=True, bidirectional=False, positional=True)

    @property
    def absolute(self) -> bool:
        """False: distances and norms matter, not positions."""
        return False

    @property
    def growth(self) -> Growth:
        return Growth("O(N P), P keys a query", "O(N)", self.pairs)

    def pairs(self, n: int, m: int, causal: bool) -> int:
        return sum(min(m - n + i + 1, self.window + self.keys) for i in range(n) if m - n + i >= 0)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        visible, norms = mask.dense(n, m, device=q.device), k.double().square().sum(-1)
        i, j = mask.positions(n, m, device=q.device)[:, None], torch.arange(m, device=q.device)
        recent = visible & (j > i - self.window)
        older = (visible & (j <= i - self.window)).expand(len(k), k.shape[1], n, m)
        allowed = recent | keep_smallest(norms, older, self.keys)
        return softmax_attention(q, k, v, allowed.repeat_interleave(q.shape[1] // k.shape[1], 1))

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return attend_smallest(q, k, v, mask, self.window, self.keys)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> NormCache:
        state = NormCache(max_len, window=self.window, count=self.keys)
        return preallocate(state, self.dims.cache_sizes(batch, self.kv_heads), dtype, device)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: NormCache, **inputs: Tensor) -> tuple[Tensor, NormCache]:
        outputs = []
        for first in range(0, q.shape[2], ROWS):
            rows = slice(first, first + ROWS)
            outputs.append(state.attend(q[:, :, rows], k[:, :, rows], v[:, :, rows]))
            state = state.append(k[:, :, rows], v[:, :, rows])
        return torch.cat(outputs, 2), state

    def absorb(self, k: Tensor, v: Values, state: NormCache, **inputs: Tensor) -> NormCache:
        return state.append(k, require_values(v))
