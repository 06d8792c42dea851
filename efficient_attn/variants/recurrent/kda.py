"""Kimi Delta Attention: the delta rule with a decay of each channel."""

from dataclasses import replace

from torch import Tensor

from ...contract import Dims, Input
from .gates import rate_decay, unit_beta
from .recurrent_state import GATED, Recurrence, RecurrentAttention, normalise, require_head_dim


class KDA(RecurrentAttention):
    """S_t = (I - beta_t k_t^T k_t) diag(a_t) S_(t-1) + beta_t k_t^T v_t with keys of unit norm and decays a_t in (0,
    1)^D (Kimi Delta Attention, Kimi Team 2025, arXiv:2510.26692).

    Calls take ``log_decay [B, Hkv, M, D]``, log a_t, at most 0, and ``beta [B, Hkv, M]`` from 0 to 1. Keys are
    normalized here. Causal only, not normalized. Needs dims with head_dim.
    """

    delta, gated_by_head = True, False

    def __init__(self, *, dims: Dims = Dims()) -> None:
        super().__init__()
        log_decay = Input("key", tail=(require_head_dim("kda", dims),), squash=rate_decay)
        self.declared = replace(GATED, inputs={"log_decay": log_decay, "beta": Input("key", squash=unit_beta)})

    def recur(self, k: Tensor, v: Tensor, **inputs: Tensor) -> Recurrence:
        self.check_range("log_decay", inputs["log_decay"], float("-inf"), 0)
        self.check_range("beta", inputs["beta"], 0, 1)
        return Recurrence(normalise(k), v, inputs["log_decay"], inputs["beta"])
