"""Bidirectional linear attention: keys are summed first, and every query reads the same sums.

Tensors here are folded: queries ``[Bh, G, N, D]`` (G heads share one key-value head), keys ``[Bh, M, D]``, values
``[Bh, M, E]``. Features exist for one stretch of positions at a time, and are recomputed in the backward pass.

Keys may have a weight, given as its logarithm a. All sums are then relative to a reference, the largest a so far, like
the running maximum of softmax kernels: sum_j exp(a_j - reference) phi(k_j) v_j. With ``LinearConfig.decays`` the
reference is part of the definition instead: the newest position's own a, even if its key is masked.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..derivatives import KernelFunction, differentiate_once
from ..products import add_products, multiply_rows
from .linear_config import FeatureTape, LinearConfig, divide, divide_backward

KERNEL = "the kernel of linear attention"


class Sums(NamedTuple):
    """Sums over keys: phi(k) v^T ``[Bh, F, E]``, phi(k) ``[Bh, F]`` if they are needed as divisors, and the reference
    of both ``[Bh]``."""

    kv: Tensor
    z: Tensor
    reference: Tensor | None = None  # None where no key has a weight, -inf before the first


def make_sums(config: LinearConfig, rows: int, width: int, value_width: int, like: Tensor, *, weighted: bool) -> Sums:
    """The sums of no keys."""
    features, like = config.phi.width(width), config.widen(like)
    reference = like.new_full((rows,), float("-inf"), dtype=torch.float64) if weighted else None
    return Sums(like.new_zeros(rows, features, value_width), like.new_zeros(rows, features), reference)


def unpack_past(past: Sums | None) -> tuple[Tensor | None, ...]:
    """The past as arguments of an autograd function."""
    return (None, None, None) if past is None else tuple(past)


def start_sums(
    config: LinearConfig, k: Tensor, v: Tensor, logs: Tensor | None, past: tuple[Tensor | None, ...]
) -> Sums:
    """The past as tensors that may be added to."""
    kv, z, reference = past
    if kv is None or z is None:
        weighted = logs is not None or config.phi.scaled
        return make_sums(config, k.shape[0], k.shape[2], v.shape[2], v[:0], weighted=weighted)
    return Sums(kv.clone(), z.clone(), reference)


def sum_keys(
    config: LinearConfig, k: Tensor, v: Tensor, valid: Tensor | None, logs: Tensor | None, past: Sums | None = None
) -> Sums:
    """The sums over all valid keys, added to those before. logs: weights' logarithms ``[Bh, M]``."""
    if torch.compiler.is_compiling():
        return _sum_at_once(config, k, v, valid, logs, past)
    arguments = (config, valid, k, v, logs, *unpack_past(past), *config.parameters)
    return Sums(*cast(tuple[Tensor, ...], _SumKeysFunction.apply(*arguments)))


def read(config: LinearConfig, q: Tensor, sums: Sums, fading: Tensor | None = None) -> Tensor:
    """Every query over the same sums: ``[Bh, G, N, E]``. fading: logarithms ``[Bh, N]`` by which rows see them less."""
    if torch.compiler.is_compiling():
        return _read_at_once(config, q, sums, fading)
    arguments = (config, q, sums.kv, sums.z, fading, *config.parameters)
    return cast(tuple[Tensor, Tensor | None], _ReadSumsFunction.apply(*arguments))[0]


def _sum_at_once(
    config: LinearConfig, k: Tensor, v: Tensor, valid: Tensor | None, logs: Tensor | None, past: Sums | None
) -> Sums:
    """`sum_keys` in torch's own operations, with the features of all keys: the compiler may split them."""
    y, a = config.keys(k, slice(0, k.shape[1]), valid, logs)
    kv, z, reference = start_sums(config, k, v, logs, unpack_past(past))
    if a is not None and reference is not None:
        newest = a[:, -1] if config.decays else torch.maximum(reference, a.amax(1))
        newest = newest.to(reference.dtype).detach()
        carry = relative_weights(reference, newest).to(kv.dtype)[:, None]
        y = y * relative_weights(a, newest[:, None]).to(y.dtype)[..., None]
        kv, z, reference = kv * carry[..., None], z * carry, newest
    return Sums(kv + y.mT @ config.widen(v), z + y.sum(1), reference)


