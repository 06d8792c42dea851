"""Bugs of decoding, most of them at later positions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from efficient_attn.contract.decode_state import RollingCache
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Values
from efficient_attn.testing.probing import find_capacity
from efficient_attn.testing.subject import Subject

from .methods import Methods, no_past
from .planting import map_tensors, planter

plant = planter("decode", "decode_past_two_laps")
Advance = Callable[..., tuple[Tensor, Any]]
MAX_STORED = 200


def _stepping(change: Callable[[Advance, Attention, Tensor, Tensor, Values, Any, dict[str, Tensor]], Any]) -> Methods:
    """Methods with an ``advance`` that receives the correct one."""

    def methods(cls: type[Attention]) -> dict[str, Any]:
        def advance(self: Attention, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> Any:
            return change(cls.advance, self, q, k, v, state, inputs)

        return {"advance": advance}

    return methods


def _nothing(k: Tensor, v: Values) -> tuple[Tensor, Values]:
    return 0 * k, None if v is None else 0 * v


def _ring_second_pass(correct, self, q, k, v, state, inputs):
    late = isinstance(state, RollingCache) and state.length >= 2 * state.slots and q.shape[2] == 1
    return correct(self, q, *(_nothing(k, v) if late else (k, v)), state, **inputs)


def _ring_full(correct, self, q, k, v, state, inputs):
    if not isinstance(state, RollingCache) or state.keys is None or state.length < state.slots:
        return correct(self, q, k, v, state, **inputs)
    state_copy = copy.deepcopy(state)
    out, after = correct(self, q, k, v, state, **inputs)
    return out, replace(after, keys=state_copy.keys, values=state_copy.values)


def _wrong_from(position: int):
    def change(correct, self, q, k, v, state, inputs):
        start = state.length
        out, state = correct(self, q, k, v, state, **inputs)
        return out * (1.01 if start >= position else 1), state

    return change


def _on_module(correct, self, q, k, v, state, inputs):
    stored = getattr(self, "_stored", None)
    out, self._stored = correct(self, q, k, v, stored if stored is not None and state.length else state, **inputs)
    return out, self._stored


def _capped(correct, self, q, k, v, state, inputs):
    if state.length < MAX_STORED:
        return correct(self, q, k, v, state, **inputs)
    out, _ = correct(self, q, k, v, copy.deepcopy(state), **inputs)
    return out, state


def _detaches_new(correct, self, q, k, v, state, inputs):
    return correct(self, q, k.detach(), None if v is None else v.detach(), state, **inputs)


def _detaches_past(correct, self, q, k, v, state, inputs):
    return correct(self, q, k, v, map_tensors(state, Tensor.detach), **inputs)


def _without_first(x: Tensor) -> Tensor:
    return torch.cat([0 * x[:, :, :1], x[:, :, 1:]], 2)


def _absorbs_badly(cls: type[Attention]) -> dict[str, Any]:
    def absorb(self: Attention, k: Tensor, v: Values, state: Any, **inputs: Tensor) -> Any:
        if state.length:
            k, v = _without_first(k), None if v is None else _without_first(v)
        return cls.absorb(self, k, v, state, **inputs)

    return {"absorb": absorb}


def _no_ring(subject: Subject) -> str | None:
    room = find_capacity(subject)
    if room.positions is None:
        return room.why
    state = subject.make(subject.shape(4)).init_state(1, 2**20, device="meta")
    return None if isinstance(state, RollingCache) else "its state is not a ring buffer"


def _newest_alone(subject: Subject) -> str | None:
    """Whether a state stores only the first keys and the newest one, which each step provides."""
    state = subject.make(subject.shape(4)).init_state(1, 2**20, device="meta")
    is_small = isinstance(state, RollingCache) and state.capacity == 1
    return "besides the first keys it stores only the newest one" if is_small else no_past(subject)


BUGS = (
    plant("ring_second_lap", "a ring buffer stores nothing after its second pass", _stepping(_ring_second_pass),
          ("decode",), _no_ring),
    plant("ring_dead", "a full ring buffer stores nothing more", _stepping(_ring_full),
          ("decode",), lambda s: _no_ring(s) or _newest_alone(s)),
    plant("after_256", "steps have an error of 1% from position 256 on", _stepping(_wrong_from(256)), ("decode",)),
    plant("after_8192", "steps have an error of 1% from position 8,192 on", _stepping(_wrong_from(8192)), ("decode",),
          suspects=("decode_far",)),
    plant("cache_on_module", "the state is stored on the module", _stepping(_on_module), ("decode",),
          suspects=("states_apart",)),
    plant("capped", f"a state silently stores no more than {MAX_STORED} positions", _stepping(_capped),
          ("decode",), _newest_alone),
    plant("absorb_into_filled", "absorb into a filled state loses its first position", _absorbs_badly,
          ("decode",), no_past, ("absorb_into_filled",)),
    plant("graph_cut", "steps give keys and values no gradient", _stepping(_detaches_new), ("decode", "gradient"),
          suspects=("gradients_through_steps",)),
    plant("past_cut", "steps give earlier positions no gradient", _stepping(_detaches_past), ("decode", "gradient"),
          no_past, ("gradients_through_steps",)),
)  # fmt: skip
