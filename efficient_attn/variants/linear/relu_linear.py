"""Linear attention with ReLU."""

from ... import feature_maps
from ...contract import Traits
from .linear_attention import LinearAttention


class ReluLinear(LinearAttention):
    """Linear attention with phi(x) = relu(x), one of the maps of Katharopoulos et al. 2020 (arXiv:2006.16236) and of
    Kasai et al. 2021 (arXiv:2103.13076).

    A query whose features are orthogonal to those of all visible keys gives zeros.
    """

    def __init__(self) -> None:
        super().__init__(feature_maps.relu)

    @property
    def traits(self) -> Traits:
        return self.claims(normalised=False)
