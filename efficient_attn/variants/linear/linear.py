"""Linear attention."""

from ... import feature_maps
from .linear_attention import LinearAttention


class Linear(LinearAttention):
    """Linearized attention with phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, arXiv:2006.16236).

    Its decode state is D x E + D numbers a key-value head, whatever the length.
    """

    def __init__(self) -> None:
        super().__init__(feature_maps.elu_plus_one)
