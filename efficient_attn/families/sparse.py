"""A pattern made into a mechanism: softmax over the keys that the pattern allows, and work for no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.blocks import block_tiles
from ..kernels.dense import softmax_attention
from ..kernels.sdpa import fused
from ..kernels.tiles import Job, Tile, softmax_over_tiles
from ..kernels.windows import window_tiles
from ..mask import Mask
from ..mechanism import Attention, Growth, Traits
from ..patterns import Fact, Geometry, Pattern, as_pattern
from ..state import KVCache, RollingCache, preallocate
from .softmax import cache_sizes


class SparseAttention(Attention):
    """Softmax attention over a pattern. A subclass passes its pattern to ``super().__init__``; nothing else is needed.

    Backends: ``windows`` (zero-copy views) serves one contiguous window, ``blocks`` (gathered key blocks) any pattern.
    """

    backends = ("windows", "blocks", "dense")

    def __init__(self, pattern: Pattern | Fact) -> None:
        super().__init__()
        self.pattern = as_pattern(pattern)

    @property
    def traits(self) -> Traits:
        return Traits(exact=True, positional=True)

    @property
    def growth(self) -> Growth:
        return Growth("O(N P), P keys a query", "O(N)", self.pairs)

    def why_not(self, backend: str) -> str | None:
        if backend == "windows" and self.pattern.window is None:
            return "the pattern is not one contiguous window; 'blocks' serves any pattern"
        return None

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        g = Geometry(n, m, mask.start(n, m), mask.causal)
        i, j = torch.arange(n, device=q.device)[:, None] + g.start, torch.arange(m, device=q.device)
        return softmax_attention(q, k, v, mask.dense(n, m, device=q.device) & self.pattern.allows(i, j, g))

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        batch, heads, n, width = q.shape
        kv_heads, m, value_width = k.shape[1], k.shape[2], v.shape[-1]
        group = heads // kv_heads
        g = Geometry(n, m, mask.start(n, m), mask.causal)
        pad = max(width, value_width)  # the kernels want equal widths; zeros change neither scores nor outputs
        q, k, v = (x if x.shape[-1] == pad else F.pad(x, (0, pad - x.shape[-1])) for x in (q, k, v))
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))  # the kernel never looks at it
        # the heads of a group stand beside each other in the row, so that one fetch of keys serves them all
        rows = q.unflatten(1, (kv_heads, group)).transpose(2, 3).reshape(batch * kv_heads, n * group, pad)
        job = Job(self._tiles(g), self._allowed(g), mask.key_valid(m), group, width**-0.5)
        keys, values = (x.reshape(batch * kv_heads, m, pad) for x in (k, v))
        out = softmax_over_tiles(rows, keys, values, job)
        out = out.view(batch, kv_heads, n, group, pad).transpose(2, 3).reshape(batch, heads, n, pad)
        return out[..., :value_width] if value_width < pad else out

    def _tiles(self, g: Geometry) -> tuple[Tile, ...]:
        if self.backend == "windows" and (window := self.pattern.window):
            return window_tiles(window, g)
        return block_tiles(self.pattern, g)

    def _allowed(self, g: Geometry) -> Any:
        def allowed(rows: Tensor, keys: Tensor) -> Tensor:
            i = rows + g.start
            pairs = self.pattern.allows(i, keys, g) & (keys < g.m)
            return pairs & (keys <= i) if g.causal else pairs

        return allowed

    def pairs(self, n: int, m: int, causal: bool) -> int:
        """Pairs in the pattern, each once, counted tile by tile."""
        g = Geometry(n, m, m - n, causal)
        if window := self.pattern.window:
            i = np.arange(n) + g.start
            last = np.minimum(i - window.lo, np.minimum(i, m - 1) if causal else m - 1)
            return int(np.maximum(last - np.maximum(i - window.hi, 0) + 1, 0).sum())
        count, allowed, cpu = 0, self._allowed(g), torch.device("cpu")
        for tile in self._tiles(g):
            for w in range(0, tile.count, tile.chunk):
                end = min(w + tile.chunk, tile.count)
                keys = tile.keys_of(w, end, cpu)[:, None, :]
                count += int((allowed(tile.queries_of(w, end, cpu)[:, :, None], keys) & (keys >= 0)).sum())
        return count

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        if self.backend == "dense":
            return n * m
        return sum(t.count * t.rows * t.span for t in self._tiles(Geometry(n, m, m - n, causal)))

    # -- decoding: a bounded reach needs a ring of that many positions, anything else the whole past ---------------

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache | RollingCache:
        reach, sizes = self.pattern.reach, cache_sizes(self, batch)
        if reach is None:
            return preallocate(KVCache(max_len), sizes, dtype, device)
        return preallocate(RollingCache(min(reach + 1, max_len), max_len), sizes, dtype, device)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        run = self.oracle if self.backend == "dense" else self.compute
        if isinstance(state, KVCache):
            state = state.append(k, v)
            keys, values = state.filled()
            return run(q, keys, values, Mask(causal=True)), state
        if q.shape[2] == 1:
            state = state.append(k, v)
            keys, values = state.filled()
            return fused(q, keys, values, allowed=self._ring_mask(state, q.device)), state
        return self._advance_many(q, k, v, state)

    def _ring_mask(self, state: RollingCache, device: torch.device) -> Tensor | None:
        """Which slots the newest position sees: all of them, unless the pattern has holes."""
        window = self.pattern.window
        if window and window.lo <= 0:
            return None
        i, g = state.length - 1, Geometry(1, state.length, state.length - 1, True)
        return self.pattern.allows(torch.tensor(i), state.positions(), g).to(device)[None, None, None]

    def _advance_many(self, q: Tensor, k: Tensor, v: Tensor, state: RollingCache) -> tuple[Tensor, RollingCache]:
        """T > 1 new positions over the ring and themselves; what lies before the ring is out of reach."""
        run = self.oracle if self.backend == "dense" else self.compute
        kept = min(state.length, state.capacity)
        if kept:
            past_k, past_v = state.in_order()
            out = run(q, torch.cat([past_k, k], 2), torch.cat([past_v, v], 2), Mask(causal=True))
        else:
            out = run(q, k, v, Mask(causal=True))
        return out, state.append(k, v)

    def absorb(self, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> Any:
        return state.append(k, v)
