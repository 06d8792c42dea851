"""Attention from a pattern: softmax over the keys that the pattern allows, computed for these keys only."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from torch import Tensor

from ...contract import Attention, CallFacts, Growth, Mask, Shape, Traits, Values, require_values
from ...contract.decode_state import KVCache, RollingCache, preallocate
from ...kernels.custom_ops import have_numbers, in_functorch_transform
from ...kernels.dense import softmax_attention
from ...kernels.half_precision import HALF_DTYPES
from ...kernels.native.building import why_no_native
from ...kernels.softmax.sdpa import attend_fused, pad_widths
from ...kernels.sparse import flex_backend, pattern_op
from ...kernels.sparse.implementation_choice import (
    MAX_MASKED_LENGTH,
    choose_implementation,
    is_native,
    runs_in_cpp,
)
from ...kernels.sparse.masked_softmax import attend_masked
from ...kernels.sparse.parts import PlanConfig, SparseInputs, softmax_over_plan
from ...kernels.sparse.tile_plan import BUILTIN_FACTS, plan_blocks, plan_parts
from ...kernels.sparse.tiles import TilePlan
from ...patterns import Band, Blocks, Fact, Geometry, Pattern, as_pattern

CPU = torch.device("cpu")

# created once, because every call reads them; draws from all M keys depend on M
FIXED_TRAITS, DRAWN_TRAITS = (Traits(exact=True, positional=True, padded_as_trimmed=x) for x in (True, False))


class SparseAttention(Attention):
    """Softmax attention over a pattern. A subclass passes its pattern to ``super().__init__``; nothing else is needed.

    With p for the pairs that pattern and mask allow, the reference is

        w = einsum("bhnd,bhmd->bhnm", q, k).div(D**0.5).masked_fill(~p, -inf).softmax(-1)
        out = einsum("bhnm,bhme->bhne", w, v)

    time: the published growth. Backends: ``parts`` (views, columns and gathered blocks, merged by their log-sum-exps)
    supports every pattern of bands, keys, queries and blocks, ``blocks`` (gathered key blocks with masks) any pattern.
    ``cpp`` does the same in C++; where it is built, ``adaptive`` selects it in place of ``parts`` if it was faster.
    ``masked`` is one call of torch's fused kernel over all N x M pairs with the pattern as mask: more work, but less
    time for short sequences. ``flex`` is torch's flex_attention, for CUDA, which compiles a kernel for each shape.
    ``adaptive`` uses ``parts`` or ``masked`` in each call, whichever is expected to be faster, and never ``masked``
    beyond 1,024 positions; there it uses ``flex`` on CUDA in half precision. `what_runs` tells which. All but
    ``masked`` compute only the pattern's key blocks.
    """

    backends = ("adaptive", "parts", "blocks", "masked", "cpp", "flex", "dense")
    renamed: ClassVar[Mapping[str, str]] = {"windows": "parts"}
    only_on: ClassVar[Mapping[str, str]] = {"flex": "cuda", "cpp": "cpu"}
    only_dtypes: ClassVar[Mapping[str, tuple[torch.dtype, ...]]] = {"flex": flex_backend.DTYPES}

    def __init__(self, pattern: Pattern | Fact, *, time: str = "O(N P), P keys a query") -> None:
        super().__init__()
        self.pattern, self._time = as_pattern(pattern), time
        self._pattern_text = pattern_op.write_pattern(self.pattern)
        if seeds := [f.seed for f in self.pattern.facts if isinstance(f, Blocks) and f.count]:
            self.register_buffer("seeds", torch.tensor(seeds))
            self.register_load_state_dict_post_hook(_load_seeds)

    @property
    def traits(self) -> Traits:
        return DRAWN_TRAITS if "seeds" in self._buffers else FIXED_TRAITS

    @property
    def growth(self) -> Growth:
        return Growth(self._time, "O(N)", self.pairs)

    @property
    def compiles(self) -> bool:
        return self.backend == "flex"

    def compiles_on(self, device: str) -> bool:
        return self.compiles or (self.backend == "adaptive" and device == "cuda")

    def why_not(self, backend: str) -> str | None:
        if backend in ("adaptive", "parts") and not all(isinstance(f, BUILTIN_FACTS) for f in self.pattern.facts):
            return "a fact of the pattern does not define its tiles; use 'blocks', which supports any pattern"
        if backend == "flex" and not torch.cuda.is_available():
            return "needs a CUDA device: flex_attention on the CPU has no backward pass"
        if backend == "cpp":
            return why_no_native("tiles")
        return None

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return attend_pattern(q, k, v, mask, self.pattern)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        batch, heads, n, width = q.shape
        kv_heads, m, value_width = k.shape[1], k.shape[2], v.shape[-1]
        if self._runs_flex(n, m, q.dtype, q.device):
            return flex_backend.attend(q, k, v, self.pattern, mask, width**-0.5)
        group, valid, scale = heads // kv_heads, mask.key_valid(m), width**-0.5
        g = Geometry(n, m, mask.start(n, m), mask.causal)
        q, k, v = pad_widths(q, k, v)
        pad = q.shape[-1]
        compiling = torch.compiler.is_compiling()
        text = self._pattern_text if compiling else None  # the op chooses in this case, because it knows all sizes
        masks = 1 if valid is None else batch
        native = not compiling and is_native(q.dtype, q.device) and have_numbers(q, k, v)
        backend = self.backend if compiling else self._choose_backend(g, batch * heads, pad, masks, native=native)
        if text is None and backend == "masked":
            run = attend_masked
            if compiling:
                from ...kernels.sparse.outside_graph import masked_outside_graph as run
            out = run(q, k, v, valid, self.pattern, g, scale)
            return out[..., :value_width] if value_width < pad else out
        # the heads of a group are adjacent in the row, so that keys are fetched once for all of them
        rows = q.unflatten(1, (kv_heads, group)).transpose(2, 3).reshape(batch * kv_heads, n, group, pad)
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()  # not used by the kernel
        keys, values = (x.reshape(batch * kv_heads, m, pad).contiguous() for x in (k, v))
        tensors = SparseInputs(rows, keys, values, valid)
        if text is not None:
            options = pattern_op.PatternOptions(text, g.start, g.causal, self.backend, scale)
            out = pattern_op.softmax_over_text(tensors, options)
        elif compiling:
            from ...kernels.sparse.outside_graph import softmax_outside_graph

            out = softmax_outside_graph(tensors, self.pattern, g, scale)
        else:
            plan = self._make_plan(g)
            in_cpp = runs_in_cpp(plan, tensors, backend=self.backend)
            out = softmax_over_plan(tensors, PlanConfig(plan, group, scale, in_cpp))
        out = out.view(batch, kv_heads, n, group, pad).transpose(2, 3).reshape(batch, heads, n, pad)
        return out[..., :value_width] if value_width < pad else out

    def _runs_flex(self, n: int, m: int, dtype: torch.dtype, device: torch.device) -> bool:
        if self.backend != "adaptive":
            return self.backend == "flex"
        is_long = n > 1 and max(n, m) > MAX_MASKED_LENGTH  # shorter ones would be compiled for each of many lengths
        is_plain = not torch.compiler.is_compiling() and not in_functorch_transform()
        return device.type == "cuda" and dtype in HALF_DTYPES and is_long and is_plain

    def _choose_backend(self, g: Geometry, heads: int, width: int, masks: int = 1, *, native: bool) -> str:
        if self.backend != "adaptive":
            return self.backend
        return choose_implementation(self.pattern, g, heads, width, masks, native=native)

    def _make_plan(self, g: Geometry) -> TilePlan:
        use_parts = self.backend != "blocks" and self.why_not("parts") is None
        return plan_parts(self.pattern, g) if use_parts else plan_blocks(self.pattern, g)

    def pairs(self, n: int, m: int, causal: bool) -> int:
        """Pairs in the pattern, each once, counted tile by tile."""
        return sum(tiling.pairs() for tiling in self._make_plan(Geometry(n, m, m - n, causal)))

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        heads, width = self.dims.heads or self.dims.kv_heads or 1, self.dims.head_dim or 64
        call = CallFacts(causal=causal, dtype=torch.float32, device=CPU, gradient=False)
        return self.what_runs(Shape(1, heads, heads, n, m, width, width), **call)[1]

    def what_runs(self, shape: Shape, **call: Unpack[CallFacts]) -> tuple[str, int]:
        g, dtype, device = Geometry(shape.n, shape.m, shape.m - shape.n, call["causal"]), call["dtype"], call["device"]
        if self._runs_flex(shape.n, shape.m, dtype, device):
            return "flex", sum(tile.pairs for tiling in self._make_plan(g) for tile in tiling.tiles)
        native = is_native(dtype, device)
        backend = self._choose_backend(g, shape.batch * shape.heads, shape.head_dim, native=native)
        if backend in ("dense", "masked"):
            return backend, shape.n * shape.m
        return backend, sum(tile.pairs for tiling in self._make_plan(g) for tile in tiling.tiles)

    # -- decoding: a bounded reach needs the first keys and a ring of the last, anything else the whole past ----------

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        reach, sizes = self.pattern.reach, self.dims.cache_sizes(batch, self.kv_heads)
        if reach is None:
            return preallocate(KVCache(max_len), sizes, dtype, device)
        prefix = min(reach.prefix, max_len)
        ring = min(reach.back + 1, max_len - prefix)
        return preallocate(RollingCache(ring, max_len=max_len, prefix=prefix), sizes, dtype, device)

    @property
    def absolute(self) -> bool:
        """False for patterns of bands, which depend on distances only."""
        return not all(isinstance(f, Band) for f in self.pattern.facts)

    def why_no_starts(self) -> str | None:
        return "its pattern depends on absolute positions" if self.absolute else None

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        if q.shape[2] == 1:
            state = state.append(k, v)
            return self._attend_newest(q, state), state
        if not isinstance(state, RollingCache):
            state = state.append(k, v)
            keys, values = state.filled()
            return self.run(q, keys, values, state.mask), state
        # keys between the first ones and the ring are out of reach, and the ring is as long as the reach, so
        # that the relevant distances do not change when the kept keys are concatenated
        return self.run(q, *state.extend(k, v)), state.append(k, v)

    def _attend_newest(self, q: Tensor, state: KVCache) -> Tensor:
        keys, values = state.filled()
        i = state.length - 1
        # whether all rows had started at the oldest stored position
        all_started = state.starts is None or state.length - state.slots >= state.starts.last
        if all_started and isinstance(state, RollingCache) and self._cache_covers_pattern and self.backend != "dense":
            return attend_fused(q, keys, values)
        positions = state.positions() if isinstance(state, RollingCache) else torch.arange(state.length)
        visible = self.pattern.allows(i, positions, Geometry(1, i + 1, i, True))
        if state.starts is not None and not all_started:
            started = positions.to(q.device) >= state.starts.first[:, None]
            run = softmax_attention if self.backend == "dense" else attend_fused
            return run(q, keys, values, allowed=(visible.to(q.device) & started)[:, None, None])
        if self.backend == "dense":
            return softmax_attention(q, keys, values, visible.to(q.device))
        if not visible.all():  # known to the host, which does not wait for the device
            index = visible.nonzero()[:, 0].to(q.device, non_blocking=True)
            if not len(index):
                return q.new_zeros(*q.shape[:3], values.shape[-1])
            keys, values = (x.index_select(2, index) for x in (keys, values))
        return attend_fused(q, keys, values)

    @cached_property
    def _cache_covers_pattern(self) -> bool:
        """Whether a query far from the start sees everything that a bounded state keeps."""
        reach = self.pattern.reach
        assert reach is not None
        i = reach.prefix + reach.back + 1
        kept_positions = np.r_[: reach.prefix, i - reach.back : i + 1]
        return bool(np.all(self.pattern.allows(i, kept_positions, Geometry(1, i + 1, i, True))))

    def absorb(self, k: Tensor, v: Values, state: Any, **inputs: Tensor) -> Any:
        return state.append(k, require_values(v))


def attend_pattern(q: Tensor, k: Tensor, v: Tensor, mask: Mask, pattern: Pattern) -> Tensor:
    """Dense softmax over the pairs that a pattern and a mask allow: the definition of sparse attention."""
    return softmax_attention(q, k, v, find_pairs(pattern, mask, q.shape[2], k.shape[2], q.device))


def find_pairs(pattern: Pattern, mask: Mask, n: int, m: int, device: torch.device) -> Tensor:
    """The pairs of n queries and m keys that a pattern and a mask allow, bool ``[1 or B, 1, N, M]``."""
    first, end = mask.span(n, m)
    g = Geometry(end - first, m, first, mask.causal)
    i, j = mask.positions(n, m, device=device)[:, None], torch.arange(m, device=device)
    return mask.dense(n, m, device=device) & pattern.allows(i, j, g)


def _load_seeds(attn: Any, _: Any) -> None:
    """Update the pattern with the seeds of its random blocks from a loaded state dict."""
    seeds = iter(attn.seeds.tolist())
    facts = (replace(f, seed=next(seeds)) if isinstance(f, Blocks) and f.count else f for f in attn.pattern.facts)
    attn.pattern = Pattern(tuple(facts))
    attn._pattern_text = pattern_op.write_pattern(attn.pattern)
