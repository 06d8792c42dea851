"""What a call of linear attention is besides its tensors, and how it is differentiated stretch by stretch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...feature_maps import FeatureMap
from ..dense import wide

AT_ONCE = 1 << 18  # numbers of one side's features that exist together: they stay in the cache
LEAST = 32  # positions a stretch at least: below that the products become too small

Divisor = Callable[[Tensor], Tensor]
Features = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a call is besides its tensors.

    divisor: what outputs are divided by, a function of the sum of a row's weights; None where they are not divided.
    decays: keys fade with distance, at a rate of their head.
    start, first: positions of the first query and the first key. parameters: those that the map was made with.
    native: causal stretches go through our C++, which has no form for weights.
    """

    phi: FeatureMap
    divisor: Divisor | None
    decays: bool = False
    start: int = 0
    first: int = 0
    parameters: tuple[Tensor, ...] = ()
    native: bool = False

    @property
    def steady(self) -> bool:
        """Whether logarithms of keys' weights rise by as much at every position, a rate of their head."""
        return self.decays and not self.phi.scaled

    def wide(self, x: Tensor) -> Tensor:
        """As wide as its sums have to be."""
        return x.double() if self.phi.exact else wide(x)

    def queries(self, q: Tensor, rows: slice) -> Features:
        """Features ``[Bh, G, rows, F]`` of the queries of these rows. The factor of a query's own features cancels."""
        return self.phi(self.wide(q), self._positions(q, self.start, rows))[0], None

    def keys(self, k: Tensor, rows: slice, valid: Tensor | None, logs: Tensor | None) -> Features:
        """Features ``[Bh, rows, F]``, zero where hidden, and the logarithms of their weights, if there are any."""
        y, a = self.phi(self.wide(k), self._positions(k, self.first, rows))
        if logs is not None:
            a = logs[:, rows] if a is None else a + logs[:, rows]
        if valid is not None:
            hidden = ~valid[:, rows]
            y = y.masked_fill(hidden[..., None], 0)
            if a is not None and not self.decays:
                a = a.masked_fill(hidden, float("-inf"))
        return y, a

    def _positions(self, x: Tensor, start: int, rows: slice) -> Tensor | None:
        return torch.arange(start + rows.start, start + rows.stop, device=x.device) if self.phi.positional else None

    def fit(self, size: int, lanes: int, width: int) -> int:
        """A number of positions to take at once: this one, or less where the features are many."""
        while size > LEAST and self._features(lanes, width) * size > AT_ONCE:
            size //= 2
        return size

    def _features(self, lanes: int, width: int) -> int:
        """Features of a position; those of a single head count double, so that they stay few beside its output."""
        return max(lanes, 2) * self.phi.width(width)

    def cut(self, length: int, lanes: int, width: int, step: int = LEAST) -> list[slice]:
        """The positions cut into stretches whose features fit the cache, each but the last a multiple of ``step``."""
        size = max(AT_ONCE // self._features(lanes, width) // step, 1) * step
        return [slice(a, min(a + size, length)) for a in range(0, length, size)]

    def divisors(self, totals: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Divisors of all rows, and how much they follow the sums of weights."""
        if self.divisor is None or totals is None:
            return None, None
        with torch.enable_grad():
            totals = totals.detach().requires_grad_()
            found = self.divisor(totals)
            return found.detach(), torch.autograd.grad(found.sum(), totals)[0]


class Tape:
    """Differentiates a feature map stretch by stretch, and adds up the gradients of its parameters."""

    def __init__(self, recipe: Recipe) -> None:
        phi = recipe.phi
        self._back = None if recipe.parameters or phi.positional else phi.back
        self._wide = recipe.wide
        self.parameters = recipe.parameters
        self.by_parameters: list[Tensor | None] = [None] * len(recipe.parameters)

    def record(
        self, features: Callable[[Tensor], Features], x: Tensor, hidden: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Callable[..., Tensor]]:
        """Features of x and their logarithms, and a function from gradients by these to the gradient by x.

        That function may be called once, when the features are wanted no more. hidden: positions without features.
        """
        if (by_hand := self._back) is not None:
            y, a = features(x)

            def back_by_hand(by_y: Tensor, by_a: Tensor | None = None) -> Tensor:
                if hidden is not None:
                    by_y = by_y.masked_fill_(hidden[..., None], 0)
                return by_hand(self._wide(x), y, by_y, by_a)

            return y, a, back_by_hand
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            found = features(leaf)

        def back(*grads: Tensor | None) -> Tensor:
            pairs = [(y, g) for y, g in zip(found, grads, strict=False) if y is not None and y.requires_grad]
            if not pairs:
                return torch.zeros_like(leaf)
            sources = [leaf, *self.parameters]
            by_x, *others = torch.autograd.grad(
                [y for y, _ in pairs], sources, [g for _, g in pairs], allow_unused=True, materialize_grads=True
            )
            for i, other in enumerate(others):
                mine = self.by_parameters[i]
                self.by_parameters[i] = other if mine is None else mine + other
            return by_x

        return found[0].detach(), None if found[1] is None else found[1].detach(), back


def divide(recipe: Recipe, top: Tensor, total: Tensor | None, out: Tensor) -> None:
    """Write rows divided as the job says into ``out``, of the same shape and any dtype; it may be ``top`` itself."""
    if recipe.divisor is None or total is None:
        if out is not top:
            out.copy_(top)
    elif out.dtype == top.dtype:
        torch.div(top, recipe.divisor(total), out=out)
    else:
        out.copy_(top.div_(recipe.divisor(total)))


def undivide(
    grad: Tensor, out: Tensor, divisors: Tensor | None, slopes: Tensor | None, rows: slice
) -> tuple[Tensor, Tensor | None]:
    """Gradients by the numerators ``[Bh, G, rows, E]`` and by the sums of weights ``[Bh, G, rows, 1]`` of some rows."""
    if divisors is None or slopes is None:
        return wide(grad[:, :, rows]), None
    divisor = divisors[:, :, rows]
    by_out = grad[:, :, rows].to(divisor.dtype)
    by_total = (by_out * out[:, :, rows]).sum(-1, keepdim=True).neg_() / divisor * slopes[:, :, rows]
    return by_out / divisor, by_total
