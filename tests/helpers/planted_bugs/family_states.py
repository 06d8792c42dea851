"""Bugs of decode states: ignored padding, caches that share or keep tensors, steps that compute everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from efficient_attn.contract.decode_state import KVCache, LatentCache, RollingCache
from efficient_attn.contract.mask import CAUSAL
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.row_starts import explain_no_starts
from efficient_attn.contract.shapes import Values
from efficient_attn.kernels.dense import softmax_attention
from efficient_attn.testing.checks.growth_claims import not_countable
from efficient_attn.testing.subject import Subject
from efficient_attn.variants.full.full import Full
from efficient_attn.variants.linear.linear_attention import LinearAttention
from efficient_attn.variants.shared_kv.gqa import GroupedQuery

from .methods import Methods, hidden_keys_weigh_nothing, no_past
from .planting import planter

plant = planter("states", "state_branches", "step_leaves_inputs")
Advance = Callable[..., tuple[Tensor, Any]]


def _stepping(change: Callable[[Advance, Attention, Tensor, Tensor, Values, Any, dict[str, Tensor]], Any]) -> Methods:
    """Methods with an ``advance`` that receives the correct one, and support for the same starts."""

    def methods(cls: type[Attention]) -> dict[str, Any]:
        def advance(self: Attention, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> Any:
            return change(cls.advance, self, q, k, v, state, inputs)

        return {"advance": advance, "why_no_starts": lambda self: cls.why_no_starts(self)}

    return methods


def no_starts(subject: Subject) -> str | None:
    """Why the mechanism's own steps do not support starts; None if they do."""
    return explain_no_starts(subject.attn, subject.attn.init_state(1, 8))


# -- padding -----------------------------------------------------------------------------------------------------------


def _ignores_starts(correct, self, q, k, v, state, inputs):
    starts = state.starts
    out, state = correct(self, q, k, v, replace(state, starts=None), **inputs)
    return out, replace(state, starts=starts)


def _starts_in_prompts_only(correct, self, q, k, v, state, inputs):
    if state.starts is None or q.shape[2] > 1 or not state.length:
        return correct(self, q, k, v, state, **inputs)
    return _ignores_starts(correct, self, q, k, v, state, inputs)


# -- batches -----------------------------------------------------------------------------------------------------------


def _four_rows(correct, self, q, k, v, state, inputs):
    """Single positions are computed for blocks of four rows, whose index is not multiplied by four."""
    out, state = correct(self, q, k, v, state, **inputs)
    if q.shape[2] == 1 and len(q) > 4:
        out = torch.cat([out[:4], out[: len(q) - 4]]) if len(q) <= 8 else out[torch.arange(len(q)) % 4]
    return out, state


def _batch_far(correct, self, q, k, v, state, inputs):
    """A block of 400 positions has no second block in batches."""
    out, after = correct(self, q, k, v, state, **inputs)
    return out * (1.01 if len(q) > 1 and state.length >= 400 else 1), after


def _half_sums(correct, self, q, k, v, state, inputs):
    """In half precision, positions from 256 on are counted in bfloat16, which skips every second one."""
    out, after = correct(self, q, k, v, state, **inputs)
    return out * (1.2 if q.dtype.itemsize == 2 and state.length >= 257 else 1), after


# -- shared tensors ----------------------------------------------------------------------------------------------------


def _shared_output(correct, self, q, k, v, state, inputs):
    """Single steps write into one buffer of the instance, as a recorded graph does."""
    out, state = correct(self, q, k, v, state, **inputs)
    if torch.is_grad_enabled() or q.shape[2] > 1:
        return out, state
    buffer = self.__dict__.setdefault("_out", {}).setdefault((out.shape, out.dtype), torch.empty_like(out))
    return buffer.copy_(out), state


@dataclass(frozen=True)
class Late(KVCache):
    """Writes a position into the cache at the next step, and until then keeps the caller's tensors."""

    late: tuple[Tensor, Tensor] | None = None


