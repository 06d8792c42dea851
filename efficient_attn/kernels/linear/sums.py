"""Linear attention without order: keys are summed first, and every query reads the same sums.

Tensors here are folded: queries ``[Bh, G, N, D]`` (G heads share one key-value head), keys ``[Bh, M, D]``, values
``[Bh, M, E]``. Features exist for one stretch of positions at a time, and again in the backward pass.

Keys may have a weight, given as its logarithm a. All sums are then kept relative to a reference, the largest a so far,
as softmax kernels keep a running maximum: sum_j exp(a_j - reference) phi(k_j) v_j. With ``Recipe.decays`` the reference
is part of the definition instead: the newest position's own a, whether its key is hidden or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...feature_maps import FeatureMap
from ..dense import wide
from ..products import add_products, rows_times

AT_ONCE = 1 << 18  # numbers of one side's features that exist together: they stay in the cache
LEAST = 32  # positions a stretch at least: below that the products become too small

Divisor = Callable[[Tensor], Tensor]
Features = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a call is besides its tensors.

    divisor: what outputs are divided by, a function of the sum of a row's weights; None where they are not divided.
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


class Sums(NamedTuple):
    """What is kept of keys: phi(k) v^T ``[Bh, F, E]``, phi(k) ``[Bh, F]``, and what both are relative to ``[Bh]``."""

    kv: Tensor
    k: Tensor
    reference: Tensor | None = None  # None where no key has a weight, -inf before the first


def make_sums(recipe: Recipe, rows: int, width: int, value_width: int, like: Tensor, *, weighted: bool) -> Sums:
    """The sums of no keys."""
    features, like = recipe.phi.width(width), recipe.wide(like)
    reference = like.new_full((rows,), float("-inf"), dtype=torch.float64) if weighted else None
    return Sums(like.new_zeros(rows, features, value_width), like.new_zeros(rows, features), reference)


def unpack(before: Sums | None) -> tuple[Tensor | None, ...]:
    """What came before as arguments of an autograd function."""
    return (None, None, None) if before is None else tuple(before)


def start_sums(recipe: Recipe, k: Tensor, v: Tensor, logs: Tensor | None, before: tuple[Tensor | None, ...]) -> Sums:
    """What came before, in tensors that may be added to."""
    kv, z, reference = before
    if kv is None or z is None:
        weighted = logs is not None or recipe.phi.scaled
        return make_sums(recipe, k.shape[0], k.shape[2], v.shape[2], v[:0], weighted=weighted)
    return Sums(kv.clone(), z.clone(), reference)


def sum_keys(
    recipe: Recipe, k: Tensor, v: Tensor, valid: Tensor | None, logs: Tensor | None, before: Sums | None = None
) -> Sums:
    """The sums over all valid keys, added to those before. logs: weights' logarithms ``[Bh, M]``."""
    given = (recipe, valid, k, v, logs, *unpack(before), *recipe.parameters)
    return Sums(*cast(tuple[Tensor, ...], _Summed.apply(*given)))


def read(recipe: Recipe, q: Tensor, sums: Sums, fading: Tensor | None = None) -> Tensor:
    """Every query over the same sums: ``[Bh, G, N, E]``. fading: logarithms ``[Bh, N]`` by which rows see them less."""
    return cast(Tensor, _Read.apply(recipe, q, sums.kv, sums.k, fading, *recipe.parameters))


