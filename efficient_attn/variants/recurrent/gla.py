"""Gated linear attention."""

from dataclasses import replace

from torch import Tensor

from ...contract import Dims, Input
from .gates import soft_decay
from .recurrent_state import GATED, Recurrence, RecurrentAttention, require_head_dim


class GLA(RecurrentAttention):
    """S_t = diag(a_t) S_(t-1) + k_t^T v_t with decays a_t in (0, 1)^D (GLA, Yang et al. 2023, arXiv:2312.06635).

    Calls take ``log_decay [B, Hkv, M, D]``, log a_t. Layers make it as the paper does, log(sigmoid(x)) / 16. Causal
    only, not normalized. Needs dims with head_dim.
    """

    gated_by_head = False

    def __init__(self, *, dims: Dims = Dims()) -> None:
        super().__init__()
        width = require_head_dim("gla", dims)
        self.declared = replace(GATED, inputs={"log_decay": Input("key", tail=(width,), squash=soft_decay)})

    def recur(self, k: Tensor, v: Tensor, **inputs: Tensor) -> Recurrence:
        self.check_range("log_decay", inputs["log_decay"], float("-inf"), 0)
        return Recurrence(k, v, inputs["log_decay"])
