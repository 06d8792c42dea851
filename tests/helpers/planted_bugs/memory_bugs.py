"""Bugs that depend on earlier calls: cached results, and counted calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Values

Key = Callable[[Tensor, Tensor, Values], Hashable]
CORRECT_CALLS = 60  # before the first wrong one


def remembers(key: Key) -> Callable[[type[Attention]], dict[str, Any]]:
    """Results are cached by key and shape."""

    def methods(cls: type[Attention]) -> dict[str, Any]:
        cache: dict[Hashable, Tensor] = {}

        def compute(self: Attention, q: Tensor, k: Tensor, v: Values, mask: Mask, **inputs: Tensor) -> Tensor:
            if torch.is_grad_enabled() or mask.used - {"causal"}:
                return cls.compute(self, q, k, v, mask, **inputs)  # pyright: ignore[reportArgumentType]
            address = (key(q, k, v), q.shape, k.shape, mask.causal)
            if address not in cache:
                cache[address] = cls.compute(self, q, k, v, mask, **inputs)  # pyright: ignore[reportArgumentType]
            return cache[address].clone()

        return {"compute": compute}

    return methods


def by_address(q: Tensor, k: Tensor, v: Values) -> Hashable:
    return q.data_ptr(), k.data_ptr(), None if v is None else v.data_ptr()


def by_version(q: Tensor, k: Tensor, v: Values) -> Hashable:
    return by_address(q, k, v), q._version, k._version, None if v is None else v._version


def by_corner(q: Tensor, k: Tensor, v: Values) -> Hashable:
    return tuple(x[0, 0, 0].cpu().numpy().tobytes() for x in (q, k, v) if x is not None)


def skips_every_second(cls: type[Attention]) -> dict[str, Any]:
    """Every second call returns the previous result."""
    last: list[Tensor] = []

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if last and (out := last.pop()).shape == q.shape[:3] + out.shape[3:]:
            return out.clone()
        out = cls.compute(self, q, k, v, mask, **inputs)
        last.append(out.detach())
        return out

    return {"compute": compute}


def writes_late(cls: type[Attention]) -> dict[str, Any]:
    """From one call on, the keys are changed without incrementing their version counter."""
    calls = [0]

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out = cls.compute(self, q, k, v, mask, **inputs)
        calls[0] += 1
        if calls[0] > CORRECT_CALLS:
            k.data[:, :, -1] *= 0.5
        return out

    return {"compute": compute}


class TensorSubclass(torch.Tensor):
    """A tensor subclass."""


def as_tensor_subclass(out: Tensor, *_: Any) -> Tensor:
    return out.as_subclass(TensorSubclass)
