"""Exact softmax attention, with two options: a soft cap on scores, and a sink."""

from math import inf, isfinite
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...contract import Dims, Mask, Traits
from ...errors import UsageError
from ...kernels.dense import expand_heads, masked_softmax, widen
from ...kernels.softmax import score_tiles, sink
from ...kernels.softmax.score_tiles import UNBOUNDED, ScoreOptions
from ...kernels.softmax.sink import SinkInputs
from .softmax_attention import SoftmaxAttention

CAPPED_TRAITS, SINK_TRAITS = Traits(), Traits(normalised=False)  # created once, because every call reads them
LEARNED = "learned"


class Full(SoftmaxAttention):
    """softmax(q k^T / sqrt(D)) v (Vaswani et al. 2017, arXiv:1706.03762).

    softcap: scores s become softcap tanh(s / softcap), which bounds them (Gemma 2, arXiv:2408.00118). sink: ``learned``
    adds one logit to the softmax of each head, which has a weight but no value, so that a head can attend to nothing:
    softmax([s, sink])[.., :-1] v (gpt-oss, arXiv:2508.10925; Miller 2023, "Attention is off by one", has it fixed at 0;
    Xiao et al. 2023, arXiv:2309.17453, observed first keys in this role). The parameter ``sink [H]`` is initially 0.
    Needs dims with heads; raises `UsageError` without them.

    Backends: ``sdpa`` (torch's fused kernels) and ``dense`` (the reference, with N x M weights). With a softcap
    ``blocks`` (tiles of queries and keys, which are not stored) instead of ``sdpa``.
    """

    def __init__(
        self, *, softcap: float | None = None, sink: Literal["learned"] | None = None, dims: Dims = Dims()
    ) -> None:
        super().__init__()
        if softcap is not None and not (softcap > 0 and isfinite(softcap)):
            raise UsageError(f"full: softcap must be a number above 0, not {softcap}")
        if sink not in (None, LEARNED):
            raise UsageError(f"full: sink must be {LEARNED!r} or none, not {sink!r}")
        if sink and dims.heads is None:
            raise UsageError("full: sink=learned needs dims with heads, as it learns a logit for each")
        self.softcap = None if softcap is None else float(softcap)
        self.sink = nn.Parameter(torch.zeros(cast(int, dims.heads))) if sink else None
        if (softcap or sink) and not isinstance(self, FullWithOptions):
            if type(self) is not Full:
                raise UsageError(f"{type(self).__name__}: with softcap or sink, subclass FullWithOptions, not Full")
            self.__class__ = FullWithOptions  # a separate class, so that calls of Full do not check for options


class FullWithOptions(Full):  # noqa: D101  (its docstring is that of Full)
    __doc__ = Full.__doc__

    backends = ("sdpa", "blocks", "dense")

    def why_not(self, backend: str) -> str | None:
        if backend == "sdpa" and self.softcap is not None:
            return "torch's fused kernel has no softcap; blocks has"
        return "it is only for a softcap; use sdpa otherwise" if backend == "blocks" and self.softcap is None else None

    @property
    def traits(self) -> Traits:
        return CAPPED_TRAITS if self.sink is None else SINK_TRAITS

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        keys, values = (widen(expand_heads(x, q.shape[1])) for x in (k, v))
        scores = widen(q) @ keys.mT / q.shape[-1] ** 0.5
        if self.softcap is not None:
            scores = self.softcap * (scores / self.softcap).tanh()
        allowed = mask.dense(q.shape[2], k.shape[2], device=q.device)
        if self.sink is None:
            return (masked_softmax(scores, allowed) @ values).to(q.dtype)
        scores = torch.cat((scores, self.sinks(q)[..., None]), -1)
        weights = masked_softmax(scores, F.pad(allowed, (0, 1), value=True))
        return (weights[..., :-1] @ values).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        sinks = self.sinks(q)
        if self.softcap is None:
            return sink.attend(q, k, v, sinks, mask)
        n, m = q.shape[2], k.shape[2]
        tensors = SinkInputs(widen(q), widen(k), widen(v), sinks, mask.key_valid(m))
        ahead = 0 if mask.causal else UNBOUNDED
        options = ScoreOptions(self.softcap, q.shape[-1] ** -0.5, mask.start(n, m), ahead=ahead)
        return score_tiles.attend(tensors, options).to(q.dtype)

    def sinks(self, q: Tensor) -> Tensor:
        """The additional logit of each query ``[B, H, N]``, minus infinity without a sink."""
        zeros = widen(q[..., 0])
        if self.sink is None:
            return torch.full_like(zeros, -inf)
        return self.sink.to(zeros.dtype)[:, None].expand(zeros.shape)
