"""Bidirectional linear attention: keys are summed first, and every query reads the same sums.

    S = sum_j phi(k_j) v_j^T  [F, E],    z = sum_j phi(k_j)  [F],    out_i = phi(q_i)^T S / divisor(phi(q_i) . z)

(Katharopoulos et al. 2020, arXiv:2006.16236), and its recurrent form, in which a position is added to S and z. Tensors
are folded: queries ``[Bh, G, N, D]`` (G heads share one key-value head) and keys as in `KeyInputs`. Features exist for
one stretch of positions at a time, and are recomputed in the backward pass.

Keys may have a weight, given as its logarithm a. All sums are then relative to a reference, the largest a so far, like
the running maximum of softmax kernels: sum_j exp(a_j - reference) phi(k_j) v_j. With ``LinearConfig.decays`` the
reference is part of the definition instead: the newest position's own a, even if its key is masked.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ...feature_maps import power_of_e
from ..derivatives import KernelFunction, differentiate_once
from ..products import add_products, multiply_rows
from .feature_tape import FeatureTape
from .linear_config import KeyInputs, LinearConfig, SavedRows, divide

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


N_KEYS, NO_PAST = len(KeyInputs._fields), (None,) * len(Sums._fields)


def split_arguments(arguments: Sequence[Any]) -> tuple[KeyInputs, Sums | None]:
    """Keys and past of the flat arguments of an autograd function, whatever follows."""
    kv, *others = arguments[N_KEYS : N_KEYS + len(NO_PAST)]
    return KeyInputs(*arguments[:N_KEYS]), None if kv is None else Sums(kv, *others)


def start_sums(config: LinearConfig, keys: KeyInputs, past: Sums | None) -> Sums:
    """The past as tensors that may be added to."""
    if past is None:
        rows, _, width = keys.k.shape
        weighted = keys.logs is not None or config.phi.scaled
        return make_sums(config, rows, width, keys.v.shape[2], keys.v[:0], weighted=weighted)
    return Sums(past.kv.clone(), past.z.clone(), past.reference)


def sum_keys(config: LinearConfig, keys: KeyInputs, past: Sums | None = None) -> Sums:
    """The sums over all valid keys, added to those before."""
    if torch.compiler.is_compiling():
        return _sum_at_once(config, keys, past)
    arguments = (config, *keys, *(past or NO_PAST), *config.parameters)
    return Sums(*cast(tuple[Tensor, ...], _SumKeysFunction.apply(*arguments)))


def read(config: LinearConfig, q: Tensor, sums: Sums, fading: Tensor | None = None) -> Tensor:
    """Every query over the same sums: ``[Bh, G, N, E]``. fading: logarithms ``[Bh, N]`` by which rows see them less."""
    if torch.compiler.is_compiling():
        return _read_at_once(config, q, sums, fading)
    arguments = (config, q, sums.kv, sums.z, fading, *config.parameters)
    return cast(tuple[Tensor, Tensor | None], _ReadSumsFunction.apply(*arguments))[0]


def _sum_at_once(config: LinearConfig, keys: KeyInputs, past: Sums | None) -> Sums:
    """`sum_keys` in torch's own operations, with the features of all keys: the compiler may split them."""
    y, v, a = config.stretch(keys, slice(0, keys.k.shape[1]))
    kv, z, reference = start_sums(config, keys, past)
    if a is not None and reference is not None:
        scale = rescale(config, a, reference, kv.dtype)
        y, reference = y * scale.weights, scale.reference
        kv, z = kv * scale.carry[..., None], z * scale.carry
    return Sums(kv + y.mT @ v, z + y.sum(1), reference)


def _read_at_once(config: LinearConfig, q: Tensor, sums: Sums, fading: Tensor | None) -> Tensor:
    all_rows = slice(0, q.shape[2])
    x = _fade(config.queries(q, all_rows)[0], fading, all_rows)
    flat = x.flatten(1, 2)
    top, total = (flat @ sums.kv).view(*x.shape[:3], -1), dot_rows(flat, sums.z).view(*x.shape[:3], 1)
    return apply_divisor(config, top, total).to(q.dtype)


