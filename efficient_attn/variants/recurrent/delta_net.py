"""DeltaNet: linear attention with the delta rule."""

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from ...contract import Input
from ...errors import UsageError
from ...kernels.half_precision import HALF_DTYPES
from .gates import double_beta, unit_beta
from .recurrent_state import GATED, Recurrence, RecurrentAttention, normalise


class DeltaNet(RecurrentAttention):
    """S_t = (I - beta_t k_t^T k_t) S_(t-1) + beta_t k_t^T v_t with keys of unit norm: what the state holds for a key is
    corrected towards its value (DeltaNet, Yang et al. 2024, arXiv:2406.06484).

    Calls take ``beta [B, Hkv, M]`` from 0 to beta_max; layers make it with a sigmoid. beta_max: 1, or 2, with which a
    state can change its sign (arXiv:2411.12537). Keys are normalized here. Causal only, not normalized.
    """

    delta, gated_by_head = True, False
    only_dtypes: ClassVar = {"fla": HALF_DTYPES}
    declared_by_limit: ClassVar = {
        limit: replace(GATED, inputs={"beta": Input("key", squash=squash)})
        for limit, squash in ((1, unit_beta), (2, double_beta))
    }

    def __init__(self, *, beta_max: int = 1) -> None:
        super().__init__()
        if beta_max not in self.declared_by_limit:
            raise UsageError(f"{self.label}: beta_max must be 1 or 2, not {beta_max}")
        self.beta_max, self.declared = beta_max, self.declared_by_limit[beta_max]

    def recur(self, k: Tensor, v: Tensor, **inputs: Tensor) -> Recurrence:
        self.check_range("beta", inputs["beta"], 0, self.beta_max)
        return Recurrence(normalise(k), v, None, inputs["beta"])
