"""Layers by spec: baselines, and multi-head attention with a registered mechanism."""

import inspect
from typing import Any

from .. import registry
from ..errors import UsageError, make_unknown_error
from ..registry.factory import convert_option
from ..spec import Spec, SpecLike, Union, parse
from .baselines import GRU, LSTM, LSTMN, Baseline, Convolution, Dense
from .multi_head import MultiHeadAttention

BASELINES: dict[str, type[Baseline]] = {
    "gru": GRU,
    "lstm": LSTM,
    "lstmn": LSTMN,
    "convolution": Convolution,
    "dense": Dense,
}
GIVEN = ("d_model", "length", "causal", "seed")  # set by the configuration, not by the spec


def find_baseline(spec: SpecLike) -> type[Baseline] | None:
    """The baseline class that a spec names; None if it names a mechanism, or nothing that exists."""
    parsed = parse(spec)
    return BASELINES.get(parsed.name) if isinstance(parsed, Spec) else None


def is_baseline(spec: SpecLike) -> bool:
    """Whether a spec names a baseline and not a mechanism."""
    parsed = parse(spec)
    return find_baseline(parsed) is not None and parsed.names[0] not in registry.names()


def check_layer(spec: SpecLike) -> Spec | Union:
    """Parse a spec. Raises `UsageError` if it names neither a baseline nor a mechanism."""
    names, parsed = [*BASELINES, *registry.names()], parse(spec)
    for name in parsed.names:
        if name not in names:
            raise make_unknown_error("layer", name, names)
        if name in BASELINES and not isinstance(parsed, Spec):
            raise UsageError(f"{parsed}: only patterns can be joined by '|'; {name} is not one")
    return parsed


def baseline_options(spec: SpecLike) -> dict[str, Any]:
    """All options of a baseline's spec, defaults included. Raises `UsageError` for options that it does not have."""
    parsed = parse(spec)
    cls = find_baseline(parsed)
    assert cls is not None
    assert isinstance(parsed, Spec)
    if parsed.backend is not None:
        raise UsageError(f"{parsed}: {parsed.name} has no backends")
    parameters = {name: p for name, p in inspect.signature(cls).parameters.items() if name not in GIVEN}
    for option in parsed.options:
        if option not in parameters:
            raise make_unknown_error("option", option, list(parameters), where=parsed.name)
    typed = {name: convert_option(cls, parsed.name, name, value) for name, value in parsed.options.items()}
    return {name: p.default for name, p in parameters.items()} | typed


def make_layer(
    text: SpecLike,
    *,
    d_model: int,
    heads: int,
    length: int,
    causal: bool = False,
    kv_heads: int | None = None,
    seed: int = 0,
) -> Baseline | MultiHeadAttention:
    """Create the layer that a spec names, which maps ``[B, N, d_model]`` to the same shape.

    length: of the longest input, which `Dense` requires. causal: for baselines with this option. heads, kv_heads: of
    attention. Raises `UsageError` for unknown names and options.
    """
    parsed = check_layer(text)
    cls = find_baseline(parsed)
    if cls is None:
        sizes = {"kv_heads": kv_heads, "max_len": length, "seed": seed}
        return MultiHeadAttention(d_model, heads, variant=parsed, **sizes)  # pyright: ignore
    options = {"length": length, "causal": causal, "seed": seed}
    accepted = {name: value for name, value in options.items() if name in inspect.signature(cls).parameters}
    return cls(d_model, **baseline_options(parsed), **accepted)
