"""Exact softmax attention as what others are held to: in float64, a block of query rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...contract.mask import Mask

BLOCK = 2**25  # bytes of float64 numbers that a block of scores may take; some five such blocks are held at once
SINKS = 4  # keys at the start that StreamingLLM keeps: what is left over goes there (https://arxiv.org/abs/2309.17453)


@dataclass(frozen=True, eq=False)
class Exact:
    """What exact attention makes of q ``[B, H, N, D]``, k and v ``[B, Hkv, M, D]``, in float64.

    out: ``[B, H, N, D]``. lse: ``[B, H, N]``, the log of the sum of a row's exponentials; 0 where it may see no key.
    upstream: a gradient of the output, drawn from a normal distribution, in q's dtype. gradients: those of q, k and v
    that follow from it. mean_value_error: the relative error of the predictor that always says the mean of the visible
    values. effective_keys: the exponential of the entropy of a row's weights, averaged; how many keys a query really
    reads. sink_mass: the weight of a row on the first 4 keys, averaged.
    """

    out: Tensor
    lse: Tensor
    upstream: Tensor
    gradients: tuple[Tensor, Tensor, Tensor]
    mean_value_error: float
    effective_keys: float
    sink_mass: float

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Exact:
        """Work it out. Beyond the result it holds about five times `BLOCK`, and no matrix of all pairs."""
        with torch.no_grad():
            return _work_out(q, k, v, mask)

    def weights(self, q: Tensor, k: Tensor, mask: Mask, heads: slice, rows: slice, columns: slice) -> Tensor:
        """The weights ``[B, heads, rows, columns]`` of some queries on some keys."""
        n, m = q.shape[2], k.shape[2]
        scores = q[:, heads, rows].double() @ _expand(k[:, :, columns], heads, q.shape[1]).mT * q.shape[-1] ** -0.5
        hidden = ~mask.rows(rows, n, m).dense(rows.stop - rows.start, m, device=q.device)[..., columns]
        return scores.sub_(self.lse[:, heads, rows, None]).masked_fill_(hidden, -torch.inf).exp_()


def last_seen(mask: Mask, rows: slice, n: int, m: int) -> int:
    """The number of keys, from the first, that hold all that these rows may see; at least one."""
    return max(1, min(m, mask.start(n, m) + rows.stop)) if mask.causal else m


def _expand(x: Tensor, heads: slice, count: int) -> Tensor:
    """Those key-value heads that some of ``count`` query heads share, one for each of them, in float64."""
    groups = torch.arange(heads.start, heads.stop, device=x.device) // (count // x.shape[1])
    return x[:, groups].double()


def _split(q: Tensor, m: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of heads and of query rows, with at most `BLOCK` bytes of scores each."""
    batch, heads, n, _ = q.shape
    rows = min(n, max(1, BLOCK // (8 * batch * m)))
    some = min(heads, max(1, BLOCK // (8 * batch * m * rows)))
    for head in range(0, heads, some):
        for row in range(0, n, rows):
            yield slice(head, min(head + some, heads)), slice(row, min(row + rows, n))


def _work_out(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Exact:
    (batch, heads, n, width), (kv_heads, m) = q.shape, k.shape[1:3]
    generator = torch.Generator().manual_seed(0)
    upstream = torch.randn(batch, heads, n, v.shape[-1], generator=generator).to(q)
    out, lse = (q.new_empty(batch, heads, n, *tail, dtype=torch.float64) for tail in ((v.shape[-1],), ()))
    dq, dk, dv = (torch.zeros_like(x, dtype=torch.float64) for x in (q, k, v))
    missed, keys, sinks, scale = 0.0, 0.0, 0.0, width**-0.5
    for some, rows in _split(q, m):
        seen = last_seen(mask, rows, n, m)
        allowed = mask.rows(rows, n, m).dense(rows.stop - rows.start, m, device=q.device)[..., :seen]
        queries, slope = q[:, some, rows].double(), upstream[:, some, rows].double()
        keyed, values = _expand(k[:, :, :seen], some, heads), _expand(v[:, :, :seen], some, heads)
        scores = queries @ keyed.mT * scale
        weights = scores.masked_fill(~allowed, -torch.inf)
        total = weights.logsumexp(-1)
        total.masked_fill_(total.isinf(), 0)
        weights.sub_(total[..., None]).exp_()
        lse[:, some, rows], out[:, some, rows] = total, (exact := weights @ values)
        keys += (total - scores.mul_(weights).sum(-1)).exp_().sum().item()  # the entropy: lse - sum of weight x score
        sinks += weights[..., :SINKS].sum().item()
        visible = allowed.double()
        mean = (visible / visible.sum(-1, keepdim=True).clamp(min=1)) @ values
        missed += (mean - exact).square().sum().item()
        del scores, visible, mean
        groups = torch.arange(some.start, some.stop, device=q.device) // (heads // kv_heads)
        dv[:, :, :seen].index_add_(1, groups, weights.mT @ slope)
        slopes = (slope @ values.mT).sub_((slope * exact).sum(-1, keepdim=True)).mul_(weights).mul_(scale)
        dq[:, some, rows] = slopes @ keyed
        dk[:, :, :seen].index_add_(1, groups, slopes.mT @ queries)
    size, count = out.norm().item(), batch * heads * n
    return Exact(out, lse, upstream, (dq, dk, dv), missed**0.5 / (size or 1.0), keys / count, sinks / count)
