"""Linear attention with ReLU."""

from typing import ClassVar

from ... import feature_maps
from ...contract import Traits
from .fla_linear import NORMALISED_DTYPES, FlaLinearAttention


class ReluLinear(FlaLinearAttention):
    """Linear attention with phi(x) = relu(x), one of the maps of Katharopoulos et al. 2020 (arXiv:2006.16236) and of
    Kasai et al. 2021 (arXiv:2103.13076).

    A query whose features are orthogonal to those of all visible keys gives zeros.
    """

    only_dtypes: ClassVar = {"fla": NORMALISED_DTYPES}

    def __init__(self) -> None:
        super().__init__(feature_maps.relu)

    @property
    def traits(self) -> Traits:
        return self.narrow(self.claims(normalised=False))
