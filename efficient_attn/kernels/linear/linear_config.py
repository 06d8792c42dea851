"""The arguments of a call of linear attention besides its tensors, and its division with the derivative."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...feature_maps import FeatureMap
from ..dense import widen
from ..softmax.softmax_kernel import cut_range
from ..step_sizes import limit_elements

MAX_FEATURE_ELEMENTS = 1 << 18  # numbers of one side's features that exist together, so that they stay in the cache
MIN_STRETCH = 32  # positions a stretch at least: below that the products become too small

Divisor = Callable[[Tensor], Tensor]
Features = tuple[Tensor, Tensor | None]


def replace_zero_by_one(total: Tensor) -> Tensor:
    """A sum of nonnegative weights, with 1 instead of zero: such rows are zero."""
    return total.masked_fill(total == 0, 1)


class KeyInputs(NamedTuple):
    """``k [Bh, M, D]``, ``v [Bh, M, E]``, with padding the valid keys, bool ``[Bh, M]``, and the logarithms ``[Bh, M]``
    of keys' weights, if they have any besides their features."""

    k: Tensor
    v: Tensor
    valid: Tensor | None = None
    logs: Tensor | None = None

    def rows(self, rows: slice) -> KeyInputs:
        """The keys at some positions."""
        return KeyInputs(*(None if x is None else x[:, rows] for x in self))  # pyright: ignore[reportArgumentType]

    def lanes(self, lanes: slice) -> KeyInputs:
        """The keys of some heads."""
        return KeyInputs(*(None if x is None else x[lanes] for x in self))  # pyright: ignore[reportArgumentType]


class Stretch(NamedTuple):
    """The keys of some positions in a kernel: features ``y [Bh, L, F]``, values ``v [Bh, L, E]``, and logarithms of
    weights ``a [Bh, L]``."""

    y: Tensor
    v: Tensor
    a: Tensor | None


class OutputGrads(NamedTuple):
    """Gradients by the numerators ``[Bh, G, L, E]`` of rows and by their sums of weights ``[Bh, G, L, 1]``."""

    top: Tensor
    total: Tensor | None

    def join(self) -> Tensor:
        """Both in one tensor ``[Bh, G, L, E + 1]``."""
        return self.top if self.total is None else torch.cat(self, 3)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, eq=False)