def _keeps_newest(cls: type[Attention]) -> dict[str, Any]:
    def new_state(self: Attention, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Late:
        state = cls.new_state(self, batch, max_len, dtype, device)
        return Late(*(getattr(state, f.name) for f in fields(KVCache)))

    def advance(self: Attention, q: Tensor, k: Tensor, v: Tensor, state: Late, **inputs: Tensor) -> tuple[Tensor, Any]:
        if state.late is not None:  # write again what the caller may have changed
            written = state.late[0].shape[2]
            state = replace(replace(state, length=state.length - written).append(*state.late), late=None)
        out, state = cls.advance(self, q, k, v, state, **inputs)
        return out, replace(state, late=(k, v))

    return {"new_state": new_state, "advance": advance, "absorb": Attention.absorb}


def _copies_share(cls: type[Attention]) -> dict[str, Any]:
    """A copied state has the buffers of the original."""

    def new_state(self: Attention, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Any:
        state = cls.new_state(self, batch, max_len, dtype, device)
        kind = type(state)
        shared = type(kind.__name__, (kind,), {"__deepcopy__": lambda x, memo: x, "__reduce__": _reduce})
        return shared(**{f.name: getattr(state, f.name) for f in fields(state)})

    return {"new_state": new_state}


def _reduce(state: Any) -> Any:
    kind = type(state).__mro__[1]
    return _restore, (kind, {f.name: getattr(state, f.name) for f in fields(kind)})


def _restore(kind: type, values: dict[str, Any]) -> Any:
    return kind(**values)


# -- cost --------------------------------------------------------------------------------------------------------------


def _recomputes(correct, self, q, k, v, state, inputs):
    """A step runs the whole causal forward pass and takes its last row."""
    if q.shape[2] > 1 or state.starts is not None or torch.is_grad_enabled():
        return correct(self, q, k, v, state, **inputs)
    _, state = correct(self, q, k, v, state, **inputs)
    keys, values = state.filled()
    return self.run(q.expand(-1, -1, keys.shape[2], -1), keys, values, CAUSAL)[:, :, -1:], state


def _whole_buffer(correct, self, q, k, v, state, inputs):
    """A step reads the whole buffer, and masks what is not filled."""
    if state.starts is not None or torch.is_grad_enabled() or q.shape[2] > 1:
        return correct(self, q, k, v, state, **inputs)
    after = state.append(k, v)
    return softmax_attention(q, after.keys, after.values, torch.arange(after.capacity) < after.length), after


def _linear_with_cache(cls: type[Attention]) -> dict[str, Any]:
    """Linear attention decodes from a cache of all keys, as softmax does."""

    def new_state(self: Attention, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        return KVCache(max_len)

    def advance(
        self: Attention, q: Tensor, k: Tensor, v: Tensor, state: KVCache, **inputs: Tensor
    ) -> tuple[Tensor, Any]:
        state = state.append(k, v)
        return self.run(q, *state.filled(), state.mask, **inputs), state

    def absorb(self: Attention, k: Tensor, v: Tensor, state: KVCache, **inputs: Tensor) -> KVCache:
        return state.append(k, v)

    return {"new_state": new_state, "advance": advance, "absorb": absorb}


# -- where they apply --------------------------------------------------------------------------------------------------


def _state(subject: Subject) -> Any:
    return subject.make(subject.shape(4)).init_state(1, 8)


def _no_cache(subject: Subject) -> str | None:
    """Plain caches of softmax and of shared keys, which `run` reads."""
    return None if type(_state(subject)) is KVCache else "its state is no plain cache"


def _no_countable_cache(subject: Subject) -> str | None:
    transforms = "its cache has transformed keys" if hasattr(subject.attn, "transform_keys") else None
    return _no_cache(subject) or transforms or not_countable(subject)


def _no_softmax(subject: Subject) -> str | None:
    plain = type(subject.attn) in (Full, GroupedQuery)
    return _no_countable_cache(subject) or (None if plain else "it is not a plain softmax over all keys")


def _no_class(subject: Subject) -> str | None:
    known = isinstance(_state(subject), KVCache | RollingCache | LatentCache)
    return None if known else "its state has sums that are replaced, not overwritten"


def _not_linear(subject: Subject) -> str | None:
    linear = isinstance(subject.attn, LinearAttention) and subject.attn.backend != "cpp"
    return None if linear and not subject.attn.weighs_keys else "it is not linear, or weights its keys"


BUGS = (
    plant("ignores_starts", "starts are accepted and ignored", _stepping(_ignores_starts),
          ("decode",), lambda s: no_starts(s) or hidden_keys_weigh_nothing(s), ("row_starts",)),
    plant("starts_in_prompts_only", "single steps ignore starts", _stepping(_starts_in_prompts_only),
          ("decode",), lambda s: no_starts(s) or hidden_keys_weigh_nothing(s) or no_past(s), ("row_starts",)),
    plant("four_rows", "single steps of more than four rows repeat the first rows", _stepping(_four_rows),
          ("decode",), suspects=("long_batches",)),
    plant("batch_far", "steps of batches are off by 1% from position 400 on", _stepping(_batch_far),
          ("decode",), suspects=("long_batches",)),
    plant("half_sums", "steps in half precision are off by 20% from position 257 on", _stepping(_half_sums),
          ("decode",), lambda s: None if len(s.dtypes) > 2 else "it has no half precision", ("long_batches",)),
    plant("shared_output", "a step overwrites the output of the step before", _stepping(_shared_output),
          ("decode",), suspects=("step_leaves_inputs",)),
    plant("keeps_newest", "a cache keeps the caller's newest keys until the next step", _keeps_newest,
          ("decode",), lambda s: _no_cache(s) or no_past(s), ("step_leaves_inputs",)),
    plant("copies_share", "a deep copy of a state is the state itself", _copies_share,
          ("decode",), lambda s: _no_class(s) or no_past(s), ("state_branches", "states_pickle")),
    plant("recomputes", "a step computes all rows and takes the last", _stepping(_recomputes),
          ("decode",), _no_countable_cache, ("step_growth",)),
    plant("whole_buffer", "a step reads the whole buffer of max_len positions", _stepping(_whole_buffer),
          ("decode",), _no_softmax, ("step_growth",)),
    plant("linear_with_cache", "linear attention decodes from a cache of all keys", _linear_with_cache,
          ("decode", "cross"), lambda s: _not_linear(s) or not_countable(s), ("step_growth",)),
)  # fmt: skip
