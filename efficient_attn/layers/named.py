"""Layers by one string: a baseline by its name, or attention with a registered mechanism inside."""

from __future__ import annotations

import inspect
from typing import Any

from .. import registry
from ..errors import UsageError, make_unknown_error
from ..registry.factory import convert_option
from ..spec import Spec, parse
from .baselines import GRU, LSTM, LSTMN, Baseline, Convolution, Dense
from .multi_head import MultiHeadAttention

BASELINES: dict[str, type[Baseline]] = {
    "gru": GRU,
    "lstm": LSTM,
    "lstmn": LSTMN,
    "convolution": Convolution,
    "dense": Dense,
}
GIVEN = ("d_model", "length", "causal", "seed")  # what a place says, not a spec


def find_baseline(text: str) -> type[Baseline] | None:
    """The class that a spec names; None where it names a mechanism, or nothing."""
    spec = parse(text)
    return BASELINES.get(spec.name) if isinstance(spec, Spec) else None


def is_baseline(text: str) -> bool:
    """Whether a spec names a baseline and no mechanism."""
    return find_baseline(text) is not None and parse(text).names[0] not in registry.names()


def check_layer(text: str) -> None:
    """Raises `UsageError` for a spec that names neither a baseline nor a mechanism."""
    names, spec = [*BASELINES, *registry.names()], parse(text)
    for name in spec.names:
        if name not in names:
            raise make_unknown_error("layer", name, names)
        if name in BASELINES and not isinstance(spec, Spec):
            raise UsageError(f"{text}: only patterns can be joined by '|'; {name} is not one")


def baseline_options(text: str) -> dict[str, Any]:
    """All options of a baseline's spec, defaults included. Raises `UsageError` for those that it does not have."""
    cls, spec = find_baseline(text), parse(text)
    assert cls is not None
    assert isinstance(spec, Spec)
    if spec.backend is not None:
        raise UsageError(f"{text}: {spec.name} has no backends")
    parameters = {name: p for name, p in inspect.signature(cls).parameters.items() if name not in GIVEN}
    for option in spec.options:
        if option not in parameters:
            raise make_unknown_error("option", option, list(parameters), where=spec.name)
    typed = {name: convert_option(cls, spec.name, name, value) for name, value in spec.options.items()}
    return {name: p.default for name, p in parameters.items()} | typed


def make_layer(
    text: str,
    *,
    d_model: int,
    heads: int,
    length: int,
    causal: bool = False,
    kv_heads: int | None = None,
    seed: int = 0,
) -> Baseline | MultiHeadAttention:
    """The layer that a spec names, x to x. length: of the longest x, which `Dense` insists on. causal: for those that
    can be either; heads and kv_heads: of attention."""
    check_layer(text)
    cls = find_baseline(text)
    if cls is None:
        sizes = {"kv_heads": kv_heads, "max_len": length, "seed": seed}
        return MultiHeadAttention(d_model, heads, variant=text, **sizes)  # pyright: ignore
    options = {"length": length, "causal": causal, "seed": seed}
    accepted = {name: value for name, value in options.items() if name in inspect.signature(cls).parameters}
    return cls(d_model, **baseline_options(text), **accepted)
