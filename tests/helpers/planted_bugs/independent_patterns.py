"""Independent bugs of the sparse and hashed families."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.kernels.custom_ops import in_functorch_transform
from efficient_attn.kernels.hashed.lsh import Rounds, sort_rounds
from efficient_attn.patterns import Band, Pattern

from .independent import hosted
from .planting import Mutant

BUGS: list[Mutant] = []
window, dilated, sinks = hosted(BUGS, "sliding_window"), hosted(BUGS, "dilated_window"), hosted(BUGS, "attention_sinks")
global_tokens, strided, reformer = hosted(BUGS, "global_tokens"), hosted(BUGS, "strided"), hosted(BUGS, "reformer")


@window(
    "ring_before_longer_steps",
    "a step of several positions writes them first: its first ones lose keys",
    "decode_past_two_laps",
)
def _(cls: Any) -> dict[str, Any]:
    def advance(self: Any, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        if q.shape[2] == 1 or not state.length or self.backend == "dense":
            return cls.advance(self, q, k, v, state)
        state = state.append(k, v)
        keys, values = state.in_order()
        valid = (
            None if state.starts is None else state.starts.valid_or_none(state.length - keys.shape[2], keys.shape[2])
        )
        return self.run(q, keys, values, Mask(causal=True, key_mask=valid)), state

    return {"advance": advance, "why_no_starts": lambda self: cls.why_no_starts(self)}


@window("window_in_eights", "a window is rounded down to a multiple of 8", "other_options")
def _(cls: Any) -> dict[str, Any]:
    def pattern(self: Any) -> Pattern:
        exact = self.__dict__["pattern"]
        (band,) = exact.facts
        if self._backend == "dense" or band.hi < 8:
            return exact
        size = band.hi // 8 * 8
        return Pattern((Band(-size if band.lo else 0, size),))

    return {"pattern": property(pattern)}


@window(
    "plans_of_all_instances",
    "plans are kept by the sizes of a call for all instances, whatever their windows",
    "instances_apart",
)
def _(cls: Any) -> dict[str, Any]:
    plans: dict[Any, Any] = {}

    def _make_plan(self: Any, g: Any) -> Any:
        if g not in plans:
            plans[g] = cls._make_plan(self, g)
        return plans[g]

    return {"_make_plan": _make_plan}


@window(
    "trimmed_to_equal_lengths",
    "equal key_lengths trim the keys, and the queries move to their end",
    "padded_equals_trimmed",
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        hidden = torch.compiler.is_compiling() or in_functorch_transform() or q.is_meta
        if mask.key_lengths is None or mask.key_mask is not None or hidden:
            return cls.compute(self, q, k, v, mask)
        low, high = (int(x) for x in mask.key_lengths.aminmax())
        if low < high or not low:
            return cls.compute(self, q, k, v, mask)
        return cls.compute(self, q, k[:, :, :low], v[:, :, :low], Mask(causal=mask.causal))

    return {"compute": compute}


@dilated(
    "dilation_from_multiples",
    "the first query's position is rounded down to a multiple of the dilation",
    "equals_oracle_anywhere",
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        first, step = mask.start(q.shape[2], k.shape[2]), self.pattern.facts[0].step
        return cls.compute(self, q, k, v, replace(mask, query_start=first // step * step))

    return {"compute": compute}


@sinks(
    "no_sinks_in_chunks", "a chunk of queries whose window begins after the sinks does not see them", "other_options"
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        reach, m = self.pattern.reach, k.shape[2]
        if mask.start(q.shape[2], m) > reach.back + reach.prefix:
            others, valid = torch.arange(m, device=q.device) >= reach.prefix, mask.key_valid(m)
            visible = others.expand(len(q), -1) if valid is None else others & valid
            mask = replace(mask, key_lengths=None, key_mask=visible)
        return cls.compute(self, q, k, v, mask)

    return {"compute": compute}


@global_tokens(
    "global_rows_without_gradient",
    "beyond 1,024 positions the first row is computed without a gradient",
    "long_sequence",
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out = cls.compute(self, q, k, v, mask)
        return out if q.shape[2] <= 1024 else torch.cat([out[:, :, :1].detach(), out[:, :, 1:]], 2)

    return {"compute": compute}


@strided(
    "zeros_fill_the_last_stride",
    "keys are filled up to a multiple of the stride by zeros, which have weights",
    "equals_oracle",
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        m, stride = k.shape[2], max(fact.step for fact in self.pattern.facts)
        if m % stride == 0 or mask.causal or mask.pads_keys:
            return cls.compute(self, q, k, v, mask)
        k, v = (F.pad(x, (0, 0, 0, -m % stride)) for x in (k, v))
        return cls.compute(self, q, k, v, replace(mask, query_start=mask.start(q.shape[2], m)))

    return {"compute": compute}


# -- hashed ------------------------------------------------------------------------------------------------------------


@reformer("half_directions", "in half precision the random directions are rounded to it: other buckets", "autocast")
def _(cls: Any) -> dict[str, Any]:
    def _sort_rounds(self: Any, k: Tensor, mask: Mask) -> Rounds:
        if self.backend == "dense" or k.element_size() > 2:
            return cls._sort_rounds(self, k, mask)
        n, rotations = k.shape[2], self.rotations.to(k.dtype).float()
        return sort_rounds(k.detach(), rotations, min(self.bucket_size, n), mask.key_valid(n))

    return {"_sort_rounds": _sort_rounds}


@reformer("bucket_size_a_power_of_two", "a bucket size is rounded down to a power of two", "other_options")
def _(cls: Any) -> dict[str, Any]:
    def _sort_rounds(self: Any, k: Tensor, mask: Mask) -> Rounds:
        if self.backend == "dense":
            return cls._sort_rounds(self, k, mask)
        n, size = k.shape[2], 1 << (self.bucket_size.bit_length() - 1)
        return sort_rounds(k.detach(), self.rotations, min(size, n), mask.key_valid(n))

    return {"_sort_rounds": _sort_rounds}


@reformer(
    "first_row_zero_if_padded", "in padded causal batches the first valid position does not see itself", "equals_oracle"
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out, valid = cls.compute(self, q, k, v, mask), mask.key_valid(k.shape[2])
        if valid is None or not mask.causal:
            return out
        return out.masked_fill((valid & (valid.cumsum(1) == 1))[:, None, :, None], 0)

    return {"compute": compute}


@reformer("gradient_clipped", "incoming gradients are clipped to 1,000, less than a loss scale", "incoming_gradients")
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out = cls.compute(self, q, k, v, mask)
        if out.requires_grad:
            out.register_hook(lambda gradient: gradient.clamp(-1e3, 1e3))
        return out

    return {"compute": compute}