class LinearConfig:
    """The arguments of a call besides its tensors. divisor: of outputs, a function of the sum of a row's weights; None
    without division. decays: keys decay with distance, at a rate of their head. start, first_key: positions of the
    first query and the first key. parameters: of the feature map. native: whether causal stretches run in C++, which
    does not support key weights. wide_rows: whether divided rows have the dtype of sums, as the backward pass reads
    them: rounded, they leave an error where the gradient cancels, as by a query's only feature, which no row depends
    on."""

    phi: FeatureMap
    divisor: Divisor | None
    decays: bool = False
    start: int = 0
    first_key: int = 0
    parameters: tuple[Tensor, ...] = ()
    native: bool = False
    wide_rows: bool = False
    rates: tuple[float, ...] = ()

    @property
    def steady(self) -> bool:
        """Whether logarithms of keys' weights rise by as much at every position, a rate of their head."""
        return self.decays and not self.phi.scaled

    def widen(self, x: Tensor) -> Tensor:
        """x in the dtype in which sums over it are accumulated."""
        return x.double() if self.phi.exact else widen(x)

    def make_rows(self, q: Tensor, sums: Tensor) -> Tensor:
        """Rows ``[Bh, G, N, E]`` to write divided ones into. sums: over keys, ``[.., E]``."""
        return (sums if self.wide_rows else q).new_empty(*q.shape[:3], sums.shape[-1])

    def queries(self, q: Tensor, rows: slice) -> Features:
        """Features ``[Bh, G, rows, F]`` of the queries of these rows, without their common factors, which cancel."""
        return self.phi(self.widen(q), self._positions(q, self.start, rows))[0], None

    def keys(self, k: Tensor, rows: slice, valid: Tensor | None, logs: Tensor | None) -> Features:
        """Features ``[Bh, rows, F]``, zero where hidden, and the logarithms of their weights, if there are any."""
        return self._weigh(*self.phi(self.widen(k), self._positions(k, self.first_key, rows)), rows, valid, logs)

    def _weigh(self, y: Tensor, a: Tensor | None, rows: slice, valid: Tensor | None, logs: Tensor | None) -> Features:
        if logs is not None:
            a = logs[:, rows] if a is None else a + logs[:, rows]
        if valid is not None:
            hidden = ~valid[:, rows]
            y = y.masked_fill(hidden[..., None], 0)
            if a is not None and not self.decays:
                a = a.masked_fill(hidden, float("-inf"))
        return y, a

    def stretch(self, keys: KeyInputs, rows: slice) -> Stretch:
        """The features of the keys at these positions, with their values."""
        y, a = self.keys(keys.k[:, rows], rows, keys.valid, keys.logs)
        return Stretch(y, self.widen(keys.v[:, rows]), a)

    def is_joined(self, q: Tensor) -> bool:
        """Whether features of queries and keys are made together: on a GPU, where each operation costs a launch."""
        return q.device.type != "cpu" and (self.start == self.first_key or not self.phi.positional)

    def join(self, q: Tensor, k: Tensor, rows: slice) -> Tensor:
        """Queries and keys of these positions ``[Bh G + Bh, L, D]``."""
        return torch.cat([q[:, :, rows].flatten(0, 1), k[:, rows]])

    def joined(self, x: Tensor, q: Tensor, keys: KeyInputs, rows: slice) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features of what `join` returned: of queries and of keys, and the logarithms of keys' weights."""
        return self.split(self.phi(self.widen(x), self._positions(q, self.start, rows)), q, keys, rows)

    def split(
        self, features: Features, q: Tensor, keys: KeyInputs, rows: slice
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features of queries and of keys, weighed."""
        joined, logs = features
        y, a = joined[-len(keys.k) :], None if logs is None else logs[-len(keys.k) :]
        return joined[: -len(keys.k)].unflatten(0, q.shape[:2]), *self._weigh(y, a, rows, keys.valid, keys.logs)

    def both(self, q: Tensor, keys: KeyInputs, rows: slice) -> tuple[Tensor, Stretch]:
        """Features of the queries and keys at these positions, with values as they are."""
        if self.is_joined(q):
            x, y, a = self.joined(self.join(q, keys.k, rows), q, keys, rows)
        else:
            x, _ = self.queries(q[:, :, rows], rows)
            y, a = self.keys(keys.k[:, rows], rows, keys.valid, keys.logs)
        return x, Stretch(y, keys.v[:, rows], a)

    def _positions(self, x: Tensor, start: int, rows: slice) -> Tensor | None:
        return torch.arange(start + rows.start, start + rows.stop, device=x.device) if self.phi.positional else None

    def fit(self, size: int, x: Tensor) -> int:
        """The number of positions of ``x [.., L, D]`` to process together: ``size``, or fewer if there are many
        features."""
        while size > MIN_STRETCH and self._count_features(x) * size > limit_elements(x, MAX_FEATURE_ELEMENTS):
            size //= 2
        return size

    def _count_features(self, x: Tensor) -> int:
        """Features of a position; those of a single head count double, so that they stay few relative to its output."""
        *lanes, _, width = x.shape
        return max(math.prod(lanes), 2) * self.phi.width(width)

    def cut(self, x: Tensor, step: int = MIN_STRETCH) -> list[slice]:
        """Stretches of positions of ``x [.., L, D]`` whose features fit the cache, each but the last a multiple of
        ``step``."""
        size = max(limit_elements(x, MAX_FEATURE_ELEMENTS) // self._count_features(x) // step, 1) * step
        return list(cut_range(x.shape[-2], size))

    @property
    def saves_divisors(self) -> bool:
        """Whether divisors are saved instead of sums of weights: a row whose sum is zero has no gradient by it."""
        return self.divisor is replace_zero_by_one

    def divisors(self, totals: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Divisors of all rows, and their slopes by the sums of weights, from what `divide` returned. Without slopes
        they are 1."""
        if self.divisor is None or totals is None or self.saves_divisors:
            return totals, None
        with torch.enable_grad():
            totals = totals.detach().requires_grad_()
            divisors = self.divisor(totals)
            return divisors.detach(), torch.autograd.grad(divisors.sum(), totals)[0]


def divide(config: LinearConfig, top: Tensor, total: Tensor | None, out: Tensor) -> Tensor | None:
    """Write the divided rows into ``out``, of the same shape and any dtype; it may be ``top`` itself. Returns what
    `LinearConfig.divisors` needs for gradients."""
    if config.divisor is None or total is None:
        if out is not top:
            out.copy_(top)
        return None
    divisor = config.divisor(total)
    if out.dtype == top.dtype or top.device.type != "cpu":  # a CPU would divide into a copy
        torch.div(top, divisor, out=out)
    else:
        out.copy_(top.div_(divisor))
    return divisor if config.saves_divisors else total


class SavedRows(NamedTuple):
    """What the gradient of divided rows needs: ``grad`` and ``out [Bh, G, N, E]``, and divisors ``[Bh, G, N, 1]`` with
    their slopes by the sums of weights, which may be 1."""

    grad: Tensor
    out: Tensor
    divisors: Tensor | None
    slopes: Tensor | None

    def divide_backward(self, rows: slice) -> OutputGrads:
        """The gradients by what was divided in some rows."""
        grad, out = self.grad[:, :, rows], self.out[:, :, rows]
        if self.divisors is None:
            return OutputGrads(widen(grad), None)
        divisor, slope = self.divisors[:, :, rows], None if self.slopes is None else self.slopes[:, :, rows]
        grad = grad.to(divisor.dtype)
        grad_top = grad / divisor
        weighted = grad_top * out
        if out.dtype != torch.float16:
            grad_total = weighted.sum(-1, keepdim=True).neg_()
            return OutputGrads(grad_top, grad_total if slope is None else grad_total.mul_(slope))
        # an output beyond the range of float16 is infinite, and its product with a gradient or slope of 0 would be NaN
        grad_total = weighted.masked_fill_(grad == 0, 0).sum(-1, keepdim=True).neg_()
        return OutputGrads(grad_top, grad_total if slope is None else (grad_total * slope).masked_fill_(slope == 0, 0))
