"""Retention."""

import torch
from torch import Tensor

from ... import feature_maps
from ...contract import Mask, Traits
from ...kernels.dense import expand_heads, widen
from ...kernels.linear.linear_config import Divisor, replace_zero_by_one
from .fla_linear import FlaLinearAttention
from .linear_attention import LinearState, LinearStep

MAX_LOG_DECAY = 30.0  # a logarithm: the weights of keys that are farther than that would not show


class Retention(FlaLinearAttention):
    """sum_j gamma^(i - j) (q_i . k_j / sqrt(D)) v_j over j <= i, with gamma = 1 - 2^(-5 - h) for head h (RetNet, Sun et
    al. 2023, arXiv:2307.08621). Causal only.

    normalised: the paper's retention score normalization: the decays D_ij = gamma^(i - j) of visible keys are divided
    by sqrt(sum_j D_ij), and a row's weights by max(abs(their sum), 1). Otherwise nothing is normalized, because a norm
    of the layer follows. The paper's rotation of queries and keys belongs to the layer as well. Heads of a group share
    keys and values and have their own decays, so a state is as large as without groups.
    """

    def __init__(self, *, normalised: bool = False) -> None:
        super().__init__(feature_maps.scaled_identity)
        self.normalised = normalised

    @property
    def traits(self) -> Traits:
        return self.narrow(Traits(bidirectional=False, normalised=False, positional=True))

    @property
    def divisor(self) -> Divisor | None:
        return at_least_one if self.normalised else None

    def rates(self, heads: int) -> Tensor:
        return -torch.log1p(-(2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))))

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m, heads = q.shape[2], k.shape[2], q.shape[1]
        gamma = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64, device=q.device))
        distance = mask.positions(n, m, device=q.device)[:, None] - torch.arange(m, device=q.device)
        decay = gamma[:, None, None] ** distance.clamp(min=0) * mask.dense(n, m, device=q.device)
        if self.normalised:
            decay = decay / replace_zero_by_one(decay.sum(-1, keepdim=True)).sqrt()
        scores = widen(q) @ widen(expand_heads(k, heads)).mT * q.shape[3] ** -0.5
        weights = scores * decay.to(scores.dtype)
        out = weights @ widen(expand_heads(v, heads))
        return (out / at_least_one(weights.sum(-1, keepdim=True)) if self.normalised else out).to(q.dtype)

    # the divisor of a row's decays can also divide its query, so that the scan does not need it

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if not self.normalised:
            return super().compute(q, k, v, mask, **inputs)
        m = k.shape[2]
        rows = self._divide_queries(q, mask.start(q.shape[2], m), m, mask.key_valid(m))
        return super().compute(rows, k, v, mask, **inputs).to(q.dtype)

    def why_no_starts(self) -> str | None:
        return "its normalised decays count all positions" if self.normalised else None

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: LinearState, **inputs: Tensor) -> LinearStep:
        if not self.normalised:
            return super().advance(q, k, v, state, **inputs)
        rows = self._divide_queries(q, state.length, state.length + k.shape[2], None)
        out, state = super().advance(rows, k, v, state, **inputs)
        return out.to(q.dtype), state

    def _divide_queries(self, q: Tensor, start: int, m: int, valid: Tensor | None) -> Tensor:
        """Queries from position ``start`` on, each over the root of the sum of decays of the keys that it sees."""
        positions = torch.arange(q.shape[2], device=q.device) + start
        logs = compute_log_decays(self.rates(q.shape[1]).to(q.device), positions, m, valid)
        rows = widen(q)
        return rows * (logs / -2).clamp(max=MAX_LOG_DECAY).exp().to(rows.dtype)[..., None]


def compute_log_decays(rates: Tensor, positions: Tensor, m: int, valid: Tensor | None) -> Tensor:
    """Logarithms ``[1 or B, H, N]`` of sum_j exp(-rate (i - j)) over the valid keys j <= i of m, 0 without any.

    rates ``[H]``; at ``[N]``: the positions i; valid ``[B, M]``: None where all are.
    """
    rates, newest = rates[:, None], positions.clamp(max=m - 1)
    if valid is None:
        n_visible = (newest + 1).clamp(min=0)
        sums = (torch.log(torch.expm1(-rates * n_visible) / torch.expm1(-rates)) + rates * newest)[None]
    else:
        keys = rates * torch.arange(m, device=rates.device)
        cumulative = keys.where(valid[:, None], float("-inf")).logcumsumexp(-1)
        sums = cumulative[..., newest.clamp(min=0)].masked_fill(newest < 0, float("-inf"))
    return (sums - rates * positions).masked_fill(sums == float("-inf"), 0)


def at_least_one(total: Tensor) -> Tensor:
    """The sum of weights, or 1 where its absolute value is less (Retention's divisor)."""
    return total.abs().clamp(min=1)
