"""A trained model with another mechanism in its place: passes over one segment, first as the model is, then swapped.

Nothing is trained, and no weight changes. What is timed is the pass that losses are told of.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..contract.decode_state import state_bytes
from ..instruments.disturbance import Watch
from ..instruments.memory import footprint
from .bundled import Loaded, load
from .segments import compare, cut_segment
from .state_cache import StateCache
from .texts import Text
from .transformers import register, watch

STEPS = 8  # decode steps that are timed


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A model and a segment of tokens ``[1, N]``, and the pass that the model makes as it is."""

    loaded: Loaded
    tokens: Tensor
    own: Pass

    @classmethod
    def open(cls, model: str, text: str, length: int, number: int, own: str) -> Reading:
        """Load the model and let it read the segment, once to warm up. own: the spec of its own attention."""
        loaded = load(model)
        tokens = cut_segment(loaded, Text.find(text), length, number)
        run_pass(loaded, own, tokens)
        return cls(loaded=loaded, tokens=tokens, own=run_pass(loaded, own, tokens))

    def read(self, spec: str) -> Pass:
        """The segment with another mechanism."""
        return run_pass(self.loaded, spec, self.tokens)

    def weigh(self, spec: str) -> int | None:
        """The most bytes that a pass with a mechanism holds at once beyond the weights, states and logits included."""
        return footprint(lambda: run_pass(self.loaded, spec, self.tokens, steps=0), device="cpu").peak

    def compare(self, other: Pass) -> dict[str, float | None]:
        """What a pass loses against the model's own, by name."""
        return compare(self.loaded, other.out, self.own.out, self.tokens)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """A forward pass over a segment. out: logits ``[N, V]``, or an encoder's last hidden rows ``[N, d]``.

    seconds: of the pass. attention_s: of it, inside mechanisms. calls: of mechanisms, at least one a layer.
    step_s: a decode step after the segment, the median; bytes: of all states then. None for encoders. disturbed: why
    its time should not be trusted, if something speaks against it.
    """

    out: Tensor
    seconds: float
    attention_s: float
    calls: int
    step_s: float | None = None
    bytes: int | None = None
    disturbed: str | None = None


def run_pass(loaded: Loaded, spec: str, tokens: Tensor, *, steps: int = STEPS) -> Pass:
    """Read the tokens ``[1, N]`` with a mechanism in all layers.

    A decoder takes them as its prompt, into states, and goes on for so many steps. Raises `UnsupportedError` for what
    the mechanism cannot do, and `UsageError` for a model whose layers do not ask for it.
    """
    model = loaded.model
    model.set_attn_implementation(register(spec))
    decoder = loaded.sizes.kind == "decoder"
    cache = StateCache(model, max_len=tokens.shape[1] + steps + 1) if decoder else None
    given: dict[str, Any] = {"past_key_values": cache, "use_cache": True} if decoder else {}
    with torch.inference_mode(), watch() as meter:
        others, start = Watch(), time.perf_counter()
        found = model(tokens, **given)
        seconds = time.perf_counter() - start
        disturbed = others.lap().reason(torch.get_num_threads())
    meter.check(model, spec)
    passed: dict[str, Any] = {"seconds": seconds, "attention_s": meter.seconds, "calls": meter.calls.total()}
    passed["disturbed"] = disturbed
    if cache is None:
        return Pass(out=found.last_hidden_state[0], **passed)
    size = state_bytes(cache.states)
    step_s = _time_steps(model, tokens, cache, steps) if steps else None
    return Pass(out=found.logits[0], step_s=step_s, bytes=size, **passed)


def _time_steps(model: Any, tokens: Tensor, cache: StateCache, steps: int) -> float:
    """The median of some steps after a segment, each with a token of it, and one before them that is not timed."""
    took = []
    with torch.inference_mode():
        for i in range(steps + 1):
            start = time.perf_counter()
            model(tokens[:, i : i + 1], past_key_values=cache, use_cache=True)
            took.append(time.perf_counter() - start)
    return sorted(took[1:])[steps // 2]
