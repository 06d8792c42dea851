"""Gated DeltaNet: the delta rule with a decay of each head."""

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from ...contract import Input
from ...kernels.fla_backend import DTYPES
from .delta_net import DeltaNet
from .gates import double_beta, rate_decay, unit_beta
from .recurrent_state import GATED, Recurrence, normalise


class GatedDeltaNet(DeltaNet):
    """S_t = (I - beta_t k_t^T k_t) a_t S_(t-1) + beta_t k_t^T v_t with keys of unit norm and a decay a_t in (0, 1) of
    each head (Gated DeltaNet, Yang et al. 2024, arXiv:2412.06464; the linear layers of Qwen3-Next).

    Calls take ``log_decay [B, Hkv, M]``, log a_t, at most 0, and ``beta [B, Hkv, M]`` from 0 to beta_max, which is 1 or
    2. Keys are normalized here. Causal only, not normalized.
    """

    gated_by_head = True
    only_dtypes: ClassVar = {"fla": DTYPES}
    declared_by_limit: ClassVar = {
        limit: replace(
            GATED, inputs={"log_decay": Input("key", squash=rate_decay), "beta": Input("key", squash=squash)}
        )
        for limit, squash in ((1, unit_beta), (2, double_beta))
    }

    def recur(self, k: Tensor, v: Tensor, **inputs: Tensor) -> Recurrence:
        self.check_range("log_decay", inputs["log_decay"], float("-inf"), 0)
        self.check_range("beta", inputs["beta"], 0, self.beta_max)
        return Recurrence(normalise(k), v, inputs["log_decay"][..., None], inputs["beta"])