def _read_at_once(config: LinearConfig, q: Tensor, sums: Sums, fading: Tensor | None) -> Tensor:
    """`read` in torch's own operations."""
    all_rows = slice(0, q.shape[2])
    x = _fade(config.queries(q, all_rows)[0], fading, all_rows)
    flat = x.flatten(1, 2)
    top, total = (flat @ sums.kv).view(*x.shape[:3], -1), dot_rows(flat, sums.z).view(*x.shape[:3], 1)
    return apply_divisor(config, top, total).to(q.dtype)


def apply_divisor(config: LinearConfig, top: Tensor, total: Tensor) -> Tensor:
    """Numerators ``[Bh, G, N, E]`` divided as configured."""
    return top if config.divisor is None else top / config.divisor(total)


def relative_weights(a: Tensor, reference: Tensor) -> Tensor:
    """exp(a - reference), 0 where a is -inf, whatever the reference is."""
    return (a - reference.masked_fill(reference == float("-inf"), 0)).exp()


class _SumKeysFunction(KernelFunction):
    @staticmethod
    def forward(config: LinearConfig, valid: Any, k: Tensor, v: Tensor, logs: Any, *rest: Any) -> Any:
        kv, z, reference = start_sums(config, k, v, logs, rest[:3])
        for rows in config.cut(k.shape[1], k.shape[0], k.shape[2]):
            y, a = config.keys(k[:, rows], rows, valid, logs)
            if a is not None and reference is not None:
                newest = (a[:, -1] if config.decays else torch.maximum(reference, a.amax(1))).to(reference.dtype)
                carry = relative_weights(reference, newest).to(kv.dtype)[:, None]
                kv.mul_(carry[..., None])
                z.mul_(carry)
                reference = newest
                weights = relative_weights(a, newest[:, None]).to(y.dtype)[..., None]
                add_products(kv, y, v[:, rows] * weights)  # values are mostly narrower than features
                if config.divisor:
                    z += (weights.mT @ y)[:, 0]
            else:
                add_products(kv, y, config.widen(v[:, rows]))
                if config.divisor:
                    z += y.sum(1)
        return kv, z, None if reference is None else reference.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.recipe, valid, k, v, logs, _, _, past_reference, *_ = inputs
        ctx.save_for_backward(valid, k, v, logs, past_reference, output[2])
        if output[2] is not None:
            ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        arguments = (*grads[:2], *ctx.saved_tensors, ctx.recipe, ctx.needs_input_grad[5])
        return None, None, *differentiate_once(KERNEL, _sum_keys_gradients, *arguments)


