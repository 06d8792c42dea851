"""Bugs at some sizes only."""

from __future__ import annotations

import torch
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.shapes import Values

from .methods import compute, queries_do_nothing, scale_free
from .planting import planter

plant = planter("sizes", "sizes_and_pairs", "long_sequence", thorough=True)


def _scaled_for_8(q: Tensor, k: Tensor, v: Values, mask: Mask) -> tuple[Tensor, Tensor, Values, Mask]:
    return q * (q.shape[-1] / 8) ** 0.5, k, v, mask


def _without_last_of_odd(q: Tensor, k: Tensor, v: Values, mask: Mask) -> tuple[Tensor, Tensor, Values, Mask]:
    if q.shape[-1] % 2 == 0 or q.shape[-1] == 1:
        return q, k, v, mask
    return torch.cat([q[..., :-1], 0 * q[..., -1:]], -1), k, v, mask


def _wrong_at_width(width: int):
    return compute(after=lambda out, q, *_: out * (1.001 if q.shape[-1] == width else 1))


def _last_row(out: Tensor, wrong: bool) -> Tensor:
    return torch.cat([out[:, :, :-1], 0.99 * out[:, :, -1:]], 2) if wrong else out


def _fourth_of_batch(out: Tensor, *_: object) -> Tensor:
    return torch.cat([out[:3], out[:1].expand_as(out[3:])], 0)


def _beyond_4096(out: Tensor, *_: object) -> Tensor:
    return torch.cat([out[:, :, :4096], 0.99 * out[:, :, 4096:]], 2) if out.shape[2] > 4096 else out


BUGS = (
    plant("scale_of_8", "scores are scaled for width 8, whatever the width", compute(_scaled_for_8),
          (), scale_free),
    plant("width_64", "outputs for D = 64 have an error of 0.1%", _wrong_at_width(64)),
    plant("width_80", "outputs for D = 80 have an error of 0.1%", _wrong_at_width(80)),
    plant("odd_width", "the last column of odd widths is lost", compute(_without_last_of_odd), (), queries_do_nothing),
    plant("multiple_of_64", "the last row is wrong if 64 divides N",
          compute(after=lambda out, q, *_: _last_row(out, q.shape[2] % 64 == 0))),
    plant("not_multiple_of_64", "the last row is wrong beyond 512 if 64 does not divide N",
          compute(after=lambda out, q, *_: _last_row(out, q.shape[2] > 512 and q.shape[2] % 64 != 0))),
    plant("many_keys", "outputs over more than 320 keys have an error of 0.1%",
          compute(after=lambda out, q, k, *_: out * (1.001 if k.shape[2] > 320 else 1))),
    plant("beyond_4096", "rows beyond 4,096 have an error of 1%", compute(after=_beyond_4096),
          suspects=("long_sequence",)),
    plant("batch_of_4", "the fourth row of a batch is the first", compute(after=_fourth_of_batch)),
    plant("three_heads", "of three key-value heads the heads are rotated",
          compute(after=lambda out, q, k, *_: out.roll(1, 1) if k.shape[1] == 3 else out),
          harmless=lambda s: f"it requires {s.attn.kv_heads} key-value heads" if s.attn.kv_heads else None),
)  # fmt: skip
