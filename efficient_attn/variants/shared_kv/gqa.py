"""Grouped-query attention."""

from ...contract import Dims
from ...errors import UsageError, check_at_least_one
from ..full.softmax_attention import SoftmaxAttention


class GroupedQuery(SoftmaxAttention):
    """Exact attention whose heads share key-value heads in adjacent groups (Ainslie et al. 2023, arXiv:2305.13245).

    kv_heads: the number of key-value heads; without it, and without dims, that of k in each call.
    """

    def __init__(self, *, kv_heads: int | None = None, dims: Dims = Dims()) -> None:
        super().__init__()
        check_at_least_one("gqa", kv_heads=kv_heads)
        if None not in (kv_heads, dims.kv_heads) and kv_heads != dims.kv_heads:
            raise UsageError(f"gqa: the option kv_heads={kv_heads} disagrees with dims.kv_heads={dims.kv_heads}")
        self._kv_heads = kv_heads or dims.kv_heads
        if self._kv_heads and dims.heads and dims.heads % self._kv_heads:
            raise UsageError(f"gqa: kv_heads={self._kv_heads} does not divide heads={dims.heads}")

    @property
    def kv_heads(self) -> int | None:
        return self._kv_heads
