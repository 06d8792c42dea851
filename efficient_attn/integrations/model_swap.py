"""Passes of a trained model over a segment, with its own attention and with another mechanism.

Nothing is trained, and no weight changes. Time and loss are from the same pass.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..contract.decode_state import state_bytes
from ..instruments.disturbance import DisturbanceWatch
from ..spec import SpecLike
from .bundled import LoadedModel
from .state_cache import StateCache
from .transformers import register, watch

TIMED_STEPS = 8  # decode steps that are timed


@dataclass(frozen=True, kw_only=True, eq=False)
class ForwardPass:
    """A forward pass over a segment. out: logits ``[N, V]``, or an encoder's last hidden states ``[N, d]``.

    seconds: of the pass. attention_s: the part spent in mechanisms. step_s: median of decode steps after the segment;
    bytes: of all states before them; both None for encoders. disturbance: why the time is unreliable, if it is.
    """

    out: Tensor
    seconds: float
    attention_s: float
    step_s: float | None = None
    bytes: int | None = None
    disturbance: str | None = None


def run_pass(loaded_model: LoadedModel, spec: SpecLike, tokens: Tensor, *, steps: int = TIMED_STEPS) -> ForwardPass:
    """Read the tokens ``[1, N]`` with a mechanism in all layers.

    A decoder reads them into states, and continues for some steps. Raises `UnsupportedError` for what the mechanism
    does not support, and `UsageError` for a model whose layers do not call it.
    """
    model = loaded_model.model
    model.set_attn_implementation(register(spec))
    is_decoder = loaded_model.sizes.kind == "decoder"
    cache = StateCache(model, max_len=tokens.shape[1] + steps + 1) if is_decoder else None
    options: dict[str, Any] = {"past_key_values": cache, "use_cache": True} if is_decoder else {}
    with torch.inference_mode(), watch() as meter:
        disturbance_watch, start = DisturbanceWatch(), time.perf_counter()
        output = model(tokens, **options)
        seconds = time.perf_counter() - start
        disturbance = disturbance_watch.read_interval().describe(torch.get_num_threads())
    meter.check(model, str(spec))
    fields: dict[str, Any] = {"seconds": seconds, "attention_s": meter.seconds, "disturbance": disturbance}
    if cache is None:
        return ForwardPass(out=output.last_hidden_state[0], **fields)
    size = state_bytes(cache.states)
    step_s = _time_steps(model, tokens, cache, steps) if steps else None
    return ForwardPass(out=output.logits[0], step_s=step_s, bytes=size, **fields)


def _time_steps(model: Any, tokens: Tensor, cache: StateCache, steps: int) -> float:
    """The median time of decode steps after a segment, with its first tokens as inputs. The first step is not timed."""
    times = []
    with torch.inference_mode():
        for i in range(steps + 1):
            start = time.perf_counter()
            model(tokens[:, i : i + 1], past_key_values=cache, use_cache=True)
            times.append(time.perf_counter() - start)
    return sorted(times[1:])[steps // 2]
