"""The base class of exact attention with other scores than the scaled dot product."""

from torch import Tensor

from ...contract import Dims, Mask, Shape, Traits, Values, require_values
from ...contract.decode_state import KVCache
from ...errors import UnsupportedError, UsageError
from ...kernels.dense import attend_with_scores, expand_heads, widen
from ...kernels.softmax.sdpa import attend
from .softmax_attention import TRAITS, WITHOUT_DROPOUT, WITHOUT_PADDING, SoftmaxAttention

SCORED_TRAITS_WITHOUT_DROPOUT = TRAITS[False, False, True]


class ScoredAttention(SoftmaxAttention):
    """softmax(score(q, k)) v over all keys that the mask allows.

    A subclass provides `score`, the definition, and transforms queries and keys so that the score is their dot product,
    which torch's fused kernels compute. Decode states store transformed keys.
    """

    @property
    def traits(self) -> Traits:
        return TRAITS[False, self.backend not in WITHOUT_DROPOUT, self.backend not in WITHOUT_PADDING]

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """The scores ``[B, H, N, M]`` of ``q [B, H, N, D]`` and ``k [B, H, M, D]``, by definition."""
        raise UnsupportedError(f"{type(self).__name__} has no score")

    def transform_queries(self, q: Tensor) -> Tensor:
        """The queries as they enter the dot product; of half precision they may become wider."""
        return q

    def transform_keys(self, k: Tensor) -> Tensor:
        """The keys ``[B, Hkv, M, D]`` of the dot product, which may be wider."""
        return k

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        keys, values = (widen(expand_heads(x, q.shape[1])) for x in (k, v))
        allowed = mask.dense(q.shape[2], k.shape[2], device=q.device)
        return attend_with_scores(self.score(widen(q), keys), values, allowed, dropout=self.dropping).to(q.dtype)

    def transforms(self) -> bool:
        cls, base = type(self), ScoredAttention
        functions = cls.compute, cls.attend_transformed, cls.transform_queries, cls.transform_keys
        return functions != (base.compute, base.attend_transformed, base.transform_queries, base.transform_keys)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return self.attend_transformed(q, self.transform_keys(k), v, mask)

    def attend_transformed(self, q: Tensor, keys: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Attend from original queries to transformed keys, in the dtype of the keys."""
        rows = self.transform_queries(q).to(keys.dtype)
        out = attend(rows, keys, v.to(keys.dtype), mask, scale=1.0, backend=self.backend, dropout=self.dropping)
        return out.to(q.dtype)

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        transformed_bytes = shape.batch * (shape.heads * shape.n + shape.kv_heads * shape.m) * shape.head_dim * itemsize
        return super().workspace_bytes(shape, itemsize, causal=causal, training=training) + transformed_bytes

    def why_no_starts(self) -> str | None:
        return super().why_no_starts()  # its own steps support them too

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: KVCache, **inputs: Tensor) -> tuple[Tensor, KVCache]:
        if self.backend == "dense":
            return super().advance(q, k, v, state)
        state = state.append(self.transform_keys(k).to(k.dtype), v)
        return self.attend_transformed(q, *state.filled(), state.mask), state

    def absorb(self, k: Tensor, v: Values, state: KVCache, **inputs: Tensor) -> KVCache:
        return state.append(k if self.backend == "dense" else self.transform_keys(k).to(k.dtype), require_values(v))


def count_heads(name: str, dims: Dims) -> int:
    """The number of key-value heads with parameters. Raises `UsageError` if dims do not determine it."""
    heads = dims.kv_heads or dims.heads
    if heads is None:
        raise UsageError(f"{name} needs dims with kv_heads or heads, because it has parameters for each")
    return heads


def cast_parameter(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter in the dtype of computations with x: float32 or wider."""
    return parameter.to(widen(x[:0]).dtype)


def group_heads(q: Tensor, kv_heads: int) -> Tensor:
    """``[B, H, N, D]`` as ``[B, Hkv, G, N, D]``, with the heads of a group together."""
    return q.unflatten(1, (kv_heads, -1))
