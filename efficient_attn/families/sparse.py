"""A pattern made into a mechanism: softmax over the keys that the pattern allows, and work for no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import flex
from ..kernels.dense import softmax_attention
from ..kernels.parts import Job, softmax_over_plan
from ..kernels.plan import KNOWN, block_plan, part_plan
from ..kernels.sdpa import fused
from ..kernels.tiles import Plan
from ..mask import Mask
from ..mechanism import Attention, Growth, Traits
from ..patterns import Band, Blocks, Fact, Geometry, Keys, Pattern, Queries, as_pattern
from ..state import KVCache, RollingCache, preallocate
from .softmax import cache_sizes


class SparseAttention(Attention):
    """Softmax attention over a pattern. A subclass passes its pattern to ``super().__init__``; nothing else is needed.

    time: the published growth, in letters. Backends: ``windows`` (zero-copy views) serves one contiguous window,
    ``parts`` (views, columns and gathered blocks, joined by their log-sum-exps) every pattern of bands, keys, queries
    and blocks, ``blocks`` (gathered key blocks under masks) any pattern at all. ``flex`` is torch's flex_attention, for
    CUDA; like the others it computes the pattern's own key blocks and no others.
    """

    backends = ("windows", "parts", "blocks", "flex", "dense")
    only_on: ClassVar[Mapping[str, str]] = {"flex": "cuda"}

    def __init__(self, pattern: Pattern | Fact, *, time: str = "O(N P), P keys a query") -> None:
        super().__init__()
        self.pattern, self._time = as_pattern(pattern), time
        if seeds := [f.seed for f in self.pattern.facts if isinstance(f, Blocks) and f.count]:
            self.register_buffer("seeds", torch.tensor(seeds))
            self.register_load_state_dict_post_hook(_with_loaded_seeds)

    @property
    def traits(self) -> Traits:
        return Traits(exact=True, positional=True, padded_as_trimmed=not hasattr(self, "seeds"))

    @property
    def growth(self) -> Growth:
        return Growth(self._time, "O(N)", self.pairs)

    def why_not(self, backend: str) -> str | None:
        if backend == "windows" and self.pattern.window is None:
            return "the pattern is not one contiguous window; 'parts' or 'blocks' may serve it"
        if backend == "parts" and not all(isinstance(f, KNOWN) for f in self.pattern.facts):
            return "a fact of the pattern does not name its tiles; 'blocks' serves any pattern"
        return flex.why_not("cuda" if torch.cuda.is_available() else "cpu") if backend == "flex" else None

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        g = Geometry(n, m, mask.start(n, m), mask.causal)
        i, j = torch.arange(n, device=q.device)[:, None] + g.start, torch.arange(m, device=q.device)
        return softmax_attention(q, k, v, mask.dense(n, m, device=q.device) & self.pattern.allows(i, j, g))

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        batch, heads, n, width = q.shape
        kv_heads, m, value_width = k.shape[1], k.shape[2], v.shape[-1]
        if self.backend == "flex":
            return flex.attend(q, k, v, self.pattern, mask, width**-0.5)
        group = heads // kv_heads
        g = Geometry(n, m, mask.start(n, m), mask.causal)
        pad = max(width, value_width)  # the kernels want equal widths; zeros change neither scores nor outputs
        q, k, v = (x if x.shape[-1] == pad else F.pad(x, (0, pad - x.shape[-1])) for x in (q, k, v))
        # the heads of a group stand beside each other in the row, so that one fetch of keys serves them all
        rows = q.unflatten(1, (kv_heads, group)).transpose(2, 3).reshape(batch * kv_heads, n, group, pad)
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()  # the kernel never looks at it
        keys, values = (x.reshape(batch * kv_heads, m, pad).contiguous() for x in (k, v))
        out = softmax_over_plan(rows, keys, values, Job(self._plan(g), mask.key_valid(m), group, width**-0.5))
        out = out.view(batch, kv_heads, n, group, pad).transpose(2, 3).reshape(batch, heads, n, pad)
        return out[..., :value_width] if value_width < pad else out

    def _plan(self, g: Geometry) -> Plan:
        by_parts = self.backend != "blocks" and self.why_not("parts") is None
        return part_plan(self.pattern, g) if by_parts else block_plan(self.pattern, g)

    def pairs(self, n: int, m: int, causal: bool) -> int:
        """Pairs in the pattern, each once, counted tile by tile."""
        return sum(part.pairs() for part in self._plan(Geometry(n, m, m - n, causal)))

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        if self.backend == "dense":
            return n * m
        plan = self._plan(Geometry(n, m, m - n, causal))
        return sum(tile.pairs for part in plan for tile in part.tiles)

    # -- decoding: a bounded reach needs the first keys and a ring of the last, anything else the whole past ----------

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache | RollingCache:
        reach, sizes = self.pattern.reach, cache_sizes(self, batch)
        if reach is None:
            return preallocate(KVCache(max_len), sizes, dtype, device)
        prefix = min(reach.prefix, max_len)
        ring = min(reach.back + 1, max_len - prefix)
        return preallocate(RollingCache(ring, max_len, prefix), sizes, dtype, device)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        if q.shape[2] == 1:
            state = state.append(k, v)
            return self._newest(q, state), state
        run = self.oracle if self.backend == "dense" else self.compute
        if isinstance(state, KVCache):
            state = state.append(k, v)
            keys, values = state.filled()
            return run(q, keys, values, Mask(causal=True)), state
        if not state.length:
            return run(q, k, v, Mask(causal=True)), state.append(k, v)
        # what lies between the first keys and the ring is out of reach, and the ring is as long as the reach: so that
        # distances which matter stay what they are when the keys that are kept close ranks
        past_k, past_v = state.in_order()
        out = run(q, torch.cat([past_k, k], 2), torch.cat([past_v, v], 2), Mask(causal=True))
        return out, state.append(k, v)

    def _newest(self, q: Tensor, state: KVCache | RollingCache) -> Tensor:
        """The newest position over the keys that it sees among those kept."""
        keys, values = state.filled()
        if isinstance(state, RollingCache) and _sees_all_kept(self.pattern):
            return fused(q, keys, values)
        at = torch.arange(state.length) if isinstance(state, KVCache) else state.positions()
        i = state.length - 1
        seen = self.pattern.allows(i, at, Geometry(1, i + 1, i, True)).to(q.device)
        if isinstance(state, RollingCache) or 2 * int(seen.sum()) > len(seen):
            return fused(q, keys, values, allowed=seen[None, None, None])
        index = seen.nonzero()[:, 0]
        return fused(q, keys.index_select(2, index), values.index_select(2, index))

    def absorb(self, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> Any:
        return state.append(k, v)


def _sees_all_kept(pattern: Pattern) -> bool:
    """Whether a causal query sees every key within the pattern's reach: bands and first keys without holes."""
    columns = [f for f in pattern.facts if isinstance(f, Keys)]
    rows = max((f.last for f in pattern.facts if isinstance(f, Queries)), default=0)
    bands = [f for f in pattern.facts if isinstance(f, Band)]
    whole = all(f.step == 1 and (f.lo or 0) <= 0 for f in bands) and all(f.first == 0 and not f.period for f in columns)
    known = len(bands) + len(columns) + sum(isinstance(f, Queries) for f in pattern.facts)
    return whole and known == len(pattern.facts) and rows <= max((f.last for f in columns), default=0)


def _with_loaded_seeds(attn: Any, _: Any) -> None:
    """A state dict brings the seeds of what was drawn."""
    seeds = iter(attn.seeds.tolist())
    facts = attn.pattern.facts
    drawn = (isinstance(f, Blocks) and f.count for f in facts)
    attn.pattern = Pattern(tuple(replace(f, seed=next(seeds)) if d else f for f, d in zip(facts, drawn, strict=True)))
