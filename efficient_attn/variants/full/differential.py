"""Differential attention."""

from itertools import product

import torch
from torch import Tensor, nn

from ...contract import Dims, Mask, Traits
from ...errors import UsageError
from ...kernels.dense import softmax_attention, widen
from ...kernels.softmax.sdpa import attend
from .windowed_softmax import WindowedSoftmax

# created once, because every call reads them: by whether rows are normed and whether there is a window
TRAITS = {
    (norm, positional): Traits(normalised=False, linear_values=not norm, positional=positional)
    for norm, positional in product((False, True), repeat=2)
}
EPSILON = 1e-5  # of the norm, as in the paper's code
DEVIATION = 0.1  # of the initial vectors, as in the paper's code


class Differential(WindowedSoftmax):
    """(1 - l0) norm((softmax(q1 k1^T / sqrt(D/2)) - l softmax(q2 k2^T / sqrt(D/2))) v), where q1, q2 are the halves of
    a query's channels: what both softmaxes attend to alike is noise, and cancels (Differential Transformer, Ye et al.
    2024, arXiv:2410.05258).

    l = exp(a . b) - exp(c . d) + l0 with four learned vectors ``[D / 2]``, drawn from ``seed``. l0: initial value; the
    paper has .8 - .6 exp(-.3 (depth - 1)) by layer. norm: of each head's row, divided by its root mean square, with a
    learned ``gain [E]``; without it the difference alone. window: both softmaxes are over the keys within so many
    positions, as in `sliding_window`. Needs dims with head_dim, an even number.
    """

    backends = ("sdpa", "dense")

    def __init__(
        self, *, l0: float = 0.8, norm: bool = True, window: int | None = None, dims: Dims = Dims(), seed: int = 0
    ) -> None:
        super().__init__(window)
        if dims.head_dim is None or dims.head_dim % 2:
            raise UsageError("differential: needs dims with an even head_dim, whose halves are two queries and keys")
        if not 0 <= l0 < 1:
            raise UsageError(f"differential: l0 must be from 0 to below 1, not {l0}")
        self.l0, self.norm = l0, norm
        generator = torch.Generator().manual_seed(seed)
        self.vectors = nn.Parameter(DEVIATION * torch.randn(4, dims.head_dim // 2, generator=generator))
        self.gain = nn.Parameter(torch.ones(dims.value_dim or dims.head_dim)) if norm else None

    @property
    def traits(self) -> Traits:
        return TRAITS[self.norm, self.sliding is not None]

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        allowed = self.find_allowed(mask, q.shape[2], k.shape[2], q.device)
        halves = zip(widen(q).chunk(2, -1), widen(k).chunk(2, -1), strict=True)
        first, second = (softmax_attention(x, y, widen(v), allowed) for x, y in halves)
        return self._subtract(first, second).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        halves = zip(widen(q).chunk(2, -1), widen(k).chunk(2, -1), strict=True)
        run = attend if self.sliding is None else self.sliding.compute
        first, second = (run(x, y, widen(v), mask) for x, y in halves)  # in half precision rounding would not cancel
        return self._subtract(first, second).to(q.dtype)

    def _subtract(self, first: Tensor, second: Tensor) -> Tensor:
        a, b, c, d = self.vectors.to(first.dtype)
        weight = (a @ b).exp() - (c @ d).exp() + self.l0
        out = first - weight * second
        if self.gain is None:
            return out
        scale = (out.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
        return out * scale * self.gain.to(out.dtype) * (1 - self.l0)
