"""A decode step of linear attention: one position is added to the sums over keys, which its query reads."""

from typing import Any

import torch
from torch import Tensor

from ..mask_cache import MASK_CACHE
from ..native import triton_step
from .linear_config import KeyInputs, LinearConfig, divide
from .sums import Sums, dot_rows, rescale

FIRST_POSITION = slice(0, 1)


def step(config: LinearConfig, q: Tensor, keys: KeyInputs, past: Sums) -> tuple[Tensor, Sums]:
    """The recurrent form, for decoding: add one position to the sums, in place, and read them. Returns
    ``[Bh, G, 1, E]`` and the sums. No gradient."""
    if keys.valid is None and triton_step.is_chosen(past.kv, triton_step.MAX_FEATURES, q, keys.k, keys.v):
        return _step_in_triton(config, q, keys, past)
    kv, z, reference = past
    x, (y, v, a) = config.both(q, keys, FIRST_POSITION)
    if config.rates:
        fading = find_fading(config.rates, kv)
        kv.mul_(fading)
        if config.divisor:
            z.mul_(fading[..., 0])
        reference = None if a is None else a[:, -1]
    elif a is not None and reference is not None:
        scale = rescale(config, a, reference, kv.dtype)
        y, reference = y * scale.weights, scale.reference
        kv.mul_(scale.carry[..., None])
        if config.divisor:
            z.mul_(scale.carry)
    kv.baddbmm_(y.mT, config.widen(v))
    if config.divisor:
        z += y[:, 0]
    x = x.flatten(1, 2)
    top = (x @ kv).unflatten(1, (-1, 1))
    out = q.new_empty(top.shape)
    divide(config, top, dot_rows(x, z).unflatten(1, (-1, 1)) if config.divisor else None, out)
    return out, Sums(kv, z, reference)


def _step_in_triton(config: LinearConfig, q: Tensor, keys: KeyInputs, past: Sums) -> tuple[Tensor, Sums]:
    """`step` in one kernel, and what features need that it does not make."""
    rows, phi = q, config.phi
    if phi not in triton_step.MAPS:
        rows, (y, _, a) = config.both(q, keys, FIRST_POSITION)
        keys, phi = KeyInputs(y, keys.v, None, a), None
    options: dict[str, Any] = {"divisor": config.divisor, "decays": config.decays, "dtype": q.dtype}
    out, total, reference = triton_step.step_sums(phi, rows, keys, past, **options)
    if total is not None:
        top, out = out, q.new_empty(out.shape)
        divide(config, top, total, out)
    return out, past._replace(reference=reference)


def find_fading(rates: tuple[float, ...], kv: Tensor) -> Tensor:
    """The decays ``[Bh, 1, 1]`` of sums in a step, cached. rates: of key-value heads."""

    def make() -> tuple[Tensor]:
        factors = torch.tensor(rates, dtype=torch.float64).neg_().exp_().to(device=kv.device, dtype=kv.dtype)
        return (factors.repeat(len(kv) // len(rates))[:, None, None],)

    return MASK_CACHE.find(("fading", rates, len(kv), kv.dtype, kv.device), make)[0]
