"""Other attention in some or all layers of a loaded model of transformers: ``ea.swap(model, "linear")``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal, Self, TypeAlias, get_args

from torch import nn

from ..errors import NotInstalled, UnsupportedError, UsageError
from ..spec import SpecLike

Phase = Literal["all", "prefill", "decode"]
SpecsByLayer: TypeAlias = Mapping[int, SpecLike] | Mapping[int | range, SpecLike]


class Swap:
    """Mechanisms in a model, from `swap`. As a context manager it restores the model's own attention at the end.

    mechanisms: of each swapped layer, by its number. layers: the name of every layer's attention module.
    """

    def __init__(self, model: Any, phase: Phase) -> None:
        self.model, self.phase = model, phase
        self.mechanisms: dict[int, nn.Module] = {}
        self.layers: dict[int, str] = {}
        self._configs: list[tuple[nn.Module, Any]] = []
        self._submodules: list[tuple[nn.Module, str]] = []

    def restore(self) -> None:
        """Give the model its own attention and its own configuration back. The mechanisms remain usable."""
        for module, name in self._submodules:
            delattr(module, name)
        for module, config in self._configs:
            module.config = config
        self._submodules, self._configs = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def __repr__(self) -> str:
        specs = {number: getattr(attn, "label", "") for number, attn in self.mechanisms.items()}
        return f"Swap({type(self.model).__name__}, {specs}, phase={self.phase!r})"


def swap(
    model: Any,
    mechanisms: SpecLike | SpecsByLayer,
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
    the model needs, and `NotInstalled` without transformers. The model is unchanged then.
    """
    if find_spec("transformers") is None:
        raise NotInstalled("ea.swap needs transformers; run: pip install 'efficient-attn[transformers]'")
    from . import swapped_layers as layers

    name = type(model).__name__
    layers.check_model(model)
    if phase not in get_args(Phase):
        raise UsageError(f"swap: phase is one of {', '.join(get_args(Phase))}, got {phase!r}")
    for spec in mechanisms.values() if isinstance(mechanisms, Mapping) else [mechanisms]:
        layers.check_mechanism(spec)
    handle = Swap(model, phase)
    try:
        handle._configs = layers.replace_configs(model, phase)
        sizes = layers.find_layers(model, sample)
        handle.layers = {number: layer.name for number, layer in sizes.items()}
        for number, spec in _select_specs(name, mechanisms, list(sizes)).items():
            layer = sizes[number]
            handle.mechanisms[number] = layer.add_mechanism(spec, seed=number)
            handle._submodules.append((layer.module, layers.SUBMODULE))
        layers.observe(model, sample)
    except BaseException as error:
        handle.restore()
        if isinstance(error, UnsupportedError):
            raise UnsupportedError(f"swap: {name}: {error}") from error
        raise
    return handle


def _select_specs(name: str, mechanisms: SpecLike | SpecsByLayer, numbers: list[int]) -> dict[int, SpecLike]:
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
