"""Sigmoid attention."""

import math
from functools import partial

import torch
from torch import Tensor

from ...contract import Mask, Traits
from ...errors import UsageError
from ...kernels.dense import expand_heads, widen
from ...kernels.selected_keys import recompute
from ...kernels.softmax.score_tiles import UNBOUNDED
from ...kernels.softmax.softmax_kernel import cut_range
from .windowed_softmax import WindowedSoftmax

# created once, because every call reads them; without a fixed length the bias depends on the number of keys
FIXED, WINDOW = (Traits(normalised=False, positional=positional) for positional in (False, True))
BY_CALL = Traits(normalised=False, strictly_causal=False, padded_as_trimmed=False, decode=False)
BLOCK_ROWS, MIN_ROWS = 256, 32  # query rows whose weights exist at a time, and in small windows


class Sigmoid(WindowedSoftmax):
    """sigmoid(q k^T / sqrt(D) + b) v with b = -log M: weights of a row do not compete, and sum to about 1 at first
    (Ramapuram et al. 2024, arXiv:2409.04431).

    length: that of the bias, -log(length), in place of the call's number of keys M, padded ones included. With a length
    a prefix of the output is that of the prefix, so that it decodes. window: a query sees the keys within so many
    positions, as in `sliding_window`, and M is 2 window + 1, causal window + 1.
    """

    backends = ("blocks", "dense")

    def __init__(self, *, length: int | None = None, window: int | None = None) -> None:
        super().__init__(window)
        if length is not None and length < 1:
            raise UsageError(f"sigmoid: length must be at least 1, not {length}")
        self.length = length

    def why_not(self, backend: str) -> str | None:
        return None

    @property
    def traits(self) -> Traits:
        if self.window is not None:
            return WINDOW
        return BY_CALL if self.length is None else FIXED

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        heads, m = q.shape[1], k.shape[2]
        scores = widen(q) @ widen(expand_heads(k, heads)).mT * q.shape[3] ** -0.5 + self._find_bias(m, mask.causal)
        weights = scores.sigmoid() * self.find_allowed(mask, q.shape[2], m, q.device)
        return (weights @ widen(expand_heads(v, heads))).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        start, valid = mask.start(n, m), mask.key_valid(m)
        values = v if valid is None else v * valid[:, None, :, None]
        back = UNBOUNDED if self.window is None else self.window
        ahead = 0 if mask.causal else back
        parts = []
        for rows in cut_range(n, min(BLOCK_ROWS, max(back, MIN_ROWS))):
            first, last = (min(max(x, 0), m) for x in (start + rows.start - back, start + rows.stop + ahead))
            block = partial(
                _attend,
                bias=self._find_bias(m, mask.causal),
                distance=start + rows.start - first,
                back=back,
                ahead=ahead,
            )
            keys = slice(first, max(first, last))
            parts.append(recompute(block, q[:, :, rows], k[:, :, keys], values[:, :, keys]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    def _find_bias(self, m: int, causal: bool) -> float:
        if self.length is None and self.window is not None:
            m = self.window * (1 if causal else 2) + 1
        return -math.log(self.length or m)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, bias: float, distance: int, back: int, ahead: int) -> Tensor:
    """distance: of the first row from the first key. back, ahead: of the first and the last key that a row sees."""
    batch, heads, n, width = q.shape
    m = k.shape[2]
    rows = (widen(q) * width**-0.5).unflatten(1, (k.shape[1], -1)).flatten(2, 3)
    weights = (rows @ widen(k).mT).add_(bias).sigmoid_().unflatten(2, (-1, n))
    if distance + ahead < m - 1:
        weights = weights.tril(distance + ahead)
    if distance + n - 1 > back:
        weights = weights.triu(distance - back)
    return (weights.flatten(2, 3) @ widen(v)).view(batch, heads, n, -1).to(q.dtype)
