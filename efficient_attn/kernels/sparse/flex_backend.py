"""Any pattern through torch's flex_attention: one fused CUDA kernel, imported and compiled when it is first called. The
plan is a torch BlockMask of the pattern's own key blocks, so that no N x M mask is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...contract.mask import Mask
from ...patterns import Blocks, Fact, Geometry, Pattern

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK_SIZE = 128  # queries and keys of a block; the kernels require multiples of 128
MIN_HEAD_WIDTH = 16  # the smallest head width that the kernels support
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of the kernels: Triton compiles none for float64
MAX_COMPILED_KERNELS = 256  # largest number of compiled kernels in a process


def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Mask, scale: float) -> Tensor:
    """softmax(scale q k^T) v over the pairs that the pattern and the mask allow. q ``[B, H, N, D]``, k ``[B, Hkv, M,
    D]``, v ``[B, Hkv, M, E]``, none of them empty; returns ``[B, H, N, E]``. Rows without keys are zeros. The caller
    applies ``mask.query_lengths``. On the CPU gradients raise torch's error."""
    n, m, value_width = q.shape[2], k.shape[2], v.shape[-1]
    g = Geometry(n, m, mask.start(n, m), mask.causal)
    blocks = block_mask(pattern, g, device=q.device, valid=mask.key_valid(m))
    q, k, v = (F.pad(x, (0, MIN_HEAD_WIDTH - x.shape[-1])) if x.shape[-1] < MIN_HEAD_WIDTH else x for x in (q, k, v))
    return compile_flex_attention()(q, k, v, block_mask=blocks, scale=scale, enable_gqa=True)[..., :value_width]


def block_mask(
    pattern: Pattern, g: Geometry, *, device: torch.device, valid: Tensor | None = None, size: int = BLOCK_SIZE
) -> BlockMask:
    """A BlockMask of the pairs that pattern, causality and ``valid [B, M]``, True for valid keys, allow. Blocks without
    masked pairs are listed as full, for which the kernels evaluate no mask; with padding there are none. Equal plans
    share their tables. ``to_dense`` of the result does not work: it requires tables as wide as M."""
    from torch.nn.attention.flex_attention import BlockMask

    rule = _make_traceable(pattern, g, device)

    def allowed(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        pairs = allowed_pairs(rule, g, qi + g.start, ki)
        return pairs if valid is None else pairs & valid[b, ki]

    # not from_kv_blocks: when it transposes them, it uses the width of kv_indices as the number of key blocks
    tables = _make_tables(pattern, g, device, size, split=valid is None)
    return BlockMask(seq_lengths=(g.n, g.m), BLOCK_SIZE=(size, size), mask_mod=allowed, **tables)


def allowed_pairs(pattern: Pattern, g: Geometry, i: Any, j: Any) -> Any:
    """Whether query position i sees key j, padding aside."""
    pairs = pattern.allows(i, j, g)
    return pairs & (j <= i) if g.causal else pairs


@dataclass(frozen=True)
class _DrawnBlocks(Blocks):
    """Blocks with precomputed draws: the t-th of query block a is ``tables[t][a]``."""

    tables: tuple[Tensor, ...] = ()

    def draws(self, a: Any, g: Geometry) -> list[Any]:
        return [table[a.clamp(0, len(table) - 1)] for table in self.tables]


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # kept for later calls, whose backward pass could not save inference tensors
def _make_traceable(pattern: Pattern, g: Geometry, device: torch.device) -> Pattern:
    """The pattern with its draws in tables: compiling their arithmetic would take minutes."""

    def replace_draws(fact: Fact) -> Fact:
        if type(fact) is not Blocks:
            return fact
        drawn = fact.draws(torch.arange(max(g.start + g.n - 1, 0) // fact.size + 1, device=device), g)
        return _DrawnBlocks(fact.size, fact.count, fact.seed, tuple(x.int() for x in drawn))

    return Pattern(tuple(replace_draws(fact) for fact in pattern.facts))


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _make_tables(pattern: Pattern, g: Geometry, device: torch.device, size: int, split: bool) -> dict[str, Any]:
    """A BlockMask's tables, by query block and by key block; ``split`` lists full blocks apart from partial ones."""
    blocks_by_kind: dict[str, list[tuple[int, int]]] = {"": [], "full_": []}
    rows, columns = -(-g.n // size), -(-g.m // size)
    for r in range(rows):
        for c in pattern.key_blocks(g.start + r * size, g.start + min((r + 1) * size, g.n) - 1, size, g):
            blocks_by_kind["full_" if split and _is_full(pattern, g, r * size, c * size, size) else ""].append((r, c))
    pairs = {kind: np.array(blocks, dtype=np.int64).reshape(-1, 2).T for kind, blocks in blocks_by_kind.items()}
    tables = {}
    for side, axis, count in (("kv", 0, rows), ("q", 1, columns)):
        # both as wide as the wider: some kernels read the full table with the other one's strides
        width = max(int(np.bincount(p[axis]).max(initial=1)) for p in pairs.values())
        for kind, p in pairs.items():
            is_used = blocks_by_kind["full_"] or not kind
            table = _make_table(p[axis], p[1 - axis], count, width, device) if is_used else (None, None)
            tables[f"{kind}{side}_num_blocks"], tables[f"{kind}{side}_indices"] = table
    return tables


def _is_full(pattern: Pattern, g: Geometry, row: int, key: int, size: int) -> bool:
    """Whether every query of a block sees every key of another; ragged blocks are none."""
    if row + size > g.n or key + size > g.m:
        return False
    i, j = np.arange(row, row + size)[:, None] + g.start, np.arange(key, key + size)[None, :]
    # most blocks that are not full show it in their first or last row
    return bool(np.all(allowed_pairs(pattern, g, i[[0, -1]], j)) and np.all(allowed_pairs(pattern, g, i, j)))


def _make_table(
    rows: np.ndarray, columns: np.ndarray, count: int, width: int, device: torch.device
) -> tuple[Tensor, ...]:
    """The number of entries of each of ``count`` rows, and the sorted entries; unused ones are 0."""
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    counts, indices = np.bincount(rows, minlength=count), np.zeros((count, width), dtype=np.int32)
    indices[rows, np.arange(len(rows)) - (counts.cumsum() - counts)[rows]] = columns
    return tuple(torch.from_numpy(x.astype(np.int32)).to(device)[None, None] for x in (counts, indices))


@cache
def compile_flex_attention() -> Callable[..., Tensor]:
    """flex_attention, compiled separately for each set of shapes, pattern and geometry. With dynamic shapes the first
    length of a process would get specialized kernels and later ones general kernels, so that results would depend on
    the order. Past the limit fullgraph raises an error; uncompiled, scores would be N x M."""
    import torch._dynamo
    from torch.nn.attention.flex_attention import flex_attention

    has_limit = "recompile_limit" in signature(torch.compile).parameters
    limit: dict[str, Any] = {"recompile_limit": MAX_COMPILED_KERNELS} if has_limit else {}
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True, **limit)

    def call(*args: Any, **kwargs: Any) -> Tensor:  # older torches have one limit for everything, of 8
        with torch._dynamo.config.patch(recompile_limit=MAX_COMPILED_KERNELS):
            return compiled(*args, **kwargs)

    return compiled if has_limit else call
