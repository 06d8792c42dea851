"""DeltaProduct: several steps of the delta rule at each position."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from ...contract import Dims, Input
from ...errors import UsageError, check_at_least_one
from ...kernels.half_precision import HALF_DTYPES
from .gates import double_beta
from .recurrent_state import GATED, Recurrence, RecurrentAttention, normalise


class DeltaProduct(RecurrentAttention):
    """n steps of the delta rule at each position, S <- (I - beta k^T k) S + beta k^T v with n keys of unit norm and
    their values: transitions are products of n reflections (DeltaProduct, Siems et al. 2025, arXiv:2502.10297).

    k and v are those of the first step. Calls take those of the others, ``keys [B, Hkv, M, n - 1, D]`` and ``values [B,
    Hkv, M, n - 1, E]``, and ``beta [B, Hkv, M, n]`` from 0 to 2. Keys are normalized here. Causal only, not normalized.
    Needs dims with head_dim if n is above 1.
    """

    delta, gated_by_head = True, False
    only_dtypes: ClassVar = {"fla": HALF_DTYPES}

    def __init__(self, *, n: int = 2, dims: Dims = Dims()) -> None:
        super().__init__()
        check_at_least_one("delta_product", n=n)
        if n > 1 and dims.head_dim is None:
            raise UsageError("delta_product: needs dims with head_dim, the width of its further keys")
        self.n = self.substeps = n
        inputs = {"beta": Input("key", tail=(n,), squash=double_beta)}
        if n > 1 and dims.head_dim is not None:
            inputs["keys"] = Input("key", tail=(n - 1, dims.head_dim))
            inputs["values"] = Input("key", tail=(n - 1, dims.value_dim or dims.head_dim))
        self.declared = replace(GATED, inputs=inputs, linear_values=n == 1)

    def recur(self, k: Tensor, v: Tensor, **inputs: Tensor) -> Recurrence:
        beta = inputs["beta"]
        self.check_range("beta", beta, 0, 2)
        if self.n == 1:
            return Recurrence(normalise(k), v, None, beta[..., 0])
        keys, values = (
            torch.cat([k[..., None, :], inputs["keys"]], 3),
            torch.cat([v[..., None, :], inputs["values"]], 3),
        )
        return Recurrence(normalise(keys.flatten(2, 3)), values.flatten(2, 3), None, beta.flatten(2, 3))
