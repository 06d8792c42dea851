"""Exact softmax attention as the reference: in float64, one block of query rows at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from ...contract import Mask
from ...kernels.softmax.softmax_kernel import cut_range

MAX_BLOCK_BYTES = 2**25  # of a block of float64 scores; about five such blocks exist at once
SINKS = 4  # first keys, which StreamingLLM keeps as attention sinks (https://arxiv.org/abs/2309.17453)


@dataclass(frozen=True, eq=False)
class ExactReference:
    """The results of exact attention for q ``[B, H, N, D]``, k and v ``[B, Hkv, M, D]``, in float64.

    out: ``[B, H, N, D]``. lse: ``[B, H, N]``, the log-sum-exp of a row; 0 if it sees no key. upstream: a normally
    distributed output gradient, in q's dtype. gradients: the resulting ones of q, k and v. mean_value_error: the
    relative error of predicting the mean of the visible values. effective_keys: the exponential of the entropy of a
    row's weights, averaged. sink_mass: the weight of the first 4 keys, averaged.
    """

    out: Tensor
    lse: Tensor
    upstream: Tensor
    gradients: tuple[Tensor, Tensor, Tensor]
    mean_value_error: float
    effective_keys: float
    sink_mass: float

    def compute_weights(self, q: Tensor, k: Tensor, mask: Mask, heads: slice, rows: slice, columns: slice) -> Tensor:
        """The weights ``[B, heads, rows, columns]`` of some queries on some keys."""
        n, m = q.shape[2], k.shape[2]
        keys = _expand_heads(k[:, :, columns], heads, q.shape[1])
        scores = q[:, heads, rows].double() @ keys.mT * q.shape[-1] ** -0.5
        hidden = ~mask.rows(rows, n, m).dense(rows.stop - rows.start, m, device=q.device)[..., columns]
        return scores.sub_(self.lse[:, heads, rows, None]).masked_fill_(hidden, -torch.inf).exp_()


def count_visible_keys(mask: Mask, rows: slice, n: int, m: int) -> int:
    """The number of keys, from the first, that contain all that these rows may see; at least one."""
    return max(1, min(m, mask.start(n, m) + rows.stop)) if mask.causal else m


def _expand_heads(x: Tensor, heads: slice, count: int) -> Tensor:
    """The key-value heads of some of ``count`` query heads, one for each of them, in float64."""
    groups = torch.arange(heads.start, heads.stop, device=x.device) // (count // x.shape[1])
    return x[:, groups].double()


def _split_blocks(q: Tensor, m: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of heads and of query rows, with at most `MAX_BLOCK_BYTES` of scores each."""
    batch, heads, n, _ = q.shape
    row_step = min(n, max(1, MAX_BLOCK_BYTES // (8 * batch * m)))
    head_step = max(1, MAX_BLOCK_BYTES // (8 * batch * m * row_step))
    return product(cut_range(heads, head_step), cut_range(n, row_step))


@torch.no_grad()
def compute_exact(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> ExactReference:
    """Exact attention, blockwise: besides the result, it needs about five times `MAX_BLOCK_BYTES`."""
    (batch, heads, n, width), (kv_heads, m) = q.shape, k.shape[1:3]
    generator = torch.Generator().manual_seed(0)
    upstream = torch.randn(batch, heads, n, v.shape[-1], generator=generator).to(q)
    out, lse = (q.new_empty(batch, heads, n, *tail, dtype=torch.float64) for tail in ((v.shape[-1],), ()))
    dq, dk, dv = (torch.zeros_like(x, dtype=torch.float64) for x in (q, k, v))
    squared_error, effective_keys, sink_mass, scale = 0.0, 0.0, 0.0, width**-0.5
    for head_block, rows in _split_blocks(q, m):
        n_visible = count_visible_keys(mask, rows, n, m)
        allowed = mask.rows(rows, n, m).dense(rows.stop - rows.start, m, device=q.device)[..., :n_visible]
        queries, grad_block = q[:, head_block, rows].double(), upstream[:, head_block, rows].double()
        keys, values = (_expand_heads(x[:, :, :n_visible], head_block, heads) for x in (k, v))
        scores = queries @ keys.mT * scale
        weights = scores.masked_fill(~allowed, -torch.inf)
        lse_block = weights.logsumexp(-1)
        lse_block.masked_fill_(lse_block.isinf(), 0)
        weights.sub_(lse_block[..., None]).exp_()
        lse[:, head_block, rows], out[:, head_block, rows] = lse_block, (out_block := weights @ values)
        entropy = lse_block - scores.mul_(weights).sum(-1)
        effective_keys += entropy.exp_().sum().item()
        sink_mass += weights[..., :SINKS].sum().item()
        visible = allowed.double()
        mean = (visible / visible.sum(-1, keepdim=True).clamp(min=1)) @ values
        squared_error += (mean - out_block).square().sum().item()
        del scores, visible, mean
        groups = torch.arange(head_block.start, head_block.stop, device=q.device) // (heads // kv_heads)
        dv[:, :, :n_visible].index_add_(1, groups, weights.mT @ grad_block)
        row_dots = (grad_block * out_block).sum(-1, keepdim=True)
        score_gradients = (grad_block @ values.mT).sub_(row_dots).mul_(weights).mul_(scale)
        dq[:, head_block, rows] = score_gradients @ keys
        dk[:, :, :n_visible].index_add_(1, groups, score_gradients.mT @ queries)
    mean_value_error, count = squared_error**0.5 / (out.norm().item() or 1.0), batch * heads * n
    means = mean_value_error, effective_keys / count, sink_mass / count
    return ExactReference(out, lse, upstream, (dq, dk, dv), *means)
