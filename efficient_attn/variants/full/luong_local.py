"""Luong's local attention."""

from typing import Literal

import torch
from torch import Tensor, nn

from ...contract import Budget, Dims, Growth, Mask, Shape, Traits
from ...errors import UsageError, check_at_least_one
from ...kernels.dense import expand_heads, masked_softmax, widen
from ...kernels.softmax import local_window
from ...kernels.softmax.local_window import LocalInputs, LocalOptions
from ...patterns.pair_counts import count_possible_pairs
from .scored import cast_parameter, count_heads, group_heads
from .softmax_attention import SoftmaxAttention

Position = Literal["predicted", "own"]
TRAITS = Traits(normalised=False, positional=True)  # created once, because every call reads them


class LuongLocal(SoftmaxAttention):
    """Softmax over a window around a position, with weights that decay with the distance from it (Luong et al. 2015,
    arXiv:1508.04025, local attention): sum_j w_ij exp(-(j - p_i)^2 / (2 s^2)) v_j, where w_i is the softmax of
    q.k/sqrt(D) over the keys with abs(j - p_i) <= window and s = window / 2.

    position: ``predicted`` (local-p), p_i = S_i sigmoid(u . tanh(W q_i)), where S_i is the number of keys visible to i;
    or ``own`` (local-m), p_i = i. Parameters of each key-value head if predicted, drawn from ``seed``: ``form [Hkv, D,
    D]``, N(0, 1 / D), and ``u [Hkv, D]``, N(0, 1 / D). Needs dims with head_dim, and kv_heads or heads, then; raises
    `UsageError` without them, and for a window below 1.

    Backend ``windows``: with predicted positions each query's keys are gathered, which is limited by memory bandwidth;
    with their own positions neighbors share a range of keys.
    """

    backends = ("windows", "dense")

    def __init__(
        self, *, window: int = 64, position: Position = "predicted", dims: Dims = Dims(), seed: int = 0
    ) -> None:
        super().__init__()
        check_at_least_one("luong_local", window=window)
        self.window = window
        self.form = self.u = None
        if position == "predicted":
            heads, width = count_heads("luong_local", dims), dims.head_dim
            if width is None:
                raise UsageError("luong_local needs dims with head_dim, the input width of its position predictor")
            generator = torch.Generator().manual_seed(seed)
            self.form = nn.Parameter(torch.randn(heads, width, width, generator=generator) * width**-0.5)
            self.u = nn.Parameter(torch.randn(heads, width, generator=generator) * width**-0.5)

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """As many keys as a window on both sides has, at any position."""
        return {"window": max((budget.keys - 1) // 2, 1)}

    @property
    def traits(self) -> Traits:
        return TRAITS

    @property
    def growth(self) -> Growth:
        return Growth("O(N w)", "O(N)", self._cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        return min(count_possible_pairs(n, m, causal), n * (2 * self.window + 1))

    @property
    def kv_heads(self) -> int | None:
        return self.dims.kv_heads if self.u is None else len(self.u)

    def pairs(self, n: int, m: int, causal: bool) -> int | None:
        """None if positions are predicted: the number of keys in a window depends on its position."""
        if self.u is not None:
            return None
        centers = range(m - n, m)
        last = (i if causal else min(i + self.window, m - 1) for i in centers)
        return sum(max(0, end - max(i - self.window, 0) + 1) for i, end in zip(centers, last, strict=True))

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        keys, values = (widen(expand_heads(x, q.shape[1])) for x in (k, v))
        offsets = torch.arange(m, device=q.device) - self._compute_centers(q, mask, m)[..., None]
        offsets = offsets.to(values.dtype)
        in_window = mask.dense(n, m, device=q.device) & (offsets.abs() <= self.window)
        weights = masked_softmax(widen(q) @ keys.mT * q.shape[-1] ** -0.5, in_window)
        return (weights * (-2 * (offsets / self.window).square()).exp() @ values).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        centres = self._compute_centers(q, mask, m)
        tensors = LocalInputs(widen(q), widen(k), widen(v), centres, mask.key_valid(m))
        options = LocalOptions(mask.causal, mask.start(n, m), self.window, self_centred=self.u is None)
        return local_window.attend(tensors, options).to(q.dtype)

    def _compute_centers(self, q: Tensor, mask: Mask, m: int) -> Tensor:
        """p ``[B, H, N]``; predicted ones in float64, as those of float32 differ by a thousandth of a small window."""
        n = q.shape[2]
        positions = mask.positions(n, m, device=q.device)
        if self.form is None or self.u is None:
            return positions.to(widen(q[..., 0]).dtype).expand(q.shape[:3])
        q = q.double()
        hidden = (group_heads(q, len(self.u)) @ cast_parameter(self.form, q).mT[:, None]).tanh()
        share = (hidden * cast_parameter(self.u, q)[:, None, None]).sum(-1).sigmoid().flatten(1, 2)
        return share * self._count_visible(positions, mask, m).to(share.dtype)

    def _count_visible(self, positions: Tensor, mask: Mask, m: int) -> Tensor:
        """S ``[1 or B, 1, 1 or N]``."""
        valid = mask.key_valid(m)
        if not mask.causal:
            return positions.new_full((1, 1, 1), m) if valid is None else valid.sum(-1)[:, None, None]
        if valid is None:
            return (positions + 1).clamp(0, m)[None, None]
        cumulative = torch.cat([valid.new_zeros(len(valid), 1), valid], 1).cumsum(1)
        return cumulative[:, (positions + 1).clamp(0, m)][:, None]

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        workspace = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        blocks = 0 if self.backend == "dense" else 3 if training else 2
        return workspace + blocks * local_window.BLOCK_ELEMENTS * itemsize

    @property
    def absolute(self) -> bool:
        """Whether positions are predicted, from the number of keys in a row."""
        return self.u is not None

    def why_no_starts(self) -> str | None:
        return "its predicted positions depend on the number of keys in a row" if self.absolute else None
