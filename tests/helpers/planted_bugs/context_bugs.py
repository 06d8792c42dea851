"""Bugs that depend on the context of a call: modes, threads, the number of calls, other instances."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from efficient_attn.contract.autocast import is_autocast_enabled
from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Values
from efficient_attn.testing.probing import other_instances
from efficient_attn.testing.subject import Subject

from .methods import Methods, compute, hidden_keys_weigh_nothing, no_bfloat16, queries_do_nothing, tampered
from .planting import planter

plant = planter("context")


def _wrong_when(when: Callable[[Attention], bool], *, beyond: int = 0) -> Methods:
    """Methods with a ``compute`` whose output has an error of 0.1% under a condition, beyond a number of positions."""

    def methods(cls: type[Attention]) -> dict[str, Any]:
        def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
            out = cls.compute(self, q, k, v, mask, **inputs)
            return out * 1.001 if q.shape[2] > beyond and when(self) else out

        return {"compute": compute}

    return methods


def _from_call(first: int) -> Methods:
    """Wrong from the call of an instance with this number on."""

    def is_late(attn: Attention) -> bool:
        count = attn.__dict__["_calls"] = attn.__dict__.get("_calls", 0) + 1
        return count >= first

    return _wrong_when(is_late)


def _draws_backward(q: Tensor, k: Tensor, v: Values, mask: Mask) -> tuple[Tensor, Tensor, Values, Mask]:
    def drawing(gradient: Tensor) -> Tensor:
        torch.rand(1)
        return gradient

    return tampered(q, drawing), k, v, mask


def _draws_when_padded(out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    if mask.pads_keys:
        torch.rand(1)
    return out


def _draws_in_steps(cls: type[Attention]) -> dict[str, Any]:
    def advance(self: Attention, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        torch.rand(1)
        return cls.advance(self, q, k, v, state, **inputs)

    return {"advance": advance}


def _class_wide(cls: type[Attention]) -> dict[str, Any]:
    """The first instance at some lengths computes all others there."""
    first: dict[tuple[int, int, bool], Attention] = {}

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        first_instance = first.setdefault((q.shape[2], k.shape[2], mask.causal), self)
        return cls.compute(first_instance, q, k, v, mask, **inputs)

    return {"compute": compute}


def _instances_alike(subject: Subject) -> str | None:
    """Whether neither an option nor the seed changes the mechanism."""
    if any(True for _ in other_instances(subject)):
        return None
    shape = subject.shape(33)
    call = subject.draw(shape)
    same = torch.equal(call.run(subject.oracle(shape)), call.run(subject.oracle(shape, seed=1)))
    return "all its instances are equal" if same else None


def _short_lengths(q: Tensor, k: Tensor, v: Values, mask: Mask) -> tuple[Tensor, Tensor, Values, Mask]:
    lengths = mask.key_lengths
    if lengths is None or lengths.dtype != torch.int32:
        return q, k, v, mask
    return q, k, v, replace(mask, key_lengths=(lengths - 5).clamp(min=0))


def _one_scratch(cls: type[Attention]) -> dict[str, Any]:
    """Queries are stored on the module, where another thread overwrites them."""

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        self.__dict__["_scratch"] = q
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.003)
        scratch = self.__dict__["_scratch"]
        return cls.compute(self, scratch if scratch.shape == q.shape else q, k, v, mask, **inputs)

    return {"compute": compute}


def _last_bit(cls: type[Attention]) -> dict[str, Any]:
    """Every second backward pass differs in its last bits."""
    calls = [0]

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        def nearly(gradient: Tensor) -> Tensor:
            calls[0] += 1
            return gradient * (1 + calls[0] % 2 * 2 * torch.finfo(gradient.dtype).eps)

        return cls.compute(self, tampered(q, nearly), k, v, mask, **inputs)

    return {"compute": compute}


def _late_gradient(cls: type[Attention]) -> dict[str, Any]:
    """Gradients are wrong from an instance's second backward pass on."""

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        def wrong(gradient: Tensor) -> Tensor:
            count = self.__dict__["_passes"] = self.__dict__.get("_passes", 0) + 1
            return gradient * (1.01 if count > 1 else 1)

        return cls.compute(self, tampered(q, wrong), k, v, mask, **inputs)

    return {"compute": compute}


def _late_steps(cls: type[Attention]) -> dict[str, Any]:
    """Steps are wrong from an instance's hundredth on."""

    def advance(self: Attention, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        count = self.__dict__["_steps"] = self.__dict__.get("_steps", 0) + 1
        out, state = cls.advance(self, q, k, v, state, **inputs)
        return out * (1.01 if count >= 100 else 1), state

    return {"advance": advance}


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _doubles_under_autocast(cls: type[Attention]) -> dict[str, Any]:
    """Overrides `forward`, because `compute` runs with autocast disabled."""

    def forward(self: Attention, q: Tensor, k: Tensor, v: Values, mask: Mask | None = None, **inputs: Tensor) -> Tensor:
        out = cls.forward(self, q, k, v, mask, **inputs)
        return out * 2 if is_autocast_enabled(q) and self.backend != "dense" else out

    return {"forward": forward}


BUGS = (
    plant("backward_draws", "a backward pass draws random numbers", compute(_draws_backward), ("gradient",),
          suspects=("no_side_effects",)),
    plant("padded_draws", "a padded call draws random numbers", compute(after=_draws_when_padded), ("padding",),
          suspects=("no_side_effects",)),
    plant("step_draws", "a step draws random numbers", _draws_in_steps, ("decode",),
          suspects=("no_side_effects",)),
    plant("class_wide_cache", "a cache of the class is not keyed by options", _class_wide, (), _instances_alike,
          ("instances_apart",)),
    plant("other_thread", "another thread gets another result", _wrong_when(lambda attn: not _in_main()),
          suspects=("threads",)),
    plant("two_threads", "two torch threads give another result", _wrong_when(lambda attn: torch.get_num_threads() > 1),
          suspects=("threads",)),
    plant("two_threads_long", "two torch threads give another result beyond 500 positions",
          _wrong_when(lambda attn: torch.get_num_threads() > 1, beyond=500), suspects=("threads",)),
    plant("one_scratch", "two threads share one buffer for their queries", _one_scratch, (), queries_do_nothing,
          ("threads",)),
    plant("eval_mode", "eval() changes the result", _wrong_when(lambda attn: not attn.training), suspects=("modes",)),
    plant("inference_mode", "inference_mode changes the result",
          _wrong_when(lambda attn: torch.is_inference_mode_enabled()), suspects=("modes",)),
    plant("autocast", "autocast doubles the result", _doubles_under_autocast, (), no_bfloat16, ("autocast",)),
    plant("int32_lengths", "lengths in int32 are five too short", compute(_short_lengths), ("padding",),
          hidden_keys_weigh_nothing, ("int32_lengths",)),
    plant("second_call", "an instance is wrong from its second call on", _from_call(2),
          suspects=("every_call_is_alike",)),
    plant("hundredth_call", "an instance is wrong from its hundredth call on", _from_call(100),
          suspects=("every_call_is_alike",)),
    plant("second_backward", "gradients are wrong from the second backward pass on", _late_gradient, ("gradient",),
          queries_do_nothing, ("determinism",)),
    plant("hundredth_step", "steps are wrong from an instance's hundredth on", _late_steps, ("decode",),
          suspects=("every_step_is_alike",)),
    plant("last_bit", "every second backward pass differs in its last bits", _last_bit, ("gradient", "deterministic"),
          queries_do_nothing, ("determinism",)),
)  # fmt: skip
