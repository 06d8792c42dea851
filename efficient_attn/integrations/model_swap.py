"""Passes of a trained model over a segment, with its own attention, and with another mechanism in all layers or in one.

Nothing is trained, and no weight changes. Time and loss are from the same pass.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..contract.decode_state import state_bytes
from ..errors import UsageError
from ..instruments.disturbance import DisturbanceWatch
from ..spec import SpecLike
from .bundled import LoadedModel
from .observers import watch
from .state_cache import StateCache
from .swapping import swap
from .transformers import register

TIMED_STEPS = 8  # decode steps that are timed


@dataclass(frozen=True, kw_only=True, eq=False)
class ForwardPass:
    """A forward pass over a segment. out: logits ``[N, V]``, or an encoder's last hidden states ``[N, d]``.

    seconds: of the pass. attention_s: the part spent in mechanisms. step_s: median of decode steps after the segment;
    bytes: of all states before them; both None for encoders. no_steps: why the mechanism could not continue after the
    segment, as one made for the model's number of positions. disturbance: why the time is unreliable, if it is.
    """

    out: Tensor
    seconds: float
    attention_s: float
    step_s: float | None = None
    bytes: int | None = None
    no_steps: str | None = None
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
    try:
        fields["step_s"] = _time_steps(model, tokens, cache, steps) if steps else None
    except UsageError as error:
        fields["no_steps"] = str(error)
    return ForwardPass(out=output.logits[0], bytes=size, **fields)


def _time_steps(model: Any, tokens: Tensor, cache: StateCache, steps: int) -> float:
    """The median time of decode steps after a segment, with its first tokens as inputs. The first step is not timed."""
    times = []
    with torch.inference_mode():
        for i in range(steps + 1):
            start = time.perf_counter()
            model(tokens[:, i : i + 1], past_key_values=cache, use_cache=True)
            times.append(time.perf_counter() - start)
    return sorted(times[1:])[steps // 2]


# -- one layer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSwap:
    """A model, a segment of tokens ``[1, N]``, and one of its layers.

    own_out: the original model's output. previous_out: the preceding layer's output, from which other passes continue.
    """

    loaded_model: LoadedModel
    tokens: Tensor
    layer: int
    own_out: Tensor
    previous_out: Any

    @classmethod
    def read(cls, loaded_model: LoadedModel, tokens: Tensor, own_spec: str, layer: int) -> LayerSwap:
        """Let the model read the segment. own_spec: the spec of its own attention."""
        outputs = []
        loaded_model.model.set_attn_implementation(register(own_spec))
        blocks = list_layers(loaded_model.model)
        with blocks[max(layer - 1, 0)].register_forward_hook(lambda _, __, out: outputs.append(out)):
            out = _run_model(loaded_model, tokens)
        return cls(loaded_model=loaded_model, tokens=tokens, layer=layer, own_out=out, previous_out=outputs[0])

    def run(self, spec: SpecLike) -> Tensor:
        """The output with a mechanism in the one layer; earlier layers are not computed again."""
        model = self.loaded_model.model
        blocks = list_layers(model)
        with swap(model, {self.layer: spec}), ExitStack() as stack:
            for block in blocks[: self.layer]:  # whose outputs are known; only the last one's is used
                block.forward = lambda *_, **__: self.previous_out
                stack.callback(delattr, block, "forward")
            return _run_model(self.loaded_model, self.tokens)


def list_layers(model: Any) -> list[nn.Module]:
    """The layers in order. Raises `UsageError` for a model whose layers are not in one list."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if len(lists) != 1:
        problem = f"its {count} layers are not in one list, so single layers cannot be swapped"
        raise UsageError(f"{type(model).__name__}: {problem}")
    return list(lists[0])


def _run_model(loaded_model: LoadedModel, tokens: Tensor) -> Tensor:
    """Logits ``[N, V]``, or an encoder's last hidden states."""
    options = {"use_cache": False} if loaded_model.sizes.kind == "decoder" else {}
    with torch.inference_mode():
        return loaded_model.model(tokens, **options)[0][0]
