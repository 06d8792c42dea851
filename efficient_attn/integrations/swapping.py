"""Other attention in some or all layers of a loaded model of transformers: ``ea.swap(model, "linear")``.

The model's layers call a function that is registered with transformers (`attend`); a layer with a mechanism holds it as
a submodule, and the others compute the model's own attention, with its own mask. Only copies of the model's
configuration name that function, so that nothing else changes, also where models share a configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from ..contract.shapes import Dims
from ..errors import NotInstalled, UnsupportedError, UsageError
from ..registry import create, rename_backend
from ..spec import SpecLike, parse

try:
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
except ImportError as error:
    raise NotInstalled("ea.swap needs transformers; run: pip install 'efficient-attn[transformers]'") from error

from .first_pass import OWN_ATTENTION
from .model_masks import ModelMask, describe_mask
from .state_cache import SUBMODULE, SWAPPED, take_waiting
from .transformers import PROBE, avoid_reserved_words, check_serves, find_max_len, run_mechanism

Phase = Literal["all", "prefill", "decode"]
TRIED_TOKENS = 2  # of the passes that find a model's layers

_observers: list[dict[nn.Module, Dims]] = []  # sizes of each layer's attention, in the order of calls


class Swap:
    """Mechanisms in a model, from `swap`. As a context manager it restores the model's own attention at the end.

    mechanisms: of each swapped layer, by its number. layers: the name of every layer's attention module.
    """

    def __init__(self, model: Any, phase: Phase) -> None:
        self.model, self.phase = model, phase
        self.mechanisms: dict[int, nn.Module] = {}
        self.layers: dict[int, str] = {}
        self._configs: list[tuple[nn.Module, Any]] = []
        self._modules: list[nn.Module] = []

    def restore(self) -> None:
        """Give the model its own attention and its own configuration back. The mechanisms remain usable."""
        for module in self._modules:
            delattr(module, SUBMODULE)
        for module, config in self._configs:
            module.config = config
        self._modules, self._configs = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def __repr__(self) -> str:
        specs = {number: getattr(attn, "label", "") for number, attn in self.mechanisms.items()}
        return f"Swap({type(self.model).__name__}, {specs}, phase={self.phase!r})"


def swap(
    model: Any,
    mechanisms: SpecLike | Mapping[int | range, SpecLike],
    *,
    phase: Phase = "all",
    sample: Mapping[str, Any] | None = None,
) -> Swap:
    """Replace the attention of a transformers' model, with the same weights, until ``restore()`` of what it returns.

    mechanisms: a spec for all layers, or specs by the number of a layer, ``{0: "full", range(1, 30): "linear"}``, where
    others keep the model's own attention. Numbers are the model's, or count the layers in the order of their calls.
    phase: ``prefill`` leaves the passes that add one token to earlier ones to the model's own attention, ``decode`` all
    others; both need all keys, in transformers' own cache. sample: the inputs of a short pass of the model, for models
    of neither tokens nor images.

    Mechanisms are submodules of the layers' attention: in ``parameters()`` and ``state_dict()``, moved and copied with
    the model, untrained, seeded by the layer's number. Two short passes check that all layers call them.

    Raises `UsageError` for a layer that does not exist, a model that is swapped already, or one that computes
    attention without transformers' AttentionInterface; `UnsupportedError` for a mechanism that does not support what
    the model needs. The model is unchanged then.
    """
    name = type(model).__name__
    if not isinstance(getattr(model, "config", None), PreTrainedConfig):
        raise UsageError(f"swap: {name} is not a model of transformers")
    if phase not in get_args(Phase):
        raise UsageError(f"swap: phase is one of {', '.join(get_args(Phase))}, got {phase!r}")
    if is_swapped(model):
        raise UsageError(f"swap: {name} is swapped already; call restore() first")
    by_layer = mechanisms if isinstance(mechanisms, Mapping) else None
    for spec in [mechanisms] if by_layer is None else by_layer.values():
        check_serves(create(rename_backend(parse(spec)), dims=PROBE))  # pyright: ignore[reportArgumentType]
    handle = Swap(model, phase)
    try:
        _replace_configs(handle)
        sizes = _find_layers(model, sample)
        handle.layers = {number: _find_name(model, module) for number, (module, _) in sizes.items()}
        for number, spec in _select_specs(name, mechanisms, list(sizes)).items():
            _add_mechanism(handle, number, *sizes[number], spec)
        _observe(model, sample)
    except BaseException as error:
        handle.restore()
        if isinstance(error, UnsupportedError):
            raise UnsupportedError(f"swap: {name}: {error}") from error
        raise
    return handle


def is_swapped(model: nn.Module) -> bool:
    """Whether a model has mechanisms from `swap`."""
    return any(SUBMODULE in module._modules for module in model.modules())


def _replace_configs(handle: Swap) -> None:
    """Copies of the model's configurations, which name the function of their phase and own attention."""
    memo: dict[int, Any] = {}
    for module in handle.model.modules():
        config = module.__dict__.get("config")
        if isinstance(config, PreTrainedConfig):
            handle._configs.append((module, config))
            module.config = deepcopy(config, memo)
    copies = {id(x): x for x in memo.values() if isinstance(x, PreTrainedConfig)}
    for config in copies.values():
        config._attn_implementation_internal = _register(handle.phase, config._attn_implementation or "eager")


