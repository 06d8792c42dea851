"""Lanes: query heads of a group whose key weights are equal, and their attention with any alignment."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.custom_ops import in_functorch_transform
from ...kernels.linear import scan, sums
from ...kernels.linear.linear_config import KeyInputs, LinearConfig
from ...kernels.linear.sums import Sums
from ...kernels.mask_cache import MASK_CACHE


class Lane(NamedTuple):
    """Query heads that see keys with the same weights, folded ``[Bh, G, N, D]``, and those weights' logarithms."""

    rows: Tensor
    logs: Tensor | None = None  # [Bh, M]
    next: Tensor | None = None  # [Bh]
    rate: Tensor | None = None  # [Bh]
    rates: tuple[float, ...] = ()  # of the decay of each key-value head, if it is a constant

    def configure(self, config: LinearConfig) -> LinearConfig:
        """The arguments of a call with this lane's decays, if these are constants and the only weights of keys."""
        return replace(config, rates=self.rates) if config.steady and self.rates else config

    def compute_fade(self, distance: int) -> Tensor | None:
        """The logarithm of the decay of the sums for rows ``[Bh, N]``. distance: of the first row from the last key."""
        if self.rate is None:
            return None
        return -self.rate[:, None] * (torch.arange(self.rows.shape[2], device=self.rows.device) + distance)

    def rebase(self, past: Sums) -> Sums:
        """The sums relative to the first position of the next step."""
        if self.next is None or past.reference is None:
            return past
        reference = past.reference - self.next.detach()
        if not self.next.requires_grad:
            return past._replace(reference=reference)
        unit = (self.next.detach() - self.next).exp().to(past.kv.dtype)  # 1, with the gradient of the weights
        return Sums(past.kv * unit[:, None, None], past.z * unit[:, None], reference)


def make_decaying_lanes(rows: Tensor, rates: Tensor, m: int) -> list[Lane]:
    """A lane for each query head of ``rows [B Hkv, G, N, D]`` over m keys. rates: ``[Hkv, G]``; constants and what
    follows from them are placed on a device once."""
    is_constant = type(rates) is Tensor and rates.device.type == "cpu" and not rates.requires_grad
    if not is_constant or rows.is_meta or torch.compiler.is_compiling() or in_functorch_transform():
        by_lane, logs = _compute_logs(rates.to(device=rows.device, dtype=torch.float64), len(rows), m)
        return [Lane(rows[:, g : g + 1], x[:, :-1], x[:, -1], by_lane[g]) for g, x in enumerate(logs)]
    numbers = tuple(map(tuple, rates.T.tolist()))

    def make() -> tuple[Tensor, Tensor]:
        return _compute_logs(rates.to(rows.device, torch.float64), len(rows), m)

    by_lane, logs = MASK_CACHE.find(("decays", numbers, len(rows), m, rows.device), make)
    return [Lane(rows[:, g : g + 1], x[:, :-1], x[:, -1], by_lane[g], numbers[g]) for g, x in enumerate(logs)]


def _compute_logs(rates: Tensor, count: int, m: int) -> tuple[Tensor, Tensor]:
    """Rates ``[G, Bh]`` from ``[Hkv, G]``, and the logarithms of weights of m keys and the next ``[G, Bh, m + 1]``."""
    by_lane = rates.T.repeat(1, count // len(rates))
    return by_lane, by_lane[..., None] * torch.arange(m + 1, device=rates.device, dtype=torch.float64)


def unfold(out: list[Tensor], q: Tensor) -> Tensor:
    """Lanes ``[B Hkv, G, N, E]`` to ``[B, H, N, E]``."""
    return (out[0] if len(out) == 1 else torch.cat(out, 1)).view(*q.shape[:3], -1)


def attend_causal(config: LinearConfig, lane: Lane, keys: KeyInputs) -> Tensor:
    """Any alignment: rows before the first key are zero, rows after the last see everything, the others scan."""
    q, start, m = lane.rows, config.start, keys.k.shape[1]
    n = q.shape[2]
    n_blind = min(max(-start, 0), n)
    first_key = max(start, 0)  # the key that the first query with visible keys is aligned with
    n_aligned = min(n - n_blind, m - first_key)  # queries aligned with keys
    past = sums.sum_keys(config, keys.rows(slice(0, first_key))) if first_key else None
    parts = [q.new_zeros(*q.shape[:2], n_blind, keys.v.shape[2])] if n_blind else []
    if n_aligned:
        shifted_config = replace(config, start=start + n_blind, first_key=first_key)
        aligned_keys = keys.rows(slice(first_key, first_key + n_aligned))
        if config.rates:
            aligned_keys = aligned_keys._replace(logs=None)
        out, past = scan.scan(shifted_config, q[:, :, n_blind : n_blind + n_aligned], aligned_keys, past)
        parts.append(out)
    if (first_late := n_blind + n_aligned) < n and past is not None:
        late_lane = lane._replace(rows=q[:, :, first_late:])
        shifted_config = replace(config, start=start + first_late)
        fade = late_lane.compute_fade(start + first_late - m + 1)
        parts.append(sums.read(shifted_config, late_lane.rows, past, fade))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
