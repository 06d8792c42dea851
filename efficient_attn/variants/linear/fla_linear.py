"""Linear attention that flash-linear-attention's kernels can compute."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ... import feature_maps
from ...contract import Mask, Traits
from ...contract.mask import zero_invalid
from ...kernels import fla_backend
from ...kernels.dense import widen
from ...kernels.linear.linear_config import replace_zero_by_one
from ...kernels.mask_cache import MASK_CACHE
from ..fla_attention import FlaAttention
from .linear_attention import LinearAttention

# its sums of weights and states are stored in the dtype of the inputs, and those of float16 overflow
NORMALISED_DTYPES = (torch.float32, torch.bfloat16)
PLAIN_MAPS = (feature_maps.elu_plus_one, feature_maps.relu)


class FlaLinearAttention(FlaAttention, LinearAttention):
    """Linear attention with ``fla``: elu + 1 and relu, divided by sums of weights, or constant decays without that."""

    backends = ("chunked", "cpp", "fla", "dense")
    only_on: ClassVar[Mapping[str, str]] = {"cpp": "cpu", "fla": "cuda"}

    @property
    def traits(self) -> Traits:
        return self.narrow(self.claims())

    def why_no_kernel(self) -> str | None:
        cls, base = type(self), LinearAttention
        if cls.key_weights is not base.key_weights:
            return "its keys have weights, which flash-linear-attention's kernels do not support"
        rates = self.rates(1)
        has_rates = rates is not None
        if rates is not None and (self.divisor is not None or rates.requires_grad):
            return "flash-linear-attention's kernels support constant decays of rows that are not divided only"
        if self.feature_map not in ((feature_maps.scaled_identity,) if has_rates else PLAIN_MAPS):
            return "flash-linear-attention's kernels support the maps elu + 1 and relu, or decays of plain products"
        if not has_rates and self.divisor is not replace_zero_by_one:
            return "its rows are not divided by their sums of weights"
        return None

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if not self.runs_fla(q, k, v, mask, **inputs):
            return super().compute(q, k, v, mask, **inputs)
        rates = self.rates(q.shape[1])
        if rates is not None:
            numbers = tuple(rates.tolist())
            (log_decays,) = MASK_CACHE.find(
                ("log decays", numbers, q.device), lambda: (torch.tensor(numbers).neg_().to(q.device),)
            )
            return fla_backend.attend_decaying(q, k, v, log_decays)
        rows, keys = (self.feature_map(widen(x))[0].to(x.dtype) for x in (q, k))
        return fla_backend.attend_features(rows, zero_invalid(keys, mask.key_valid(k.shape[2])), v)