def _sum_keys_gradients(
    grad_kv: Tensor,
    grad_z: Tensor,
    valid: Tensor | None,
    k: Tensor,
    v: Tensor,
    logs: Tensor | None,
    past_reference: Tensor | None,
    reference: Tensor | None,
    config: LinearConfig,
    has_past: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_Summed` from ``k`` on."""
    grad_kv = grad_kv.contiguous()
    grad_k, grad_v, grad_logs = (
        torch.empty_like(k),
        torch.empty_like(v),
        None if logs is None else torch.empty_like(logs),
    )
    tape = FeatureTape(config)
    for rows in config.cut(k.shape[1], k.shape[0], k.shape[2]):
        keys, hidden = (
            partial(config.keys, rows=rows, valid=valid, logs=logs),
            None if valid is None else ~valid[:, rows],
        )
        y, a, backward = tape.record(keys, k[:, rows], hidden)
        scale = 1 if a is None or reference is None else relative_weights(a, reference[:, None]).to(y.dtype)[..., None]
        grad_v[:, rows] = multiply_rows(y, grad_kv).mul_(scale)
        grad_y = multiply_rows(config.widen(v[:, rows]) * scale, grad_kv.mT).add_(grad_z[:, None] * scale)
        grad_a = None if a is None else (grad_y * y).sum(-1)
        if grad_logs is not None and grad_a is not None:
            grad_logs[:, rows] = grad_a
        grad_k[:, rows] = backward(grad_y, grad_a)
    if has_past and past_reference is not None and reference is not None:
        carry = relative_weights(past_reference, reference).to(grad_kv.dtype)[:, None]
        grad_kv, grad_z = grad_kv * carry[..., None], grad_z * carry
    past_grads = (grad_kv, grad_z) if has_past else (None, None)
    return grad_k, grad_v, grad_logs, *past_grads, None, *tape.grad_parameters


class _ReadSumsFunction(KernelFunction):
    @staticmethod
    def forward(
        config: LinearConfig, q: Tensor, kv: Tensor, z: Tensor, fading: Any, *parameters: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        out = q.new_empty(*q.shape[:3], kv.shape[2])
        totals = kv.new_empty(*q.shape[:3], 1) if config.divisor else None
        for rows in config.cut(q.shape[2], q.shape[0] * q.shape[1], q.shape[3]):
            x = _fade(config.queries(q[:, :, rows], rows)[0], fading, rows)
            top, total = multiply_rows(x.flatten(1, 2), kv).view(*x.shape[:3], -1), None
            if totals is not None:
                total = totals[:, :, rows] = dot_rows(x.flatten(1, 2), z).view(*x.shape[:3], 1)
            divide(config, top, total, out[:, :, rows])
        return out, totals

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.recipe, *tensors = inputs[:5]
        ctx.save_for_backward(*tensors, *output)
        if output[1] is not None:
            ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, *differentiate_once(KERNEL, _read_gradients, grads[0], *ctx.saved_tensors, ctx.recipe)


def _read_gradients(
    grad: Tensor,
    q: Tensor,
    kv: Tensor,
    z: Tensor,
    fading: Tensor | None,
    out: Tensor,
    totals: Tensor | None,
    config: LinearConfig,
) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_Read` from ``q`` on."""
    grad_q, grad_kv, grad_z = torch.empty_like(q), torch.zeros_like(kv), torch.zeros_like(z)
    tape, divisors = FeatureTape(config), config.divisors(totals)
    for rows in config.cut(q.shape[2], q.shape[0] * q.shape[1], q.shape[3]):
        x, _, backward = tape.record(partial(config.queries, rows=rows), q[:, :, rows])
        flat = _fade(x, fading, rows).flatten(1, 2)
        grad_top, grad_total = (
            None if g is None else g.flatten(1, 2) for g in divide_backward(grad, out, *divisors, rows)
        )
        assert grad_top is not None
        grad_x = multiply_rows(grad_top, kv.mT)
        add_products(grad_kv, flat, grad_top)
        if grad_total is not None:
            grad_x.addcmul_(grad_total, z[:, None])
            grad_z += (grad_total.mT @ flat)[:, 0]
        grad_q[:, :, rows] = backward(_fade(grad_x.view(x.shape), fading, rows))
    return grad_q, grad_kv, grad_z, None, *tape.grad_parameters


def dot_rows(x: Tensor, z: Tensor) -> Tensor:
    """Products ``[Bh, rows, 1]`` of rows ``[Bh, rows, F]`` with a vector ``[Bh, F]``, in the faster order."""
    return (z[:, None] @ x.mT).mT


def _fade(x: Tensor, fading: Tensor | None, rows: slice) -> Tensor:
    return x if fading is None else x * fading[:, None, rows, None].exp().to(x.dtype)
