"""Features of a model's scores that mechanisms do not have by themselves: a soft cap (Gemma 2), learned sinks
(gpt-oss), and additive biases (T5, Swin, BEiT). Exact attention and windows are computed with them, others refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from ..errors import UnsupportedError
from ..kernels.dense import widen
from ..kernels.softmax import score_tiles, sink
from ..kernels.softmax.score_tiles import UNBOUNDED, BiasedInputs, ScoreOptions
from ..kernels.softmax.sink import SinkInputs
from ..patterns import Band
from ..variants.full.softmax_attention import SoftmaxAttention
from ..variants.sparse.sparse_attention import SparseAttention


@dataclass(frozen=True, eq=False)
class ScoreFeatures:
    """softcap: scores s become softcap tanh(s / softcap). sinks ``[H]``: additional logits. bias ``[1 or B, 1 or H, N,
    M]``: added to the scores, minus infinity where a key is hidden."""

    softcap: float | None = None
    sinks: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any], bias: Tensor | None) -> ScoreFeatures | None:
        """From the arguments of a model's attention and the bias of its mask; None without any."""
        position_bias = options.get("position_bias")
        if position_bias is not None:
            bias = position_bias if bias is None else position_bias + bias
        features = cls(options.get("softcap"), options.get("s_aux"), bias)
        return None if features.softcap is features.sinks is features.bias is None else features

    def __str__(self) -> str:
        texts = {"a soft cap": self.softcap, "learned sinks": self.sinks, "a bias of scores": self.bias}
        return " and ".join(text for text, value in texts.items() if value is not None)


def attend_with_features(
    attn: Attention, features: ScoreFeatures, q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, dropout: float = 0.0
) -> Tensor:
    """The mechanism's outputs with these features. Raises `UnsupportedError` for a mechanism that is neither exact nor
    a window, for packed sequences, dropout, and a bias of another size."""
    back, ahead = _find_window(attn, features)
    (_, heads, n, width), m, bias = q.shape, k.shape[2], features.bias
    for is_there, problem in (
        (mask.cu_seqlens is not None, "packed sequences"),
        (bool(dropout), "dropout"),
        (bias is not None and bias.shape[-2:] != (n, m), f"another number of keys than {m}"),
        (bias is not None and features.softcap is not None, "a soft cap as well"),
    ):
        if is_there:
            raise UnsupportedError(f"{attn.label}: this model's scores have {features}, which goes not with {problem}")
    zeros = widen(q[..., 0])
    logits = torch.full_like(zeros, -inf)
    if features.sinks is not None:
        logits = features.sinks.to(zeros.dtype).reshape(heads)[:, None].expand(zeros.shape)
    if features.softcap is bias is None and back == ahead == UNBOUNDED:
        return sink.attend(q, k, v, logits, mask)
    options = ScoreOptions(features.softcap or inf, width**-0.5, mask.start(n, m), back, 0 if mask.causal else ahead)
    tensors, valid = (widen(q), widen(k), widen(v), logits), mask.key_valid(m)
    if bias is None:
        return score_tiles.attend(SinkInputs(*tensors, valid), options).to(q.dtype)
    wide_bias = bias.to(zeros.dtype).expand(-1, heads, -1, -1)
    return score_tiles.attend_biased(BiasedInputs(*tensors, wide_bias, valid), options).to(q.dtype)


def _find_window(attn: Attention, features: ScoreFeatures) -> tuple[int, int]:
    """The distances of the first and the last key that a query of the mechanism sees."""
    if type(attn).compute is SoftmaxAttention.compute:
        return UNBOUNDED, UNBOUNDED
    if isinstance(attn, SparseAttention):
        match attn.pattern.facts:
            case (Band(lo=lo, hi=hi, step=1),):
                return UNBOUNDED if hi is None else hi, UNBOUNDED if lo is None else -lo
            case _:
                pass
    raise UnsupportedError(
        f"{attn.label}: this model's scores have {features}, with which only exact attention and windows are computed"
    )