@cache
def _register(phase: Phase, own_attention: str) -> str:
    name = avoid_reserved_words(f"{SWAPPED}{phase}-{own_attention}")
    AttentionInterface.register(name, partial(attend, phase, own_attention))
    AttentionMaskInterface.register(name, partial(describe_both_masks, own_attention))
    return name


def describe_both_masks(own_attention: str, *args: Any, **options: Any) -> ModelMask:
    """The mask for mechanisms, which makes the one for the model's own attention when a layer needs it."""
    make_own = AttentionMaskInterface().get(own_attention)  # None for functions that take no mask
    mask = describe_mask(*args, **options)
    return replace(mask, make_own=None if make_own is None else cache(partial(make_own, *args, **options)))


def attend(
    phase: Phase,
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
    attn, is_step = module._modules.get(SUBMODULE), query.shape[2] == 1 < key.shape[2]
    if attn is not None and phase in ("all", "decode" if is_step else "prefill"):
        return run_mechanism(attn, module, query, key, value, attention_mask, **options)  # pyright: ignore
    take_waiting()
    if isinstance(attention_mask, ModelMask):
        attention_mask = attention_mask.make_own() if attention_mask.make_own is not None else None
    names = inspect.unwrap(type(module).forward).__globals__  # of the model's source, which may have its own table
    table, default = names["ALL_ATTENTION_FUNCTIONS"], names.get("eager_attention_forward")
    return table.get_interface(own_attention, default)(module, query, key, value, attention_mask, **options)


def _observe(model: Any, sample: Mapping[str, Any] | None) -> dict[nn.Module, Dims]:
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


def _find_layers(model: Any, sample: Mapping[str, Any] | None) -> dict[int, tuple[nn.Module, Dims]]:
    """The layers with the sizes of their attention, by the model's own numbers if they differ, or in order of calls."""
    try:
        sizes = _observe(model, sample)
    except UnsupportedError as error:
        raise UsageError(f"swap: {type(model).__name__}: {error}") from error
    if not sizes:
        raise UsageError(f"swap: {type(model).__name__} {OWN_ATTENTION}")
    numbers = [getattr(module, "layer_idx", None) for module in sizes]
    if None in numbers or len(set(numbers)) < len(numbers):
        return dict(enumerate(sizes.items()))
    return dict(sorted(zip(numbers, sizes.items(), strict=True)))  # pyright: ignore[reportReturnType]


def _select_specs(
    name: str, mechanisms: SpecLike | Mapping[int | range, SpecLike], numbers: list[int]
) -> dict[int, SpecLike]:
    """The spec of each layer that has one."""
    if not isinstance(mechanisms, Mapping):
        return dict.fromkeys(numbers, mechanisms)
    specs: dict[int, SpecLike] = {}
    for key, spec in mechanisms.items():
        for number in key if isinstance(key, range) else (key,):
            if number not in numbers:
                is_range = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
                others = f"{numbers[0]} to {numbers[-1]}" if is_range else ", ".join(map(str, numbers))
                raise UsageError(f"swap: {name} has no layer {number} with attention; it has {others}")
            if number in specs:
                raise UsageError(f"swap: {name}: layer {number} is given two mechanisms, {specs[number]} and {spec}")
            specs[number] = spec
    if not specs:
        raise UsageError(f"swap: no layer of {name} is given a mechanism")
    return specs


def _add_mechanism(handle: Swap, number: int, module: nn.Module, dims: Dims, spec: SpecLike) -> None:
    """A layer's mechanism, as a submodule on the device of its weights."""
    attn = create(rename_backend(parse(spec)), dims=dims, seed=number)
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    module.add_module(SUBMODULE, attn.to(device))
    handle._modules.append(module)
    handle.mechanisms[number] = attn


def _find_name(model: nn.Module, wanted: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is wanted)
