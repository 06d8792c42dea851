"""Multi-query attention."""

from ...contract import Dims
from ...errors import UsageError
from ..full.softmax_attention import SoftmaxAttention


class MultiQuery(SoftmaxAttention):
    """Exact attention whose H query heads share one key-value head (Shazeer 2019, arXiv:1911.02150).

    k and v are ``[B, 1, M, D]``; decoding reads H times fewer bytes of cache for each token than multi-head attention.
    """

    def __init__(self, *, dims: Dims = Dims()) -> None:
        super().__init__()
        if dims.kv_heads not in (None, 1):
            raise UsageError(f"mqa has one key-value head, dims set kv_heads={dims.kv_heads}")

    @property
    def kv_heads(self) -> int:
        return 1
