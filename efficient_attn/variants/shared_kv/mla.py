"""Multi-head latent attention."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ...contract import Attention, Dims, Growth, Mask, Sample, Shape, Traits, Values
from ...contract.decode_state import LatentCache, allocate
from ...contract.row_starts import make_step_mask
from ...contract.shapes import Device, check_tensors
from ...errors import UsageError, check_at_least_one
from ...kernels.dense import softmax_attention, widen
from ...kernels.native.building import why_no_native
from ...kernels.softmax import latent
from ...patterns.pair_counts import count_possible_pairs

TRAITS = Traits(exact=True, values=False)  # created once, because every call reads them


class MultiHeadLatent(Attention):
    """Exact attention whose keys and values are computed from one cached latent (DeepSeek-AI 2024, arXiv:2405.04434).

    k is the latent ``[B, 1, M, C + R]`` and v is None: from a row c head h computes the key ``w_uk[h] c`` (D numbers)
    and the value ``w_uv[h] c`` (E numbers); the last R numbers are a key shared by all heads, for rotary positions,
    which are applied outside. q is ``[B, H, N, D + R]``, the output ``[B, H, N, E]``; scores are divided by sqrt(D +
    R).

    latent_dim: C, four times D unless given. rotary_dim: R. Parameters: ``w_uk [H, D, C]`` and ``w_uv [H, E, C]``,
    drawn from N(0, 1 / C), so that latents of unit variance give such keys and values. Needs dims with heads and
    head_dim, which is D + R; E is ``dims.value_dim``, else D. Raises `UsageError` without them.

    Backends: ``expanded`` computes keys and values, some heads at a time; ``absorbed`` moves the up-projections to
    queries and outputs and attends to the latents, as with a single key-value head; ``adaptive`` uses the one with
    fewer multiply-adds in each call: ``absorbed`` for few queries over many keys, as in decoding; ``cpp`` is
    ``adaptive`` with all decode steps in one pass of C++, for the CPU, built if it is not there.
    """

    backends = ("adaptive", "absorbed", "expanded", "cpp", "dense")
    only_on: ClassVar[Mapping[str, str]] = {"cpp": "cpu"}

    def __init__(
        self, *, latent_dim: int | None = None, rotary_dim: int = 0, dims: Dims = Dims(), seed: int = 0
    ) -> None:
        super().__init__()
        if dims.heads is None or dims.head_dim is None:
            raise UsageError("mla needs dims with heads and head_dim for the size of its projections")
        if dims.kv_heads not in (None, 1):
            raise UsageError(f"mla has one latent for all heads, dims set kv_heads={dims.kv_heads}")
        if not 0 <= rotary_dim < dims.head_dim:
            raise UsageError(f"mla: rotary_dim={rotary_dim} must be below head_dim={dims.head_dim}, which includes it")
        check_at_least_one("mla", latent_dim=latent_dim)
        self._rotary_dim, self._unrotated_dim = rotary_dim, dims.head_dim - rotary_dim
        self._latent_dim, self._value_dim = latent_dim or 4 * self._unrotated_dim, dims.value_dim or self._unrotated_dim
        generator = torch.Generator().manual_seed(seed)
        weights = (
            torch.randn(dims.heads, n, self._latent_dim, generator=generator)
            for n in (self._unrotated_dim, self._value_dim)
        )
        self.w_uk, self.w_uv = (nn.Parameter(w * self._latent_dim**-0.5) for w in weights)

    @property
    def traits(self) -> Traits:
        return TRAITS

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N)", self._cost, step=partial(self._cost, 1, causal=True))

    def why_not(self, backend: str) -> str | None:
        return why_no_native("decode") if backend == "cpp" else None

    @property
    def kv_heads(self) -> int:
        return 1

    @property
    def key_dim(self) -> int:
        return self._latent_dim + self._rotary_dim

    def shape_of(self, q: Tensor, k: Tensor, v: Values) -> Shape:
        if v is not None:
            raise UsageError("mla computes its values from the latent in k: pass None as v")
        check_tensors(q=q, k=k)
        (batch, heads, n, width), (kb, kv_heads, m, key_width) = q.shape, k.shape
        if kb != batch or key_width != self.key_dim:
            expected = f"[B, 1, M, {self.key_dim}]"
            raise UsageError(f"shapes do not fit: q {list(q.shape)}, k {list(k.shape)}; mla requires {expected}")
        return Shape(batch, heads, kv_heads, n, m, width, self._value_dim)

    def oracle(self, q: Tensor, k: Tensor, v: Values, mask: Mask, **inputs: Tensor) -> Tensor:
        rows, rotary_keys = widen(k).split((self._latent_dim, self._rotary_dim), -1)
        keys = torch.cat([rows @ widen(self.w_uk).mT, rotary_keys.expand(-1, q.shape[1], -1, -1)], -1)
        allowed = mask.dense(q.shape[2], k.shape[2], device=q.device)
        return softmax_attention(q, keys, rows @ widen(self.w_uv).mT, allowed).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Values, mask: Mask, **inputs: Tensor) -> Tensor:
        arguments = q, k, self.w_uk.to(q.dtype), self.w_uv.to(q.dtype), mask
        if self._choose_implementation(q.shape[2], k.shape[2], mask.causal) == "absorbed":
            return latent.attend_absorbed(*arguments, backend="cpp" if self.backend == "cpp" else "sdpa")
        return latent.attend_expanded(*arguments)

    def _choose_implementation(self, n: int, m: int, causal: bool) -> Literal["absorbed", "expanded"]:
        if self.backend == "absorbed" or self.backend == "expanded":
            return self.backend
        is_cheaper = self._count_work("absorbed", n, m, causal) < self._count_work("expanded", n, m, causal)
        return "absorbed" if is_cheaper else "expanded"

    def _count_work(self, implementation: str, n: int, m: int, causal: bool) -> float:
        """Multiply-adds of one head."""
        if implementation == "absorbed":
            n_projected, pair_work = n, self._latent_dim + self.key_dim
        else:
            n_projected, pair_work = m, self._unrotated_dim + self._rotary_dim + self._value_dim
        projection_work = n_projected * self._latent_dim * (self._unrotated_dim + self._value_dim)
        return count_possible_pairs(n, m, causal) * pair_work + projection_work

    def _cost(self, n: int, m: int, causal: bool) -> float:
        pair_work = self._unrotated_dim + self._rotary_dim + self._value_dim
        return self._count_work(self._choose_implementation(n, m, causal), n, m, causal) / pair_work

    def pairs(self, n: int, m: int, causal: bool) -> int:
        return count_possible_pairs(n, m, causal)

    def sample(
        self, shape: Shape, *, generator: torch.Generator, dtype: torch.dtype = torch.float32, device: Device = "cpu"
    ) -> Sample:
        sizes = (shape.heads, shape.n, shape.head_dim), (1, shape.m, self.key_dim)
        q, k = (torch.randn(shape.batch, *s, generator=generator).to(device=device, dtype=dtype) for s in sizes)
        return Sample(q, k, None, {})

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> LatentCache:
        row = torch.empty(batch, 1, 0, self.key_dim, dtype=dtype, device=device)
        return LatentCache(max_len, allocate(None, row, max_len))

    def why_no_starts(self) -> str | None:
        return None

    def advance(
        self, q: Tensor, k: Tensor, v: Values, state: LatentCache, **inputs: Tensor
    ) -> tuple[Tensor, LatentCache]:
        state = state.append(k)
        return self.run(q, state.filled(), None, make_step_mask(state.starts, state.length)), state

    def absorb(self, k: Tensor, v: Values, state: LatentCache, **inputs: Tensor) -> LatentCache:
        return state.append(k)
