"""Performer."""

from torch import Tensor

from ...contract import Budget, Dims
from ...errors import UsageError, check_at_least_one
from ...feature_maps import FeatureMap
from .linear_attention import LinearAttention
from .random_features import FeatureKind, count_features, draw_directions, make_random_map


class Performer(LinearAttention):
    """exp(q.k / sqrt(D)) replaced by an unbiased estimate from random features (FAVOR+, Choromanski et al. 2020,
    arXiv:2009.14794).

    n_features: random directions w. kind: ``positive`` features exp(w.x - |x|^2/2); ``hyperbolic`` ones along w and -w;
    ``trigonometric`` ones, sines and cosines, accurate where softmax weights are large and wrong in sign where they are
    small; ``relu``, another kernel instead of an estimate (the paper's generalized attention). Trigonometric and
    hyperbolic maps have two features for each direction. orthogonal: directions in blocks of D are orthogonal, which
    lowers the variance. Directions are drawn from ``seed`` once, the same for all heads; `redraw` draws new ones.

    Exponents are relative to the running maximum of the keys, so that the causal form is strictly causal.
    """

    directions: Tensor

    def __init__(
        self,
        *,
        n_features: int = 256,
        kind: FeatureKind = "positive",
        orthogonal: bool = True,
        dims: Dims = Dims(),
        seed: int = 0,
    ) -> None:
        if dims.head_dim is None:
            raise UsageError("performer: needs dims with head_dim, the width of its random directions")
        check_at_least_one("performer", n_features=n_features)
        self.kind: FeatureKind = kind
        self.orthogonal = orthogonal
        directions = draw_directions(n_features, dims.head_dim, orthogonal=orthogonal, seed=seed)
        super().__init__(make_random_map(kind, directions, scaled=True))
        self.register_buffer("directions", directions)

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """Features with sums as large as the keys and values; those of features of both signs are float64."""
        kind = budget.options.get("kind", "positive")
        return {"n_features": budget.features(count_features(kind) * (2 if kind == "trigonometric" else 1))}

    @property
    def feature_map(self) -> FeatureMap:
        return make_random_map(self.kind, self.directions, scaled=True)

    def redraw(self, seed: int) -> None:
        """Draw other directions, as the paper does now and then in training. Decode states from before are void."""
        directions = draw_directions(*self.directions.shape, orthogonal=self.orthogonal, seed=seed)
        self.directions.copy_(directions)
