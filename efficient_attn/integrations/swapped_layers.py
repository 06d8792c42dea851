"""The layers of a model in which `swap` places mechanisms.

They call a function that is registered with transformers (`attend`). A layer with a mechanism holds it as a submodule;
the others compute the model's own attention, with its own mask. Only copies of the model's configuration name that
function, so that nothing else changes, also where models share a configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig

from ..contract.mechanism import Attention
from ..contract.shapes import Dims
from ..errors import UnsupportedError, UsageError
from ..registry import create, rename_backend
from ..spec import SpecLike, parse
from .first_pass import OWN_ATTENTION
from .model_masks import ModelMask, describe_mask
from .state_cache import SUBMODULE, SWAPPED, continues_state, take_waiting
from .transformers import PROBE, avoid_reserved_words, check_serves, find_max_len, run_mechanism, store_prompt

TRIED_TOKENS = 2  # of the passes that find a model's layers

_observers: list[dict[nn.Module, Dims]] = []  # sizes of each layer's attention, in the order of calls


@dataclass(frozen=True)
class Layer:
    """A layer's attention: its module, the module's name in the model, and the sizes of its tensors."""

    module: nn.Module
    name: str
    dims: Dims

    def add_mechanism(self, spec: SpecLike, *, seed: int) -> Attention:
        """A mechanism as a submodule, on the device of the layer's weights."""
        attn = create(rename_backend(parse(spec)), dims=self.dims, seed=seed)
        device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        self.module.add_module(SUBMODULE, attn.to(device))
        return attn


def check_model(model: Any) -> None:
    """Raise `UsageError` for something else than a model of transformers, and for one that is swapped already."""
    name = type(model).__name__
    if not isinstance(getattr(model, "config", None), PreTrainedConfig):
        raise UsageError(f"swap: {name} is not a model of transformers")
    if any(SUBMODULE in module._modules for module in model.modules()):
        raise UsageError(f"swap: {name} is swapped already; call restore() first")


def check_mechanism(spec: SpecLike) -> None:
    """Raise `UsageError` for an unknown spec, and `UnsupportedError` for a mechanism with further inputs."""
    check_serves(create(rename_backend(parse(spec)), dims=PROBE))


def replace_configs(model: Any, phase: str) -> list[tuple[nn.Module, Any]]:
    """Give a model copies of its configurations, which name the function of a phase and the own attention; returns the
    modules with their previous ones."""
    memo: dict[int, Any] = {}
    previous = []
    for module in model.modules():
        config = module.__dict__.get("config")
        if isinstance(config, PreTrainedConfig):
            previous.append((module, config))
            module.config = deepcopy(config, memo)
    copies = {id(x): x for x in memo.values() if isinstance(x, PreTrainedConfig)}
    for config in copies.values():
        config._attn_implementation_internal = _register(phase, config._attn_implementation or "eager")
    return previous


def find_layers(model: Any, sample: Mapping[str, Any] | None) -> dict[int, Layer]:
    """The layers by the model's own numbers, if they differ, or in the order of calls in a short pass. Raises
    `UsageError` for a model that computes attention itself."""
    try:
        sizes = observe(model, sample)
    except UnsupportedError as error:
        raise UsageError(f"swap: {type(model).__name__}: {error}") from error
    if not sizes:
        raise UsageError(f"swap: {type(model).__name__} {OWN_ATTENTION}")
    names = {module: name for name, module in model.named_modules()}
    layers = [Layer(module, names[module], dims) for module, dims in sizes.items()]
    numbers = [getattr(module, "layer_idx", None) for module in sizes]
    if None in numbers or len(set(numbers)) < len(numbers):
        return dict(enumerate(layers))
    return dict(sorted(zip(numbers, layers, strict=True)))  # pyright: ignore[reportReturnType, reportArgumentType]


@cache
def _register(phase: str, own_attention: str) -> str:
    name = avoid_reserved_words(f"{SWAPPED}{phase}-{own_attention}")
    AttentionInterface.register(name, partial(attend, phase, own_attention))
    AttentionMaskInterface.register(name, partial(describe_both_masks, own_attention))
    return name


def describe_both_masks(own_attention: str, *args: Any, **options: Any) -> ModelMask:
    """The mask for mechanisms, which makes the one for the model's own attention when a layer needs it."""
    make_own = AttentionMaskInterface().get(own_attention)  # None for functions that take no mask
    mask = describe_mask(*args, **options)
    if make_own is None or mask is options.get("attention_mask"):  # made before the forward pass
        return mask
    make = partial(make_own, *args, **options)
    if isinstance(options.get("q_offset"), Tensor):  # of a static cache: a compiled pass receives the finished mask
        finished = make()
        return replace(mask, make_own=lambda: finished)
    return replace(mask, make_own=make if torch.compiler.is_compiling() else cache(make))


def attend(
    phase: str,
    own_attention: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: ModelMask | Tensor | None,
    **options: Any,
) -> tuple[Tensor, Any]:
    """The function that transformers calls in each layer of a swapped model: its mechanism, or its own attention."""
    for sizes in _observers:
        counts = {"heads": query.shape[1], "kv_heads": key.shape[1], "max_len": find_max_len(module)}
        sizes.setdefault(module, Dims(head_dim=query.shape[3], value_dim=value.shape[3], **counts))
    attn, compiling = cast(Attention | None, module._modules.get(SUBMODULE)), torch.compiler.is_compiling()
    is_step = query.shape[2] == 1 and (key.shape[2] > 1 or (not compiling and continues_state()))
    if attn is not None and phase in ("all", "decode" if is_step else "prefill"):
        return run_mechanism(attn, module, query, key, value, attention_mask, **options)
    state = None if compiling else take_waiting()
    if attn is not None and state is not None:
        store_prompt(attn, state, module, key, value, attention_mask, **options)
    if isinstance(attention_mask, ModelMask):
        bias = attention_mask.bias
        own_mask = attention_mask.make_own() if attention_mask.make_own is not None else None
        attention_mask = own_mask if bias is None else bias if own_mask is None else bias + own_mask
    names = inspect.unwrap(type(module).forward).__globals__  # of the model's source, which may have its own table
    table, default = names["ALL_ATTENTION_FUNCTIONS"], names.get("eager_attention_forward")
    return table.get_interface(own_attention, default)(module, query, key, value, attention_mask, **options)


def observe(model: Any, sample: Mapping[str, Any] | None) -> dict[nn.Module, Dims]:
    """The sizes of each attention that a short pass calls, in order. Random numbers and training modes are kept."""
    inputs = _make_inputs(model) if sample is None else dict(sample)
    sizes: dict[nn.Module, Dims] = {}
    with _keep_modes(model), torch.random.fork_rng(), torch.no_grad():
        _observers.append(sizes)
        try:
            model(**inputs)
        finally:
            _observers.remove(sizes)
    return sizes


@contextmanager
def _keep_modes(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within this context."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _make_inputs(model: Any) -> dict[str, Any]:
    """The inputs of a short pass: two tokens, or an image."""
    device, kind = next(model.parameters()).device, model.main_input_name
    tokens = torch.zeros(1, TRIED_TOKENS, dtype=torch.int64, device=device)
    if kind == "input_ids":
        return {kind: tokens} | ({"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {})
    if kind == "pixel_values":
        config = getattr(model.config, "vision_config", model.config)
        height, width = s if isinstance(s := config.image_size, list | tuple) else (s, s)
        return {kind: torch.zeros(1, config.num_channels, height, width, dtype=model.dtype, device=device)}
    raise UsageError(f"swap: {type(model).__name__} reads {kind}; give the inputs of a short pass as sample")
