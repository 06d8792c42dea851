"""Lanes: the query heads of a group that see keys with the same weights; how they attend, wherever they stand."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.linear import scan, sums
from ...kernels.linear.linear_config import LinearConfig
from ...kernels.linear.sums import Sums


class Lane(NamedTuple):
    """Query heads that see keys with the same weights, folded ``[Bh, G, N, D]``, and those weights' logarithms."""

    rows: Tensor
    logs: Tensor | None = None  # [Bh, M]
    next: Tensor | None = None  # [Bh]
    rate: Tensor | None = None  # [Bh]

    def fade(self, distance: int) -> Tensor | None:
        """By how much rows ``[Bh, N]`` see less of everything, the first of them so far after the last key."""
        if self.rate is None:
            return None
        return -self.rate[:, None] * (torch.arange(self.rows.shape[2], device=self.rows.device) + distance)

    def count_on(self, past: Sums) -> Sums:
        """The sums as the next step counts: from its own first position."""
        if self.next is None or past.reference is None:
            return past
        reference = past.reference - self.next.detach()
        if not self.next.requires_grad:
            return past._replace(reference=reference)
        gradient_carrier = (
            (self.next.detach() - self.next).exp().to(past.kv.dtype)
        )  # which hands the weights' gradient on
        return Sums(past.kv * gradient_carrier[:, None, None], past.z * gradient_carrier[:, None], reference)


def unfold(out: list[Tensor], q: Tensor) -> Tensor:
    """Lanes ``[B Hkv, G, N, E]`` to ``[B, H, N, E]``."""
    return (out[0] if len(out) == 1 else torch.cat(out, 1)).view(*q.shape[:3], -1)


def attend_causal(recipe: LinearConfig, lane: Lane, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
    """Any alignment: rows before the first key are zero, rows after the last see everything, the rest scan."""
    q, start, m = lane.rows, recipe.start, k.shape[1]
    n = q.shape[2]
    blind = min(max(-start, 0), n)
    first = max(start, 0)  # the key on which the first seeing query stands
    along = min(n - blind, m - first)  # queries that stand on keys
    before, here = slice(0, first), slice(first, first + along)
    past = None
    if first:
        past = sums.sum_keys(recipe, k[:, before], v[:, before], _cut(valid, before), _cut(lane.logs, before))
    parts = [q.new_zeros(*q.shape[:2], blind, v.shape[2])] if blind else []
    if along:
        moved = replace(recipe, start=start + blind, first_key=first)
        near = (k[:, here], v[:, here], _cut(valid, here), _cut(lane.logs, here))
        out, past = scan.scan(moved, q[:, :, blind : blind + along], *near, past)
        parts.append(out)
    if (rest := blind + along) < n and past is not None:
        late = lane._replace(rows=q[:, :, rest:])
        moved = replace(recipe, start=start + rest)
        parts.append(sums.read(moved, late.rows, past, late.fade(start + rest - m + 1)))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _cut(x: Tensor | None, columns: slice) -> Tensor | None:
    return None if x is None else x[:, columns]
