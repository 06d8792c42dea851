"""The arithmetic of references: dense, simple, in float32 or wider. It defines correct results and is not fast."""

import torch.nn.functional as F
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return x.float() if x.element_size() < 4 else x


def expand_heads(x: Tensor, heads: int) -> Tensor:
    """``[B, Hkv, M, D]`` to ``[B, H, M, D]``; the heads of one group are adjacent."""
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Softmax over the allowed keys; a row that may see none gets weights of zero."""
    hidden = ~allowed
    return scores.masked_fill(hidden, float("-inf")).softmax(-1).masked_fill(hidden, 0)


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, *, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """softmax(scale q k^T) v over the ``allowed [.., N, M]`` pairs; scale is 1/sqrt(D) unless given. dropout: the
    probability with which a weight becomes zero; the others are divided by 1 - dropout."""
    wq, wk, wv = widen(q), widen(expand_heads(k, q.shape[1])), widen(expand_heads(v, q.shape[1]))
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return attend_with_scores(wq @ wk.mT * factor, wv, allowed, dropout=dropout).to(q.dtype)


def attend_with_scores(scores: Tensor, v: Tensor, allowed: Tensor, *, dropout: float = 0.0) -> Tensor:
    """softmax(scores) v over the ``allowed`` pairs, as in `softmax_attention`; all of one dtype."""
    weights = masked_softmax(scores, allowed)
    return (F.dropout(weights, dropout) if dropout else weights) @ v


def weighted_average(weights: Tensor, v: Tensor) -> Tensor:
    """Rows of non-negative ``weights [.., N, M]`` divided by their sums, times v; a row of zeros stays zero."""
    total = weights.sum(-1, keepdim=True)
    return (weights @ v) / total.masked_fill(total == 0, 1)