def apply_divisor(config: LinearConfig, top: Tensor, total: Tensor) -> Tensor:
    """Numerators ``[Bh, G, N, E]`` divided as configured."""
    return top if config.divisor is None else top / config.divisor(total)


def zero_if_infinite(x: Tensor) -> Tensor:
    """0 instead of minus infinity: the reference where there is no key, whose weight is 0 by any reference."""
    return x.masked_fill(x == float("-inf"), 0)


def relative_weights(a: Tensor, reference: Tensor) -> Tensor:
    """exp(a - reference), 0 where a is -inf, whatever the reference is."""
    return (a - zero_if_infinite(reference)).exp()


def exponentiate(logs: Tensor) -> Tensor:
    """e^logs, in place. In float32 as a power of two, which torch computes several times as fast; its rounding of large
    exponents would show in float64, where signed weights may cancel."""
    return logs.exp_() if logs.dtype == torch.float64 else power_of_e(logs)


class Rescale(NamedTuple):
    """The reference ``[Bh]`` after some keys, and the weights of earlier sums ``[Bh, 1]`` and of the keys
    ``[Bh, L, 1]`` by it."""

    reference: Tensor
    carry: Tensor
    weights: Tensor


def rescale(config: LinearConfig, a: Tensor, reference: Tensor, dtype: torch.dtype) -> Rescale:
    """From a reference to that after keys with the logarithms ``a [Bh, L]``; no gradient by the reference."""
    both = torch.cat([reference[:, None], a.to(reference.dtype)], 1)
    newest = (a[:, -1].to(reference.dtype) if config.decays else both.amax(1)).detach()
    carry, weights = relative_weights(both, newest[:, None]).to(dtype).split([1, a.shape[1]], 1)
    return Rescale(newest, carry, weights[..., None])


class _SumKeysFunction(KernelFunction):
    """``(config, *keys, *past, *parameters)``."""

    @staticmethod
    def forward(config: LinearConfig, *arguments: Any) -> Any:
        keys, past = split_arguments(arguments)
        kv, z, reference = start_sums(config, keys, past)
        for rows in config.cut(keys.k):
            y, v, a = config.stretch(keys, rows)
            if a is not None and reference is not None:
                scale = rescale(config, a, reference, kv.dtype)
                kv.mul_(scale.carry[..., None])
                z.mul_(scale.carry)
                reference = scale.reference
                add_products(kv, y, v * scale.weights)  # values are mostly narrower than features
                if config.divisor:
                    z += (scale.weights.mT @ y)[:, 0]
            else:
                add_products(kv, y, v)
                if config.divisor:
                    z += y.sum(1)
        return kv, z, None if reference is None else reference.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.config, *arguments = inputs
        keys, past = split_arguments(arguments)
        _, _, reference = output
        ctx.save_for_backward(*keys, None if past is None else past.reference, reference)
        if reference is not None:
            ctx.mark_non_differentiable(reference)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_kv, grad_z, _ = grads
        _, *needs = ctx.needs_input_grad
        gradients = partial(_sum_keys_gradients, ctx.config, needs[N_KEYS])
        return None, *differentiate_once(KERNEL, gradients, grad_kv, grad_z, *ctx.saved_tensors)


