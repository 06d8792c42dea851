"""Mamba-2's state space layer as attention."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ...contract import Dims, Input
from ...kernels.dense import widen
from ..full.scored import cast_parameter, count_heads
from .gates import small_step
from .recurrent_state import GATED, Recurrence, RecurrentAttention

MAX_RATE = 16.0  # rates begin between 1 and this, as in the paper's models


class Mamba2(RecurrentAttention):
    """S_t = a_t S_(t-1) + dt_t k_t^T v_t, a_t = exp(-A dt_t), with a learned rate A for each key-value head (Mamba-2's
    structured state space duality, Dao and Gu 2024, arXiv:2405.21060; k is the paper's B, q its C, v its x).

    Calls take the step sizes ``dt [B, Hkv, M]``, at least 0; layers make them with softplus. Queries are scaled by
    1/sqrt(D), as those of other mechanisms. Causal only, not normalized. Needs dims with kv_heads or heads.
    """

    declared = replace(GATED, inputs={"dt": Input("key", squash=small_step)})

    def __init__(self, *, dims: Dims = Dims()) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.linspace(1, MAX_RATE, count_heads("mamba2", dims)).log())

    @property
    def kv_heads(self) -> int:
        return len(self.log_rate)

    def recur(self, k: Tensor, v: Tensor, **inputs: Tensor) -> Recurrence:
        self.check_range("dt", inputs["dt"], 0, float("inf"))
        dt = widen(inputs["dt"])
        log_decay = -cast_parameter(self.log_rate, k).exp()[:, None] * dt
        return Recurrence(widen(k) * dt[..., None], v, log_decay[..., None])
