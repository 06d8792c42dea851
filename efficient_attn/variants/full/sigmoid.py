"""Sigmoid attention."""

import math
from functools import partial

import torch
from torch import Tensor

from ...contract import Mask, Traits
from ...errors import UsageError
from ...kernels.dense import expand_heads, widen
from ...kernels.selected_keys import recompute
from ...kernels.softmax.softmax_kernel import cut_range
from .softmax_attention import SoftmaxAttention

# created once, because every call reads them; without a fixed length the bias depends on the number of keys
FIXED = Traits(normalised=False)
BY_CALL = Traits(normalised=False, strictly_causal=False, padded_as_trimmed=False, decode=False)
BLOCK_ROWS = 256  # query rows whose weights exist at a time


class Sigmoid(SoftmaxAttention):
    """sigmoid(q k^T / sqrt(D) + b) v with b = -log M: weights of a row do not compete, and sum to about 1 at first
    (Ramapuram et al. 2024, arXiv:2409.04431).

    length: that of the bias, -log(length), in place of the call's number of keys M, padded ones included. With a length
    a prefix of the output is that of the prefix, so that it decodes.
    """

    backends = ("blocks", "dense")

    def __init__(self, *, length: int | None = None) -> None:
        super().__init__()
        if length is not None and length < 1:
            raise UsageError(f"sigmoid: length must be at least 1, not {length}")
        self.length = length

    def why_not(self, backend: str) -> str | None:
        return None

    @property
    def traits(self) -> Traits:
        return BY_CALL if self.length is None else FIXED

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        heads, m = q.shape[1], k.shape[2]
        scores = widen(q) @ widen(expand_heads(k, heads)).mT * q.shape[3] ** -0.5 - math.log(self.length or m)
        weights = scores.sigmoid() * mask.dense(q.shape[2], m, device=q.device)
        return (weights @ widen(expand_heads(v, heads))).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        start, valid = mask.start(n, m), mask.key_valid(m)
        values = v if valid is None else v * valid[:, None, :, None]
        parts = []
        for rows in cut_range(n, BLOCK_ROWS):
            last = min(max(start + rows.stop, 0), m) if mask.causal else m
            block = partial(_attend, first=start + rows.start if mask.causal else m, bias=math.log(self.length or m))
            parts.append(recompute(block, q[:, :, rows], k[:, :, :last], values[:, :, :last]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, first: int, bias: float) -> Tensor:
    """first: the position of the first row, which sees the keys up to its own."""
    batch, heads, n, width = q.shape
    rows = (widen(q) * width**-0.5).unflatten(1, (k.shape[1], -1)).flatten(2, 3)
    weights = (rows @ widen(k).mT).sub_(bias).sigmoid_()
    if first + 1 < k.shape[2]:
        weights = weights.unflatten(2, (-1, n)).tril(first).flatten(2, 3)
    return (weights @ widen(v)).view(batch, heads, n, -1).to(q.dtype)
