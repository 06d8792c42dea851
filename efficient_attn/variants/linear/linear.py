"""Linear attention."""

from typing import ClassVar

from ... import feature_maps
from .fla_linear import NORMALISED_DTYPES, FlaLinearAttention


class Linear(FlaLinearAttention):
    """Linearized attention with phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, arXiv:2006.16236).

    Its decode state is D x E + D numbers a key-value head, whatever the length.
    """

    only_dtypes: ClassVar = {"fla": NORMALISED_DTYPES}

    def __init__(self) -> None:
        super().__init__(feature_maps.elu_plus_one)
