"""Exact attention that decodes from an int8 cache: each key and value is quantized by its own largest number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from toy_mechanisms import PLAIN, Toy

import efficient_attn as ea
from efficient_attn.contract.mask import Mask


@dataclass(frozen=True)
class Quantized:
    """Rows ``[B, heads, max_len, width]`` in int8, and the scale of each."""

    rows: Tensor
    scales: Tensor

    def write(self, first: int, x: Tensor) -> None:
        scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-30) / 127
        self.rows[:, :, first : first + x.shape[2]] = (x / scale).round().to(torch.int8)
        self.scales[:, :, first : first + x.shape[2]] = scale

    def read(self, end: int, dtype: torch.dtype) -> Tensor:
        return (self.rows[:, :, :end].float() * self.scales[:, :, :end]).to(dtype)


@dataclass(frozen=True)
class Int8State:
    """Allocated by the first step."""

    max_len: int
    keys: Quantized | None = None
    values: Quantized | None = None
    length: int = 0

    def append(self, k: Tensor, v: Tensor) -> Self:
        end = self.length + k.shape[2]
        if end > self.max_len:
            raise ea.UsageError(f"the decode state was made for max_len={self.max_len} positions, {end} are needed")
        keys, values = (old or self._allocate(x) for old, x in ((self.keys, k), (self.values, v)))
        keys.write(self.length, k)
        values.write(self.length, v)
        return replace(self, keys=keys, values=values, length=end)

    def _allocate(self, x: Tensor) -> Quantized:
        rows = x.new_zeros(*x.shape[:2], self.max_len, x.shape[3], dtype=torch.int8)
        return Quantized(rows, rows.new_zeros(*rows.shape[:3], 1, dtype=torch.float32))


class Int8Cache(Toy):
    claims = replace(PLAIN, decode=True, state_tolerance=0.05)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Int8State:
        return Int8State(max_len)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Int8State, **inputs: Tensor) -> tuple[Tensor, Any]:
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            raise ea.UnsupportedError("Int8Cache: rounding to int8 has no gradient; decode under torch.no_grad()")
        state = state.append(k, v)
        assert state.keys is not None
        assert state.values is not None
        keys, values = (x.read(state.length, q.dtype) for x in (state.keys, state.values))
        return self._rows(q, keys, values, Mask(causal=True), 0, q.shape[2]), state