def relative(a: Tensor, reference: Tensor) -> Tensor:
    """exp(a - reference), 0 where a is -inf, whatever the reference is."""
    return (a - reference.masked_fill(reference == float("-inf"), 0)).exp()


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recipe: Recipe, valid: Any, k: Tensor, v: Tensor, logs: Any, *rest: Any) -> Any:
        kv, z, reference = start_sums(recipe, k, v, logs, rest[:3])
        before = reference
        for rows in recipe.cut(k.shape[1], k.shape[0], k.shape[2]):
            y, a = recipe.keys(k[:, rows], rows, valid, logs)
            if a is not None and reference is not None:
                newest = (a[:, -1] if recipe.decays else torch.maximum(reference, a.amax(1))).to(reference.dtype)
                carry = relative(reference, newest).to(kv.dtype)[:, None]
                kv.mul_(carry[..., None])
                z.mul_(carry)
                reference = newest
                weights = relative(a, newest[:, None]).to(y.dtype)[..., None]
                add_products(kv, y, v[:, rows] * weights)  # values are mostly narrower than features
                z += (weights.mT @ y)[:, 0]
            else:
                add_products(kv, y, recipe.wide(v[:, rows]))
                z += y.sum(1)
        ctx.recipe = recipe
        ctx.save_for_backward(valid, k, v, logs, before, reference)
        if reference is not None:
            reference = reference.clone()
            ctx.mark_non_differentiable(reference)
        return kv, z, reference

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        recipe: Recipe = ctx.recipe
        valid, k, v, logs, before, reference = ctx.saved_tensors
        by_kv, by_z = grads[0].contiguous(), grads[1]
        by_k, by_v, by_logs = torch.empty_like(k), torch.empty_like(v), None if logs is None else torch.empty_like(logs)
        tape = Tape(recipe)
        for rows in recipe.cut(k.shape[1], k.shape[0], k.shape[2]):
            y, a, back = tape.record(partial(recipe.keys, rows=rows, valid=valid, logs=logs), k[:, rows])
            scale = 1 if a is None else relative(a, reference[:, None]).to(y.dtype)[..., None]
            by_v[:, rows] = rows_times(y, by_kv).mul_(scale)
            by_y = rows_times(recipe.wide(v[:, rows]) * scale, by_kv.mT).add_(by_z[:, None] * scale)
            by_a = None if a is None else (by_y * y).sum(-1)
            if by_logs is not None and by_a is not None:
                by_logs[:, rows] = by_a
            by_k[:, rows] = back(by_y, by_a)
        if reference is not None:
            carry = relative(before, reference).to(by_kv.dtype)[:, None]
            by_kv, by_z = by_kv * carry[..., None], by_z * carry
        by_state = (by_kv, by_z) if ctx.needs_input_grad[5] else (None, None)
        return None, None, by_k, by_v, by_logs, *by_state, None, *tape.by_parameters


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recipe: Recipe, q: Tensor, kv: Tensor, z: Tensor, fading: Any, *parameters: Tensor) -> Tensor:
        out = q.new_empty(*q.shape[:3], kv.shape[2])
        totals = kv.new_empty(*q.shape[:3], 1) if recipe.divisor else None
        for rows in recipe.cut(q.shape[2], q.shape[0] * q.shape[1], q.shape[3]):
            x = _fade(recipe.queries(q[:, :, rows], rows)[0], fading, rows)
            top, total = rows_times(x.flatten(1, 2), kv).view(*x.shape[:3], -1), None
            if totals is not None:
                total = totals[:, :, rows] = along(x.flatten(1, 2), z).view(*x.shape[:3], 1)
            divide(recipe, top, total, out[:, :, rows])
        ctx.recipe = recipe
        ctx.save_for_backward(q, kv, z, fading, out, totals)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        recipe: Recipe = ctx.recipe
        q, kv, z, fading, out, totals = ctx.saved_tensors
        by_q, by_kv, by_z = torch.empty_like(q), torch.zeros_like(kv), torch.zeros_like(z)
        tape, parts = Tape(recipe), recipe.divisors(totals)
        for rows in recipe.cut(q.shape[2], q.shape[0] * q.shape[1], q.shape[3]):
            x, _, back = tape.record(partial(recipe.queries, rows=rows), q[:, :, rows])
            flat = _fade(x, fading, rows).flatten(1, 2)
            by_top, by_total = (None if g is None else g.flatten(1, 2) for g in undivide(grads[0], out, *parts, rows))
            assert by_top is not None
            by_x = rows_times(by_top, kv.mT)
            add_products(by_kv, flat, by_top)
            if by_total is not None:
                by_x.addcmul_(by_total, z[:, None])
                by_z += (by_total.mT @ flat)[:, 0]
            by_q[:, :, rows] = back(_fade(by_x.view(x.shape), fading, rows))
        return None, by_q, by_kv, by_z, None, *tape.by_parameters


class Tape:
    """Differentiates a feature map stretch by stretch, and adds up the gradients of its parameters."""

    def __init__(self, recipe: Recipe) -> None:
        self.parameters = recipe.parameters
        self.by_parameters: list[Tensor | None] = [None] * len(recipe.parameters)

    def record(
        self, features: Callable[[Tensor], Features], x: Tensor
    ) -> tuple[Tensor, Tensor | None, Callable[..., Tensor]]:
        """Features of x and their logarithms, and a function from gradients by these to the gradient by x."""
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


def along(x: Tensor, z: Tensor) -> Tensor:
    """Products ``[Bh, rows, 1]`` of rows ``[Bh, rows, F]`` with a vector ``[Bh, F]``, the way round that is faster."""
    return (z[:, None] @ x.mT).mT


def divide(recipe: Recipe, top: Tensor, total: Tensor | None, out: Tensor) -> None:
    """Write rows divided as the job says into ``out``, of the same shape and any dtype."""
    if recipe.divisor is None or total is None:
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


def _fade(x: Tensor, fading: Tensor | None, rows: slice) -> Tensor:
    return x if fading is None else x * fading[:, None, rows, None].exp().to(x.dtype)
