"""Random Feature Attention."""

import torch.nn.functional as F
from torch import Tensor

from ...contract import Budget, Dims, Input, Traits
from ...errors import UsageError, check_at_least_one
from ...feature_maps import FeatureMap
from .linear_attention import KeyWeights, LinearAttention
from .random_features import draw_directions, make_unit_map

# From so many directions on, without and with gates, float32 errors are below 2e-5 of a row. Weights along fewer nearly
# cancel, as do those of the few keys that gates select: float32 would keep three digits.
FLOAT32_DIRECTIONS = {False: 16, True: 64}


class RandomFeature(LinearAttention):
    """Softmax attention of normalized queries and keys, estimated by random sines and cosines (RFA, Peng et al. 2021,
    arXiv:2103.02143).

    n_features: random directions with two features each, drawn from ``seed`` once; `redraw` draws new ones. gated: the
    past decays by a learned gate, sum <- g sum + (1 - g) phi(k) v; then causal only, and calls take ``gate [B, Hkv,
    M]``, the gate before its sigmoid. Masked keys do not change the sums.

    Sums of weights may be close to zero or negative; see `away_from_zero`. Those of fewer than 16 directions, with
    gates of fewer than 64, are in float64.
    """

    directions: Tensor

    def __init__(self, *, n_features: int = 64, gated: bool = False, dims: Dims = Dims(), seed: int = 0) -> None:
        if dims.head_dim is None:
            raise UsageError("random_feature: needs dims with head_dim, the width of its random directions")
        check_at_least_one("random_feature", n_features=n_features)
        self.gated = gated
        directions = draw_directions(n_features, dims.head_dim, orthogonal=False, seed=seed)
        super().__init__(make_unit_map(directions, exact=n_features < FLOAT32_DIRECTIONS[gated]))
        self.register_buffer("directions", directions)

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """Sines and cosines with sums as large as the keys and values; those of few directions are in float64."""
        n_features = budget.features(2)
        is_exact = n_features < FLOAT32_DIRECTIONS[budget.options.get("gated", False)]
        return {"n_features": budget.features(4) if is_exact else n_features}

    @property
    def feature_map(self) -> FeatureMap:
        return make_unit_map(self.directions, exact=self._feature_map.exact)

    @property
    def traits(self) -> Traits:
        if not self.gated:
            return self.claims()
        # gates that are always open give weights that sum to 0
        return self.claims(bidirectional=False, normalised=False, positional=True, inputs={"gate": Input("key")})

    @property
    def weighs_keys(self) -> bool:
        return self.gated

    def key_weights(self, k: Tensor, valid: Tensor | None, **inputs: Tensor) -> KeyWeights | None:
        if not self.gated:
            return None
        gate = inputs["gate"].double()
        log_gates = F.logsigmoid(gate)
        if valid is not None:
            log_gates = log_gates.masked_fill(~valid[:, None], 0)
        log_decay = log_gates.cumsum(-1)
        return KeyWeights(F.logsigmoid(-gate) - log_decay, -log_decay[..., -1])

    def redraw(self, seed: int) -> None:
        """Draw other directions. Decode states from before are void."""
        self.directions.copy_(draw_directions(*self.directions.shape, orthogonal=False, seed=seed))