def _sum_keys_gradients(
    config: LinearConfig, has_past: bool, grad_kv: Tensor, grad_z: Tensor, *saved: Any
) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_SumKeysFunction` but config."""
    *key_tensors, past_reference, reference = saved
    keys, grad_kv, tape = KeyInputs(*key_tensors), grad_kv.contiguous(), FeatureTape(config)
    grad_k, grad_v = torch.empty_like(keys.k), torch.empty_like(keys.v)
    grad_logs = None if keys.logs is None else torch.empty_like(keys.logs)
    for rows in config.cut(keys.k):
        (y, v, a), backward = tape.record_keys(keys, rows)
        scale = 1 if a is None or reference is None else relative_weights(a, reference[:, None]).to(y.dtype)[..., None]
        grad_v[:, rows] = multiply_rows(y, grad_kv).mul_(scale)
        grad_y = multiply_rows(v * scale, grad_kv.mT).add_(grad_z[:, None] * scale)
        grad_k[:, rows], grad_a = backward(grad_y)
        if grad_logs is not None and grad_a is not None:
            grad_logs[:, rows] = grad_a
    if has_past and past_reference is not None and reference is not None:
        carry = relative_weights(past_reference, reference).to(grad_kv.dtype)[:, None]
        grad_kv, grad_z = grad_kv * carry[..., None], grad_z * carry
    past_grads = (grad_kv, grad_z) if has_past else (None, None)
    return grad_k, grad_v, None, grad_logs, *past_grads, None, *tape.grad_parameters


class _ReadSumsFunction(KernelFunction):
    @staticmethod
    def forward(
        config: LinearConfig, q: Tensor, kv: Tensor, z: Tensor, fading: Any, *parameters: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        out = config.make_rows(q, kv)
        totals = kv.new_empty(*q.shape[:3], 1) if config.divisor else None
        for rows in config.cut(q):
            x = _fade(config.queries(q[:, :, rows], rows)[0], fading, rows)
            top = multiply_rows(x.flatten(1, 2), kv).view(*x.shape[:3], -1)
            total = dot_rows(x.flatten(1, 2), z).view(*x.shape[:3], 1) if config.divisor else None
            saved = divide(config, top, total, out[:, :, rows])
            if totals is not None and saved is not None:
                totals[:, :, rows] = saved
        return out, totals

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.config, q, kv, z, fading, *_ = inputs
        out, totals = output
        ctx.save_for_backward(q, kv, z, fading, out, totals)
        if totals is not None:
            ctx.mark_non_differentiable(totals)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad, _), gradients = grads, partial(_read_gradients, ctx.config)
        return None, *differentiate_once(KERNEL, gradients, grad, *ctx.saved_tensors)


def _read_gradients(config: LinearConfig, grad: Tensor, *saved: Any) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_ReadSumsFunction` but config."""
    q, kv, z, fading, out, totals = saved
    grad_q, grad_kv, grad_z = torch.empty_like(q), torch.zeros_like(kv), torch.zeros_like(z)
    tape, saved_rows = FeatureTape(config), SavedRows(grad, out, *config.divisors(totals))
    for rows in config.cut(q):
        x, backward = tape.record_queries(q, rows)
        flat, (grad_top, grad_total) = _fade(x, fading, rows).flatten(1, 2), saved_rows.divide_backward(rows)
        grad_top = grad_top.flatten(1, 2)
        grad_x = multiply_rows(grad_top, kv.mT)
        add_products(grad_kv, flat, grad_top)
        if grad_total is not None:
            grad_total = grad_total.flatten(1, 2)
            grad_x.addcmul_(grad_total, z[:, None])
            grad_z += (grad_total.mT @ flat)[:, 0]
        grad_q[:, :, rows] = backward(_fade(grad_x.view(x.shape), fading, rows))
    return grad_q, grad_kv, grad_z, None, *tape.grad_parameters


def dot_rows(x: Tensor, z: Tensor) -> Tensor:
    """Products ``[Bh, rows, 1]`` of rows ``[Bh, rows, F]`` with a vector ``[Bh, F]``, in the faster order."""
    return (z[:, None] @ x.mT).mT


def pair_gradients(grad_tops: Tensor, grad_totals: Tensor | None, values: Tensor) -> Tensor:
    """Gradients ``[Bh, rows, M]`` by the products of rows and keys."""
    return grad_tops @ values.mT if grad_totals is None else torch.baddbmm(grad_totals, grad_tops, values.mT)


def _fade(x: Tensor, fading: Tensor | None, rows: slice) -> Tensor:
    return x if fading is None else x * fading[:, None, rows, None].exp().to(x.dtype)
