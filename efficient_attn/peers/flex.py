"""torch's flex_attention on a CPU: compiled, forward only, with a block mask made once for each length."""

from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from .. import patterns
from ..contract import Growth, Mask, Traits
from ..errors import UnsupportedError
from ..kernels.sparse.flex_backend import allowed_pairs, compile_flex_attention
from ..patterns import Geometry, Pattern
from ..registry import register
from .hosting import LibraryPattern

BLOCK = 128  # queries and keys of a block, the default of create_block_mask


class _FlexPeer(LibraryPattern):
    """flex_attention under torch.compile, with the block mask of one of our patterns.

    The mask is created by torch's ``create_block_mask``, once for each pattern, length and direction, and the kernel is
    compiled once for each set of sizes: both in a first call, which takes seconds. On a CPU torch has neither a
    backward pass nor float64. Version 2.13 computes some rows incorrectly at N = 40, though none from 100 on: sequences
    shorter than a block are refused.
    """

    declared = Traits(exact=True, positional=True, padding=False, decode=False, gradient=False)
    only_dtypes: ClassVar = {"library": (torch.float32, torch.bfloat16, torch.float16)}

    @property
    def compiles(self) -> bool:
        return self.backend == "library"

    @property
    def growth(self) -> Growth:
        return Growth("O(N P), P keys of the blocks that a query's block sees", "O(N)", self.pairs_computed)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        if min(n, m) < BLOCK:
            raise UnsupportedError(f"{self.label}: torch's CPU kernel errs at lengths shorter than a block, {BLOCK}")
        blocks = _make_block_mask(self.pattern, Geometry(n, m, mask.start(n, m), mask.causal), q.device)
        return compile_flex_attention()(q, k, v, block_mask=blocks, enable_gqa=q.shape[1] != k.shape[1])

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        """All pairs of every block that contains one of the pattern's."""
        if self.backend == "dense":
            return n * m
        g, total = Geometry(n, m, m - n, causal), 0
        for row in range(0, n, BLOCK):
            end = min(row + BLOCK, n)
            keys = self.pattern.key_blocks(g.start + row, g.start + end - 1, BLOCK, g)
            total += (end - row) * sum(min(BLOCK, m - block * BLOCK) for block in keys)
        return total


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _make_block_mask(pattern: Pattern, g: Geometry, device: torch.device) -> BlockMask:

    def allows(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return allowed_pairs(pattern, g, qi + g.start, ki)

    return create_block_mask(allows, None, None, g.n, g.m, device=str(device))


@register("peer_flex_sliding_window", family="sparse")
class PeerFlexWindow(_FlexPeer):
    """Compiled flex_attention with the same pairs as `sliding_window`, abs(i - j) <= window. Forward only on a CPU."""

    def __init__(self, *, window: int = 256) -> None:
        super().__init__()
        self.pattern = patterns.sliding_window(window)


@register("peer_flex_longformer", family="sparse")
class PeerFlexLongformer(_FlexPeer):
    """Compiled flex_attention with the same pairs as `longformer`: window and global tokens. Forward only on a CPU."""

    def __init__(self, *, window: int = 128, n_global: int = 64) -> None:
        super().__init__()
        self.pattern = patterns.sliding_window(window) | patterns.global_tokens(n_global)


@register("peer_flex_strided", family="sparse")
class PeerFlexStrided(_FlexPeer):
    """Compiled flex_attention with the same pairs as `strided`, the last stride keys and every stride-th. Forward only.

    Every block of keys contains some of the pairs, so that all N x M are computed.
    """

    def __init__(self, *, stride: int = 64) -> None:
        super().__init__()
        self.pattern = patterns.strided(stride)
