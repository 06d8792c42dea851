"""cosFormer."""

from torch import Tensor

from ... import feature_maps
from ...contract import Dims, Mask, Traits, Values
from ...errors import UsageError
from .linear_attention import LinearAttention, LinearState, LinearStep


class CosFormer(LinearAttention):
    """relu(q_i) . relu(k_j) weighted by cos(pi/2 (i - j) / horizon), so that near keys have larger weights (Qin et al.
    2022, arXiv:2202.08791).

    The horizon is ``dims.max_len`` and not the length of a call, so that a prefix of the output is the output of the
    prefix. At larger distances weights would be negative, so longer inputs raise `UsageError`. A row without any weight
    is zero.
    """

    def __init__(self, *, dims: Dims = Dims()) -> None:
        if dims.max_len is None:
            raise UsageError("cosformer: needs dims with max_len, the horizon of its weights")
        self.horizon = dims.max_len
        super().__init__(feature_maps.cosine(dims.max_len))

    @property
    def traits(self) -> Traits:
        return self.claims(normalised=False)

    def run(self, q: Tensor, k: Tensor, v: Values, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        start, end = mask.span(n, m)
        self._check_horizon(max(end, m if mask.causal else m - min(start, 0)))
        return super().run(q, k, v, mask, **inputs)

    @property
    def absolute(self) -> bool:
        """False: its weights are of distances."""
        return False

    def why_no_starts(self) -> str | None:
        return None

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: LinearState, **inputs: Tensor) -> LinearStep:
        self._check_horizon(state.length + k.shape[2])
        return super().advance(q, k, v, state, **inputs)

    def _check_horizon(self, positions: int) -> None:
        if positions > self.horizon:
            raise UsageError(f"cosformer: made for {self.horizon} positions (dims.max_len), got {positions}")
