"""Independent bugs of the softmax family and of shared key-value heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.traits import Traits
from efficient_attn.errors import UsageError
from efficient_attn.kernels.dense import widen
from efficient_attn.kernels.softmax import sink
from efficient_attn.kernels.softmax.latent import attend_absorbed
from efficient_attn.kernels.softmax.sdpa import attend, pad_widths
from efficient_attn.variants.full.full import Full

from .independent import hosted
from .planting import Mutant

BUGS: list[Mutant] = []
full, general, luong_local = hosted(BUGS, "full"), hosted(BUGS, "general"), hosted(BUGS, "luong_local")
gqa, mqa, mla = hosted(BUGS, "gqa"), hosted(BUGS, "mqa"), hosted(BUGS, "mla")


def _in_steps(cls: Any, advance: Any) -> dict[str, Any]:
    """An ``advance`` for single positions of the fast implementation, with the starts of the correct one."""

    def advance_or_correct(self, q, k, v, state, **inputs):
        if self.backend == "dense" or q.shape[2] > 1:
            return cls.advance(self, q, k, v, state, **inputs)
        return advance(self, q, k, v, state)

    return {"advance": advance_or_correct, "why_no_starts": lambda self: cls.why_no_starts(self)}


def _weigh(q: Tensor, keys: Tensor, state: Any) -> Tensor:
    """The scores of a single step, the heads of a group as rows ``[B, Hkv, G, M]``; minus infinity before a start."""
    rows = widen(q).reshape(len(q), keys.shape[1], -1, q.shape[3])
    scores = rows @ widen(keys).mT * q.shape[3] ** -0.5
    valid = state.mask.key_valid(keys.shape[2])
    return scores if valid is None else scores.masked_fill(~valid[:, None, None], float("-inf"))


# -- softmax -----------------------------------------------------------------------------------------------------------


@gqa(
    "finite_padding_bias",
    "padded keys get a bias of -1e4: shows where all other scores are below that",
    "scores_far_below_zero",
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        valid = mask.key_valid(k.shape[2])
        if valid is None or mask.causal:
            return cls.compute(self, q, k, v, mask)
        bias = (~valid)[:, None, None].to(q.dtype) * -1e4
        rows, keys, values = pad_widths(q.reshape(len(q), k.shape[1], -1, q.shape[3]), k, v)
        out = F.scaled_dot_product_attention(rows, keys, values, bias, scale=q.shape[3] ** -0.5)
        out = out[..., : v.shape[3]].reshape(*q.shape[:3], v.shape[3])
        return out.masked_fill(~valid.any(1)[:, None, None, None], 0)

    return {"compute": compute}


@gqa(
    "maximum_from_zero",
    "the running maximum of a step begins at 0: shows where all scores are below -88",
    "scores_far_below_zero",
)
def _(cls: Any) -> dict[str, Any]:
    def advance(self: Any, q: Tensor, k: Tensor, v: Tensor, state: Any) -> tuple[Tensor, Any]:
        state = state.append(k, v)
        keys, values = state.filled()
        scores = _weigh(q, keys, state)
        weights = (scores - scores.amax(-1, keepdim=True).clamp(min=0)).exp()
        out = weights @ widen(values) / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        return out.to(q.dtype).reshape(*q.shape[:3], -1), state

    return _in_steps(cls, advance)


@full(
    "half_denominator",
    "steps in half precision add up weights in that dtype: shows after some thousand positions",
    "wide_state",
)
def _(cls: Any) -> dict[str, Any]:
    def advance(self: Any, q: Tensor, k: Tensor, v: Tensor, state: Any) -> tuple[Tensor, Any]:
        if q.element_size() > 2:
            return cls.advance(self, q, k, v, state)
        state = state.append(k, v)
        keys, values = state.filled()
        scores = _weigh(q, keys, state)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        total = weights.new_zeros(weights.shape[:-1], dtype=q.dtype)
        for block in weights.split(16, -1):
            total = total + block.sum(-1).to(q.dtype)
        out = weights @ widen(values) / widen(total)[..., None]
        return out.to(q.dtype).reshape(*q.shape[:3], -1), state

    return _in_steps(cls, advance)


@full("half_long_cache", "states for more than 2,048 positions store bfloat16", "decode_far")
def _(cls: Any) -> dict[str, Any]:
    def new_state(self: Any, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Any:
        is_long = max_len > 2048 and dtype == torch.float32 and self.backend != "dense"
        return cls.new_state(self, batch, max_len, torch.bfloat16 if is_long else dtype, device)

    def absorb(self: Any, k: Tensor, v: Tensor, state: Any) -> Any:
        dtype = k.dtype if state.keys is None else state.keys.dtype
        return state.append(k.to(dtype), v.to(dtype))

    def advance(self: Any, q: Tensor, k: Tensor, v: Tensor, state: Any) -> tuple[Tensor, Any]:
        state = absorb(self, k, v, state)
        keys, values = state.filled()
        return self.run(q, keys.to(q.dtype), values.to(q.dtype), state.mask), state

    return {
        "new_state": new_state,
        "advance": advance,
        "absorb": absorb,
        "why_no_starts": lambda self: cls.why_no_starts(self),
    }


@full("softcap_straight_through", "with softcap= gradients are those without it", "other_options")
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out = cls.compute(self, q, k, v, mask)
        if self.softcap is None or not torch.is_grad_enabled():
            return out
        uncapped = sink.attend(q, k, v, self.sinks(q), mask)
        return out.detach() + uncapped - uncapped.detach()

    return {"compute": compute}


@full("sink_missing_in_steps", "with sink=learned single steps have no sink", "other_options")
def _(cls: Any) -> dict[str, Any]:
    def advance(self: Any, q: Tensor, k: Tensor, v: Tensor, state: Any) -> tuple[Tensor, Any]:
        if self.sink is None:
            return cls.advance(self, q, k, v, state)
        state = state.append(k, v)
        keys, values = state.filled()
        return attend(q, keys, values, state.mask), state

    return _in_steps(cls, advance)


@full("dropout_not_rescaled", "weights that remain after dropout are not divided by 1 - p", "dropout_mean")
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return cls.compute(self, q, k, v, mask) * (1 - self.dropping)

    def traits(self: Any) -> Traits:
        return replace(cls.traits.fget(self), dropout=cls is Full)

    return {"compute": compute, "traits": property(traits)}


@full("scale_by_value_width", "scores are divided by the root of E: shows where it is not D", "value_width")
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return cls.compute(self, q * (q.shape[3] / v.shape[3]) ** 0.5, k, v, mask)

    return {"compute": compute}


@general(
    "cast_kept_for_inference", "in half precision without gradients W is that of the first call", "updated_parameters"
)
def _(cls: Any) -> dict[str, Any]:
    def transform_queries(self: Any, q: Tensor) -> Tensor:
        if q.element_size() > 2 or torch.is_grad_enabled():
            return cls.transform_queries(self, q)
        cast = self.__dict__.setdefault("_cast", self.form.detach().clone().float())
        rows = widen(q).unflatten(1, (len(cast), -1))
        return (rows @ cast[:, None]).flatten(1, 2)

    return {"transform_queries": transform_queries}


@luong_local("holes_count", "predicted causal positions count keys that key_mask hides", "equals_oracle_anywhere")
def _(cls: Any) -> dict[str, Any]:
    def _count_visible(self: Any, positions: Tensor, mask: Mask, m: int) -> Tensor:
        if self.backend != "dense" and mask.causal:
            mask = replace(mask, key_mask=None)
        return cls._count_visible(self, positions, mask, m)

    return {"_count_visible": _count_visible}


# -- shared keys and values --------------------------------------------------------------------------------------------


@gqa(
    "group_members_shifted",
    "after cached keys the heads of a group see as many keys too many as their number",
    "grouped_equals_oracle",
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        first = mask.start(q.shape[2], k.shape[2])
        if not mask.causal or first <= 0 or q.shape[1] == k.shape[1]:
            return cls.compute(self, q, k, v, mask)
        members = q.unflatten(1, (k.shape[1], -1)).unbind(2)
        out = [cls.compute(self, x, k, v, replace(mask, query_start=first + g)) for g, x in enumerate(members)]
        return torch.stack(out, 2).flatten(1, 2)

    return {"compute": compute}


@gqa("state_on_the_cpu", "states are on the CPU whatever the device, also torch's meta device", "state_size")
def _(cls: Any) -> dict[str, Any]:
    def new_state(self: Any, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Any:
        return cls.new_state(self, batch, max_len, dtype, torch.device("cpu"))

    return {"new_state": new_state}


@gqa("last_place_refused", "a state refuses its last position in a single step", "decode_equals_forward")
def _(cls: Any) -> dict[str, Any]:
    def advance(self: Any, q: Tensor, k: Tensor, v: Tensor, state: Any) -> tuple[Tensor, Any]:
        if state.length + 1 >= state.capacity > 1:
            raise UsageError(f"the decode state is full: {state.capacity} positions")
        return cls.advance(self, q, k, v, state)

    return _in_steps(cls, advance)


@mqa(
    "gradient_of_the_last_heads", "of more than 32 heads only the last ones give k and v a gradient", "sizes_and_pairs"
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if q.shape[1] <= 32:
            return cls.compute(self, q, k, v, mask)
        first = cls.compute(self, q[:, :32], k.detach(), v.detach(), mask)
        return torch.cat([first, cls.compute(self, q[:, 32:], k, v, mask)], 1)

    return {"compute": compute}


@mla("scale_without_rotary_width", "scores are divided by the root of D instead of D + R", "other_options")
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Any, mask: Mask, **inputs: Tensor) -> Tensor:
        return cls.compute(self, q * (q.shape[3] / self._unrotated_dim) ** 0.5, k, v, mask)

    return {"compute": compute}


@mla("absorbed_once", "without gradients single steps use the up-projections of the first step", "updated_parameters")
def _(cls: Any) -> dict[str, Any]:
    def advance(self: Any, q: Tensor, k: Tensor, v: Any, state: Any) -> tuple[Tensor, Any]:
        if torch.is_grad_enabled():
            return cls.advance(self, q, k, v, state)
        weights = self.__dict__.setdefault("_absorbed", (self.w_uk.detach().clone(), self.w_uv.detach().clone()))
        state = state.append(k)
        valid = None if state.starts is None else state.starts.valid_or_none(0, state.length)
        mask = Mask(causal=True, key_mask=valid)
        w_uk, w_uv = (w.to(q.dtype) for w in weights)
        return attend_absorbed(q, state.filled(), w_uk, w_uv, mask), state

    return _in_steps(cls, advance)
