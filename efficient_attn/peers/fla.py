"""flash-linear-attention's operations in plain torch, from its package fla-core.

They define what its Triton kernels compute (backend ``fla`` of our mechanisms), and are the only implementation for
CPUs. Their files only need torch and einops, but importing them as modules would import all operations, and so Triton:
they are executed directly instead.
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..contract import Growth, Mask, Traits
from ..errors import check_at_least_one
from ..kernels.dense import widen
from ..registry import register
from ..variants.full.forgetting import Forgetting
from .hosting import FLA_DTYPES, LibraryAttention, LibraryForm, load_fla_operations

CHUNK_SIZE = 64  # positions a chunk of naive_chunk_linear_attn
CAUSAL = Traits(bidirectional=False, normalised=False, cross=False, padding=False, decode=False, grouped=False)


@register("peer_simple_gla", family="linear")
class PeerSimpleGLA(LibraryAttention):
    """flash-linear-attention's naive simple gated linear attention, with the decays of `retention` as gates.

    sum_j gamma^(i - j) (q_i . k_j / sqrt(D)) v_j over j <= i, gamma = 1 - 2^(-5 - h) for head h. form: ``chunk`` sums
    keys by chunks of ``chunk_size``, one chunk after another, padded to a multiple; ``recurrent`` processes one
    position after another; ``parallel`` writes all N x N weights. All compute in float32, also for half-precision
    inputs; float64 is refused.
    """

    declared = replace(CAUSAL, positional=True)
    only_dtypes: ClassVar = {"library": FLA_DTYPES}

    def __init__(self, *, form: Literal["chunk", "recurrent", "parallel"] = "chunk", chunk_size: int = 64) -> None:
        super().__init__()
        check_at_least_one("peer_simple_gla", chunk_size=chunk_size)
        self.form, self.chunk_size = form, chunk_size
        load_fla_operations("peer_simple_gla", "simple_gla")  # reports a missing library now

    @property
    def growth(self) -> Growth:
        if self.form == "parallel":
            return Growth("O(N^2)", "O(N^2): all weights are written to memory", self._cost)
        memory = "O(N): the weights of all chunks' pairs" if self.form == "chunk" else "O(N): one state"
        return Growth("O(N)", memory, self._cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """The pairs of a query's own chunk, or of all, and two products with a D x D state."""
        pairs = {"chunk": self.chunk_size, "recurrent": 0, "parallel": m}[self.form]
        return n * (pairs + (0 if self.form == "parallel" else self.dims.head_dim or 64))

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        i = torch.arange(q.shape[2], device=q.device)
        logs = _log_decays(q.shape[1], q.device)[:, None, None] * (i[:, None] - i).clamp(min=0)
        scores = widen(q) @ widen(k).mT * q.shape[-1] ** -0.5
        return (scores * logs.exp().tril().to(scores.dtype) @ widen(v)).to(q.dtype)

    @torch.compiler.disable  # its file is executed at the first call
    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor
    ) -> Tensor:
        batch, heads, n, _ = q.shape
        inputs_in_its_layout = [x.transpose(1, 2) for x in (q, k, v)]  # [B, N, H, D]
        decays = _log_decays(heads, q.device).float()
        operations = load_fla_operations("peer_simple_gla", "simple_gla")
        arguments = (*inputs_in_its_layout, decays.expand(batch, n, heads))
        options = {"chunk": {"chunk_size": self.chunk_size}, "recurrent": {"output_final_state": False}}
        out, _ = getattr(operations, f"naive_{self.form}_simple_gla")(*arguments, **options.get(self.form, {}))
        return out.transpose(1, 2).to(q.dtype)  # two of the forms return float32


def _log_decays(heads: int, device: torch.device) -> Tensor:
    """``[H]``: logarithms of gamma."""
    return torch.log1p(-(2.0 ** (-5 - torch.arange(heads, dtype=torch.float64, device=device))))


@register("peer_fla_linear", family="linear")
class PeerFlaLinear(LibraryAttention):
    """flash-linear-attention's chunked linear attention, normalized, with phi(x) = elu(x) + 1: causal `linear`.

    The map is its layer's ``feature_map="elu"``; queries are also divided by sqrt(D), and 1e-10 is added to sums of
    weights. It requires a multiple of 64 positions: shorter inputs are padded with zeros at the end. The states of all
    chunks are summed in the dtype of the inputs; float16, which would overflow, is refused.
    """

    declared = replace(CAUSAL, normalised=True)
    only_dtypes: ClassVar = {"library": (torch.float64, torch.float32, torch.bfloat16)}

    def __init__(self) -> None:
        super().__init__()
        load_fla_operations("peer_fla_linear", "linear_attn")

    @property
    def growth(self) -> Growth:
        work = CHUNK_SIZE + (self.dims.head_dim or 64)  # of a query
        return Growth("O(N)", "O(N): the states of all chunks", lambda n, m, causal: n * work)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        rows, keys = F.elu(widen(q)) + 1, F.elu(widen(k)) + 1
        weights = (rows @ keys.mT * q.shape[-1] ** -0.5).tril()
        return (weights / (weights.sum(-1, keepdim=True) + 1e-10) @ widen(v)).to(q.dtype)

    @torch.compiler.disable  # its file is executed at the first call
    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor
    ) -> Tensor:
        n = q.shape[2]
        arguments = [x.transpose(1, 2) for x in (F.elu(q) + 1, F.elu(k) + 1, v)]
        if missing := -n % CHUNK_SIZE:
            arguments = [F.pad(x, (0, 0, 0, 0, 0, missing)) for x in arguments]
        out = load_fla_operations("peer_fla_linear", "linear_attn").naive_chunk_linear_attn(*arguments, normalize=True)
        return out[:, :n].transpose(1, 2)


@register("peer_forgetting", family="full")
class PeerForgetting(LibraryForm):
    """flash-linear-attention's naive forgetting attention: `forgetting` with all N x N weights, in float32."""

    only_dtypes: ClassVar = {"library": FLA_DTYPES}

    def __init__(self) -> None:
        super().__init__(Forgetting())
        load_fla_operations("peer_forgetting", "forgetting_attn")

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N^2): all weights are written to memory", lambda n, m, causal: n * m)

    @torch.compiler.disable  # its file is executed at the first call
    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor
    ) -> Tensor:
        naive = load_fla_operations("peer_forgetting", "forgetting_attn").naive_forgetting_attn
        out = naive(*(x.transpose(1, 2) for x in (q, k, v, inputs["log_forget"])))
        return out.transpose(1, 2).to(q.dtype)
