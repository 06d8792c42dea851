"""Passes of a trained model over a segment, with its own attention, and with another mechanism in all or some layers.

Nothing is trained, and no weight changes. Time and loss are from the same pass.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache

from ..contract.decode_state import state_bytes
from ..errors import UsageError
from ..instruments.disturbance import DisturbanceWatch
from ..instruments.memory import measure_footprint
from ..spec import SpecLike
from .bundled import LoadedModel
from .observers import Meter, watch
from .state_cache import StateCache
from .swapping import swap
from .transformers import register

TIMED_STEPS = 8  # decode steps that are timed
WARM_UP = 64  # tokens of a first call


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


def run_pass(
    loaded_model: LoadedModel, spec: SpecLike, tokens: Tensor, *, steps: int = TIMED_STEPS, draw: int = 0
) -> ForwardPass:
    """Read the tokens ``[1, N]`` with a mechanism in all layers.

    A decoder reads them into states, and continues for some steps. draw: of a random mechanism, as for `register`.
    Raises `UnsupportedError` for what the mechanism does not support, and `UsageError` for a model whose layers do not
    call it.
    """
    model = loaded_model.model
    model.set_attn_implementation(register(spec, draw=draw))
    is_decoder = loaded_model.sizes.kind == "decoder"
    cache = StateCache(model, max_len=tokens.shape[1] + steps + 1) if is_decoder else None
    options: dict[str, Any] = {"past_key_values": cache, "use_cache": True} if is_decoder else {}
    output, fields, meter = _time_pass(model, tokens, options)
    meter.check(model, str(spec))
    if cache is None:
        return ForwardPass(out=output.last_hidden_state[0], **fields)
    size = state_bytes(cache.states)
    try:
        fields["step_s"] = _time_steps(model, tokens, cache, steps) if steps else None
    except UsageError as error:
        fields["no_steps"] = str(error)
    return ForwardPass(out=output.logits[0], bytes=size, **fields)


def run_partial_pass(loaded_model: LoadedModel, mechanisms: Mapping[int, SpecLike], tokens: Tensor) -> ForwardPass:
    """Let a decoder read the tokens ``[1, N]`` with mechanisms by the numbers of their layers, and continue for some
    steps. Other layers, or all without any, compute the model's own attention and keep all keys."""
    model = loaded_model.model
    with swap(model, mechanisms) if mechanisms else nullcontext():
        cache = _make_cache(model, mechanisms, tokens.shape[1] + TIMED_STEPS + 1)
        output, fields, _ = _time_pass(model, tokens, {"past_key_values": cache, "use_cache": True})
        size = state_bytes(cache.states if isinstance(cache, StateCache) else [vars(layer) for layer in cache.layers])
        step_s = _time_steps(model, tokens, cache, TIMED_STEPS)
    return ForwardPass(out=output.logits[0], bytes=size, step_s=step_s, **fields)


def measure_prompt_memory(loaded_model: LoadedModel, mechanisms: Mapping[int, SpecLike], tokens: Tensor) -> int | None:
    """The peak memory in bytes, without weights, of reading a prompt ``[1, N]`` as generation does, with the logits of
    the last position only. mechanisms: as in `run_partial_pass`."""
    model = loaded_model.model

    def read(prompt: Tensor) -> None:
        cache = _make_cache(model, mechanisms, tokens.shape[1])
        with torch.inference_mode():
            model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)

    with swap(model, mechanisms) if mechanisms else nullcontext():
        footprint = measure_footprint(lambda: read(tokens), device="cpu", first_call=lambda: read(tokens[:, :WARM_UP]))
    return footprint.peak


def _make_cache(model: Any, mechanisms: Mapping[int, SpecLike], max_len: int) -> Cache:
    return StateCache(model, max_len=max_len) if mechanisms else DynamicCache(config=model.config)


def _time_pass(model: Any, tokens: Tensor, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any], Meter]:
    """The output of a pass, its fields of a `ForwardPass`, and the calls of mechanisms."""
    with torch.inference_mode(), watch() as meter:
        disturbance_watch, start = DisturbanceWatch(), time.perf_counter()
        output = model(tokens, **options)
        seconds = time.perf_counter() - start
        disturbance = disturbance_watch.read_interval().describe(torch.get_num_threads())
    return output, {"seconds": seconds, "attention_s": meter.seconds, "disturbance": disturbance}, meter


def _time_steps(model: Any, tokens: Tensor, cache: Cache, steps: int) -> float:
    """The median time of decode steps after a segment, with its first tokens as inputs. The first step is not timed."""
    times = []
    with torch.inference_mode():
        for i in range(steps + 1):
            start = time.perf_counter()
            model(tokens[:, i : i + 1], past_key_values=cache, use_cache=True)
            times.append(time.perf_counter() - start)
    return sorted(times[1:])[steps // 2]


# -- some layers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialSwap:
    """A model that has read a segment of tokens ``[1, N]`` with mechanisms in some layers, or with none.

    out: its output. layer_outs: those of its layers, from which passes continue in which a later layer differs.
    """

    loaded_model: LoadedModel
    tokens: Tensor
    mechanisms: Mapping[int, SpecLike]
    out: Tensor
    layer_outs: Sequence[Any]

    @classmethod
    def read(
        cls, loaded_model: LoadedModel, tokens: Tensor, mechanisms: Mapping[int, SpecLike] = MappingProxyType({})
    ) -> PartialSwap:
        """Let the model read the segment with mechanisms by the numbers of their layers."""
        outs: list[Any] = []
        with ExitStack() as stack:
            if mechanisms:
                stack.enter_context(swap(loaded_model.model, mechanisms))
            for block in list_layers(loaded_model.model):
                stack.enter_context(block.register_forward_hook(lambda _, __, out: outs.append(out)))
            out = _run_model(loaded_model, tokens)
        return cls(loaded_model=loaded_model, tokens=tokens, mechanisms=mechanisms, out=out, layer_outs=outs)

    def run(self, layer: int, spec: SpecLike) -> Tensor:
        """The output with a mechanism in one more layer; earlier layers are not computed again."""
        model = self.loaded_model.model
        with swap(model, {**self.mechanisms, layer: spec}), ExitStack() as stack:
            for block in list_layers(model)[:layer]:  # whose outputs are known; only the last one's is used
                block.forward = lambda *_, **__: self.layer_outs[layer - 1]
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


def list_blocks(model: Any) -> list[nn.Module]:
    """The members of all lists of modules, among them the layers, if they are in lists."""
    return [block for m in model.modules() if isinstance(m, nn.ModuleList) for block in m]


def _run_model(loaded_model: LoadedModel, tokens: Tensor) -> Tensor:
    """Logits ``[N, V]``, or an encoder's last hidden states."""
    options = {"use_cache": False} if loaded_model.sizes.kind == "decoder" else {}
    with torch.inference_mode():
        return loaded_model.model(tokens, **options)[0][0]
