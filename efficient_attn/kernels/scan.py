"""Linear attention in chunks: sums of phi(k) v^T and phi(k), never an N x M matrix, never a state for every position.

All tensors here are folded: queries ``[Bh, G, N, D]`` (G heads share one key-value head), keys ``[Bh, M, D]``, values
``[Bh, M, E]``. The state is ``(S [Bh, F, E], z [Bh, F])``, in float32 or wider: half precision loses long sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .dense import wide

ALL_CHUNK = 512  # keys or queries a step when every query sees every key
SCAN_CHUNK = 64  # positions a step of the causal scan without gradient
TRAIN_CHUNK = 128  # positions a chunk when autograd keeps all chunks: fewer, larger

Map = Callable[[Tensor], Tensor]


class Sums(NamedTuple):
    """phi(k) v^T and phi(k) summed over the keys so far."""

    kv: Tensor
    k: Tensor


def summed(phi: Map, k: Tensor, v: Tensor, valid: Tensor | None, before: Sums | None = None) -> Sums:
    """The sums over all valid keys, added to those before."""
    kv, z = before if before is not None else (None, None)
    for first in range(0, k.shape[1], ALL_CHUNK):
        keys = wide(_mapped(phi, k, valid, first, ALL_CHUNK))
        values = wide(v[:, first : first + ALL_CHUNK])
        kv = keys.mT @ values if kv is None else torch.baddbmm(kv, keys.mT, values)
        z = keys.sum(1) if z is None else z + keys.sum(1)
    assert kv is not None
    assert z is not None
    return Sums(kv, z)


def read(phi: Map, q: Tensor, sums: Sums) -> Tensor:
    """Every query over the same sums: ``[Bh, G, N, E]``."""
    rows = q.flatten(1, 2)
    parts = []
    for first in range(0, rows.shape[1], ALL_CHUNK):
        x = wide(phi(rows[:, first : first + ALL_CHUNK]))
        parts.append(_divided(x @ sums.kv, x @ sums.k[..., None]).to(q.dtype))
    return torch.cat(parts, 1).view(*q.shape[:3], -1)


def scan(
    phi: Map, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, before: Sums | None = None
) -> tuple[Tensor, Sums]:
    """Query i over keys 0..i and what came before; N = M. Returns ``[Bh, G, N, E]`` and the sums over everything."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return _scan_batched(phi, q, k, v, valid, before)
    size = (k.shape[0], 1, 1)
    _, width = phi(k[:1, :1]).shape[1:]
    like = wide(q[:0])
    kv, z = before or (like.new_zeros(size[0], width, v.shape[2]), like.new_zeros(size[0], width))
    kv, z = kv.clone(), z.clone()
    out = q.new_empty(*q.shape[:3], v.shape[2])
    future = _future(SCAN_CHUNK, q.shape[1], q.device)
    for first in range(0, k.shape[1], SCAN_CHUNK):
        keys = wide(_mapped(phi, k, valid, first, SCAN_CHUNK))
        values = wide(v[:, first : first + SCAN_CHUNK])
        x = wide(phi(q[:, :, first : first + SCAN_CHUNK]))
        rows, length = x.flatten(1, 2), keys.shape[1]
        weights = rows @ keys.mT
        weights.view(-1, x.shape[1], length, length).masked_fill_(future[:length, :length], 0)
        top = torch.baddbmm(weights @ values, rows, kv)
        bottom = weights.sum(-1, keepdim=True) + rows @ z[..., None]
        out[:, :, first : first + length] = _divided(top, bottom).view(*x.shape[:3], -1)
        kv.baddbmm_(keys.mT, values)
        z += keys.sum(1)
    return out, Sums(kv, z)


def _scan_batched(
    phi: Map, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, before: Sums | None
) -> tuple[Tensor, Sums]:
    """The same with all chunks at once, which autograd can differentiate; one state a chunk is kept."""
    n, size = k.shape[1], TRAIN_CHUNK
    keys, values, x = wide(_mapped(phi, k, valid, 0, n)), wide(v), wide(phi(q))
    extra = -n % size
    keys, values, x = (F.pad(t, (0, 0, 0, extra)).unflatten(-2, (-1, size)) for t in (keys, values, x))
    states = (keys.mT @ values).cumsum(1)  # [Bh, chunks, F, E], the keys of the chunk itself included
    totals = keys.sum(2).cumsum(1)
    if before is not None:
        states, totals = states + before.kv[:, None], totals + before.k[:, None]
    first = before if before is not None else Sums(torch.zeros_like(states[:, 0]), torch.zeros_like(totals[:, 0]))
    kv = torch.cat([first.kv[:, None], states[:, :-1]], 1)
    z = torch.cat([first.k[:, None], totals[:, :-1]], 1)
    rows = x.transpose(1, 2)  # [Bh, chunks, G, size, F]
    weights = (rows @ keys.mT[:, :, None]).masked_fill(_future(size, 1, q.device), 0)
    top = weights @ values[:, :, None] + rows @ kv[:, :, None]
    bottom = weights.sum(-1, keepdim=True) + rows @ z[:, :, None, :, None]
    out = _divided(top, bottom).transpose(1, 2).flatten(2, 3)[:, :, :n]
    return out.to(q.dtype), Sums(states[:, -1], totals[:, -1])


def _mapped(phi: Map, k: Tensor, valid: Tensor | None, first: int, size: int) -> Tensor:
    """phi of a chunk of keys, zero where they are padding."""
    keys = phi(k[:, first : first + size])
    return keys if valid is None else keys.masked_fill(~valid[:, first : first + size, None], 0)


def _divided(top: Tensor, bottom: Tensor) -> Tensor:
    """top / bottom, zero where all visible weights are zero."""
    return top / bottom.masked_fill(bottom == 0, 1)


def _future(size: int, group: int, device: torch.device) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool, device=device).triu(1)
