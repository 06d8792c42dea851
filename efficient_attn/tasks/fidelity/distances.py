"""Distances: how far a mechanism's output is from exact softmax attention on the same queries, keys and values."""

import math
from itertools import pairwise

import torch
from torch import Tensor

from ...contract import Attention, Mask
from ...instruments.distance import relative_error
from ...kernels.softmax.softmax_kernel import cut_range
from .exact import MAX_BLOCK_BYTES, SINKS, ExactReference, compute_exact, count_visible_keys

ALL_ROWS = 2048  # queries up to which all weights are compared; above that those of so many, if rows are independent
N_SEGMENTS = 16  # of the sequence, from each of which a block of these rows is drawn
MIN_KEYS_PER_CALL = 256  # keys whose weights one call returns, or more if blocks stay small


def measure_distances(
    attn: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, exact: ExactReference | None = None
) -> dict[str, float | None]:
    """Compare a mechanism with exact attention. q ``[B, H, N, D]``, k, v ``[B, Hkv, M, D]``; exact: if computed before.

    Returns the columns of rows by name, over all heads and rows (docs/concepts/measuring.md), and ``mean_value_error``:
    the relative error of predicting the mean of the visible values.

    No matrix of all pairs is stored. As outputs are linear in v, calls with columns of the identity as v return the
    mechanism's weights for some keys. Weights are compared on all rows up to 2,048 queries, and for mechanisms that mix
    queries (`Traits.rows_alone`); otherwise on 16 blocks of 128 rows, each drawn from a sixteenth of the sequence with
    a fixed seed, over all keys.
    """
    exact = compute_exact(q, k, v, mask) if exact is None else exact
    with torch.no_grad():
        out = attn(q, k, v, mask)
        l1_distance, missed_mass, n_rows = _compare_weights(attn, q, k, mask, exact)
        head_errors = [relative_error(out[:, head], exact.out[:, head]) for head in range(out.shape[1])]
        return {
            "relative_error": relative_error(out, exact.out),
            "mean_value_error": exact.mean_value_error,
            "spread_over_heads": torch.tensor(head_errors, dtype=torch.float64).std(correction=0).item(),
            "cosine_similarity": torch.cosine_similarity(out.double(), exact.out, dim=-1).mean().item(),
            "total_variation": l1_distance / 2,
            "missed_mass": missed_mass,
            "weight_rows": n_rows,
            "effective_keys": exact.effective_keys,
            "sink_mass": exact.sink_mass,
            "own_sink_mass": attn(q, k, _unit_values(q, k, slice(0, SINKS)), mask).double().sum(-1).mean().item(),
            "gradient_cosine": _compare_gradients(attn, q, k, v, mask, exact) if attn.traits.gradient else None,
        }


def _compare_gradients(attn: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, exact: ExactReference) -> float:
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = attn(*leaves, mask)
        gradients = torch.autograd.grad(out, leaves, exact.upstream, allow_unused=True, materialize_grads=True)
    dot, squared_norm, exact_squared_norm = 0.0, 0.0, 0.0
    for gradient, expected in zip(gradients, exact.gradients, strict=True):
        widened = gradient.double()
        dot += (widened * expected).sum().item()
        squared_norm += widened.square().sum().item()
        exact_squared_norm += expected.square().sum().item()
    return dot / math.sqrt(squared_norm * exact_squared_norm) if squared_norm and exact_squared_norm else 0.0


def _compare_weights(
    attn: Attention, q: Tensor, k: Tensor, mask: Mask, exact: ExactReference
) -> tuple[float, float, int]:
    """The L1 distance and the missed mass of a row's weights, averaged, and the number of rows of a head."""
    (batch, heads, n, _), (kv_heads, m) = q.shape, k.shape[1:3]
    row_blocks = _draw_row_blocks(n) if n > ALL_ROWS and attn.traits.rows_alone else [slice(0, n)]
    l1_distance, missed_mass, count = 0.0, 0.0, sum(rows.stop - rows.start for rows in row_blocks)
    for rows in row_blocks:
        size, n_visible = rows.stop - rows.start, count_visible_keys(mask, rows, n, m)
        queries, block_mask = (q, mask) if size == n else (q[:, :, rows], mask.rows(rows, n, m))
        step = max(MIN_KEYS_PER_CALL, MAX_BLOCK_BYTES // (8 * batch * max(heads * size, kv_heads * m)))
        for columns in cut_range(n_visible, step):
            all_weights = attn(queries, k, _unit_values(q, k, columns), block_mask)
            for head_block in cut_range(heads, max(1, MAX_BLOCK_BYTES // (8 * batch * size * step))):
                expected = exact.compute_weights(q, k, mask, head_block, rows, columns)
                weights = all_weights[:, head_block].double()
                l1_distance += (weights - expected).abs_().sum().item()
                missed_mass += expected.masked_fill_(weights != 0, 0).sum().item()
    total_rows = batch * heads * count
    return l1_distance / total_rows, missed_mass / total_rows, count


def _draw_row_blocks(n: int) -> list[slice]:
    """A block of rows in each segment of n rows, by a fixed seed."""
    size, generator, edges = ALL_ROWS // N_SEGMENTS, torch.Generator().manual_seed(0), range(0, n * N_SEGMENTS + 1, n)
    blocks = []
    for start, end in pairwise(edge // N_SEGMENTS for edge in edges):
        first = int(torch.randint(start, end - size + 1, (), generator=generator))
        blocks.append(slice(first, first + size))
    return blocks


def _unit_values(q: Tensor, k: Tensor, columns: slice) -> Tensor:
    """Values ``[B, Hkv, M, columns]`` with which an output is the weights on these keys; no more than M."""
    batch, kv_heads, m, _ = k.shape
    values = torch.zeros(m, min(columns.stop, m) - columns.start, dtype=q.dtype, device=q.device)
    values[columns] = torch.eye(values.shape[1], dtype=q.dtype, device=q.device)
    return values.expand(batch, kv_heads, *values.shape)
