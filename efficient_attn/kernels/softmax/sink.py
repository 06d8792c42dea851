"""A sink: one logit more in the softmax of a row, which takes weight and gives no value.

With the log-sum-exp l of a row's scores, the sink s takes sigmoid(s - l) of the weight and leaves the rest to the keys.
So torch's fused kernel does the work, and its backward pass, told the output and the log-sum-exp of all, is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...contract.mask import Mask
from ..derivatives import SoftmaxFunction, make_softmax_op
from ..traced import traced
from . import fused
from .sdpa import ROWS, see_causally


def take_share(out: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Output ``[.., N, E]``, in place, and log-sum-exp ``[.., N]`` of a softmax that has ``sink [.., N]`` beside its
    keys; minus infinity says of a log-sum-exp that there is no key, of a sink that there is none."""
    whole = torch.logaddexp(lse, sink)
    whole.masked_fill_(whole.isinf(), 0)
    return out.mul_((lse - whole).exp_()[..., None]), whole


def gradient_by_sink(grad: Tensor, out: Tensor, lse: Tensor, sink: Tensor) -> Tensor:
    """The gradient by the sink of each row, of output and log-sum-exp as `take_share` gives them."""
    return (sink - lse).exp_() * -(grad * out).sum(-1, dtype=lse.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, sink: Tensor, mask: Mask) -> Tensor:
    """softmax([q k^T / sqrt(D), sink]) without its last column, times v, under a mask. q ``[B, H, N, D]``, k, v
    ``[B, Hkv, M, D or E]``, sink ``[B, H, N]`` in float32 or wider: a logit of each row. M >= 1."""
    shape, kv_heads, m, value_width = q.shape, k.shape[1], k.shape[2], v.shape[-1]
    start, valid = mask.start(shape[2], m), mask.key_valid(m)
    causal = mask.causal and start < m - 1  # a first query that stands on the last key already sees all of them
    if value_width != shape[3]:  # unequal widths would leave the flash kernel
        q, k, v = (F.pad(x, (0, max(shape[3], value_width) - x.shape[-1])) for x in (q, k, v))
    wide = *shape[:3], q.shape[3]
    if kv_heads < shape[1] and not causal:  # a group's heads are just more query rows of the one key-value head
        q, sink = (x.reshape(shape[0], kv_heads, -1, *x.shape[3:]) for x in (q, sink))
    elif kv_heads < shape[1] and not fused.takes_groups(q, k):  # groups are the heads of a larger batch
        q, sink = (split_groups(x, kv_heads) for x in (q, sink))
        k, v = (x.reshape(-1, 1, *x.shape[2:]) for x in (k, v))
        valid = None if valid is None else valid.repeat_interleave(kv_heads, 0)
    run = _sink if traced(q) else Sink.apply
    given = *(fused.in_rows(x) for x in (q, k, v)), sink, valid, shape[3] ** -0.5, causal, start
    out = cast(tuple[Tensor, Tensor], run(*given))[0].reshape(wide)
    return out[..., :value_width] if value_width < wide[3] else out


def split_groups(x: Tensor, kv_heads: int) -> Tensor:
    """``[B, H, N, ..]`` to ``[B Hkv, G, N, ..]``."""
    return x.unflatten(1, (kv_heads, -1)).flatten(0, 1)


class _Part(NamedTuple):
    """Rows that one call of the kernel takes, over the keys before ``last``. added: an additive mask."""

    rows: slice
    last: int
    added: Tensor | None


def _split(q: Tensor, m: int, valid: Tensor | None, start: int) -> Iterator[_Part]:
    """Rows that have masks of their own, some at a time; none that see no key."""
    for first in range(max(0, -start), q.shape[2], ROWS):
        stop = min(first + ROWS, q.shape[2])
        last = min(start + stop, m)
        allowed = see_causally(start + first, stop - first, last, valid, q.device)
        yield _Part(slice(first, stop), last, fused.additive(allowed, q.dtype))


def _at_once(q: Tensor, valid: Tensor | None, causal: bool, start: int) -> tuple[bool, Tensor | None]:
    """Whether one call of the kernel takes all rows, and the additive mask that it then needs."""
    if causal:
        return valid is None and start == 0, None
    return True, None if valid is None else fused.additive(valid[:, None, None], q.dtype)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor, valid: Tensor | None, scale: float, causal: bool, start: int
) -> tuple[Tensor, Tensor]:
    whole, added = _at_once(q, valid, causal, start)
    if whole:
        return take_share(*fused.attend_with_lse(q, k, v, added, causal, scale), sink)
    out, lse = torch.zeros_like(q), torch.full_like(sink, float("-inf"))
    for rows, last, its in _split(q, k.shape[2], valid, start):
        out[:, :, rows], lse[:, :, rows] = fused.attend_with_lse(
            q[:, :, rows], k[:, :, :last], v[:, :, :last], its, False, scale
        )
    return take_share(out, lse, sink)


def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor,
    valid: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    start: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    by_sink = gradient_by_sink(grad, out, lse, sink)
    whole, added = _at_once(q, valid, causal, start)
    if whole:
        return *fused.gradients_with_lse(grad, q, k, v, added, out, lse, causal, scale), by_sink
    by_q = torch.zeros_like(q)
    by_k, by_v = (torch.zeros_like(x, dtype=lse.dtype) for x in (k, v))
    for rows, last, its in _split(q, k.shape[2], valid, start):
        above, queries, found, sums = (x[:, :, rows] for x in (grad, q, out, lse))
        given = above, queries, k[:, :, :last], v[:, :, :last], its, found, sums, False, scale
        by_q[:, :, rows], by_keys, by_values = fused.gradients_with_lse(*given)
        by_k[:, :, :last] += by_keys
        by_v[:, :, :last] += by_values
    return by_q, by_k.to(k.dtype), by_v.to(v.dtype), by_sink


class Sink(SoftmaxFunction):
    """``(q, k, v, sink, valid keys, scale, causal, start)``; k and v have q's heads, or one for all of them, or as many
    as torch's kernel takes."""

    kernel = "attention with a sink"
    tensors, differentiated = 5, 4
    forward = staticmethod(_forward)
    gradients = staticmethod(_gradients)


_sink: Any = make_softmax_op("sink", _forward, _gradients, tensors=5, differentiated=4)
