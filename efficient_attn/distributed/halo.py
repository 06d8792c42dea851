"""Windows of a sequence that is spread over ranks: each rank receives only the keys near its part (a halo).

A window that is longer than a rank's part gets keys from several ranks. What is sent does not depend on the length of
the sequence.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..contract import Attention, Mask
from ..errors import UnsupportedError
from ..patterns import Band
from ..variants.full.luong_local import LuongLocal
from ..variants.sparse.sparse_attention import SparseAttention
from .collectives import Ranks, start_transfer


class Halo(NamedTuple):
    """The number of keys before and after a rank's part that its queries see."""

    back: int
    ahead: int


class HaloPart(NamedTuple):
    """Positions of one rank that another one needs: the peer, and how many of the last (back) or first (ahead)."""

    peer: int
    size: int
    is_back: bool

    def select(self, x: Tensor) -> Tensor:
        """These positions of their rank's part ``[B, H, N, ...]``."""
        return x[:, :, x.shape[2] - self.size :] if self.is_back else x[:, :, : self.size]


def find_halo(attn: Attention, causal: bool) -> Halo | None:
    """The halo of a mechanism whose queries see the keys within a bounded distance only; None for others."""
    if isinstance(attn, LuongLocal) and attn.u is None:
        return Halo(attn.window, 0 if causal else attn.window)
    if not isinstance(attn, SparseAttention):
        return None
    bands = [fact for fact in attn.pattern.facts if isinstance(fact, Band)]
    if len(bands) < len(attn.pattern.facts):
        return None
    back, ahead = [band.hi for band in bands], [0 if causal else band.lo for band in bands]
    if None in back or None in ahead:
        return None
    return Halo(max(0, *(x for x in back if x is not None)), max(0, *(-x for x in ahead if x is not None)))


def list_sends(halo: Halo, length: int, ranks: Ranks) -> Iterator[HaloPart]:
    """What this rank sends of its ``length`` positions, nearest ranks first."""
    return _list_slices(halo, length, ranks, 1)


def list_receives(halo: Halo, length: int, ranks: Ranks) -> Iterator[HaloPart]:
    """What this rank receives, nearest ranks first."""
    return _list_slices(halo, length, ranks, -1)


def _list_slices(halo: Halo, length: int, ranks: Ranks, direction: int) -> Iterator[HaloPart]:
    for distance in range(1, ranks.size):
        for size, is_back in ((halo.back, True), (halo.ahead, False)):
            count = min(size - (distance - 1) * length, length)
            peer = ranks.rank + distance * direction * (1 if is_back else -1)
            if count > 0 and 0 <= peer < ranks.size:
                yield HaloPart(peer, count, is_back)


def exchange_halo(tensors: Sequence[Tensor], halo: Halo, ranks: Ranks) -> tuple[Tensor, ...]:
    """This rank's parts ``[B, H, N, ...]`` with the halo's positions before and after them. Differentiable."""
    return _HaloFunction.apply(halo, ranks, *tensors)


def attend_with_halo(
    attn: Attention, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, causal: bool, ranks: Ranks
) -> Tensor:
    """The rows of ``q [B, H, N, D]`` over the keys in reach of ``k, v [B, Hkv, N, D or E]``, this rank's parts in
    contiguous order. attn: a mechanism with a halo. valid: bool ``[B, N]``, of this rank's keys."""
    halo = find_halo(attn, causal)
    if halo is None:
        raise UnsupportedError(f"{attn.label} sees keys at any distance in this direction; a halo has a bounded one")
    extended = exchange_halo([k, v, *([] if valid is None else [valid[:, None]])], halo, ranks)
    key_mask = extended[2][:, 0] if len(extended) > 2 else None
    start = min(halo.back, ranks.rank * k.shape[2])
    return attn(q, *extended[:2], Mask(causal, key_mask=key_mask, query_start=start))


class _HaloFunction(torch.autograd.Function):
    """``(halo, ranks, *tensors)``; bool tensors have no gradient."""

    @staticmethod
    def forward(ctx: Any, halo: Halo, ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
        length = tensors[0].shape[2]
        ctx.halo, ctx.ranks, ctx.length = halo, ranks, length
        sends = [(s.select(x), s.peer) for s in list_sends(halo, length, ranks) for x in tensors]
        receives = list(list_receives(halo, length, ranks))
        buffers = [(x.new_empty(*x.shape[:2], s.size, *x.shape[3:]), s.peer) for s in receives for x in tensors]
        received = start_transfer(sends, buffers, ranks).wait()
        extended = []
        for i, x in enumerate(tensors):
            parts = list(zip(receives, received[i :: len(tensors)], strict=True))
            before = [part for s, part in reversed(parts) if s.is_back]
            extended.append(torch.cat([*before, x, *(part for s, part in parts if not s.is_back)], 2))
        ctx.mark_non_differentiable(*(x for x in extended if not x.is_floating_point()))
        return tuple(extended)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        halo, ranks, length = ctx.halo, ctx.ranks, ctx.length
        grads_by_tensor: list[Any] = [None] * len(grads)
        indices = [i for i in range(len(grads)) if ctx.needs_input_grad[2 + i]]
        first = min(halo.back, ranks.rank * length)
        for i in indices:
            grads_by_tensor[i] = grads[i][:, :, first : first + length].clone()
        # the gradients of what was received go back to its owners
        before, after, sends = first, first + length, []
        for s in list_receives(halo, length, ranks):
            before -= s.size if s.is_back else 0
            start = before if s.is_back else after
            after += 0 if s.is_back else s.size
            sends += [(grads[i][:, :, start : start + s.size], s.peer) for i in indices]
        owned = [(s, i) for s in list_sends(halo, length, ranks) for i in indices]
        targets = [s.select(grads_by_tensor[i]) for s, i in owned]
        buffers = [(x.new_empty(x.shape), s.peer) for x, (s, _) in zip(targets, owned, strict=True)]
        for target, part in zip(targets, start_transfer(sends, buffers, ranks).wait(), strict=True):
            target += part
        return None, None, *grads_by_tensor
