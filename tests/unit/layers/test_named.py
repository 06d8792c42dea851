"""Layers from specs: equal to the class, with suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_suites
import torch
from torch import nn

import efficient_attn as ea
from efficient_attn.errors import UsageError
from efficient_attn.layers.baselines import GRU, LSTM, LSTMN, Convolution, Dense
from efficient_attn.layers.named import BASELINES, baseline_options, find_baseline, is_baseline, make_layer

WIDTH, LENGTH = 8, 12
CLASSES: dict[str, Callable[[], nn.Module]] = {
    "gru": lambda: GRU(WIDTH, seed=3),
    "lstm": lambda: LSTM(WIDTH, seed=3),
    "lstmn": lambda: LSTMN(WIDTH, seed=3),
    "convolution": lambda: Convolution(WIDTH, causal=False, seed=3),
    "convolution:kernel=5": lambda: Convolution(WIDTH, kernel=5, causal=False, seed=3),
    "dense": lambda: Dense(WIDTH, length=LENGTH, seed=3),
    "full": lambda: ea.MultiHeadAttention(WIDTH, 2, variant="full", max_len=LENGTH, seed=3),
    "sliding_window:window=2": lambda: ea.MultiHeadAttention(
        WIDTH, 2, variant="sliding_window:window=2", max_len=LENGTH, seed=3
    ),
    "linformer:rank=4": lambda: ea.MultiHeadAttention(WIDTH, 2, variant="linformer:rank=4", max_len=LENGTH, seed=3),
    "sliding_window:window=1|global_tokens": lambda: ea.MultiHeadAttention(
        WIDTH, 2, variant="sliding_window:window=1|global_tokens", max_len=LENGTH, seed=3
    ),
}


def make(text: str, **options: Any) -> nn.Module:
    return make_layer(text, **{"d_model": WIDTH, "heads": 2, "length": LENGTH, "seed": 3, **options})


def test_all_baselines_can_be_made_by_name() -> None:
    assert BASELINES.keys() == {text.partition(":")[0] for text in CLASSES if is_baseline(text)}


@pytest.mark.parametrize("text", CLASSES)
def test_make_layer_equals_the_class(text: str) -> None:
    layer, expected, x = make(text), CLASSES[text](), torch.randn(2, LENGTH, WIDTH)
    assert type(layer) is type(expected)
    assert layer.state_dict().keys() == expected.state_dict().keys()
    torch.testing.assert_close(layer(x), expected(x), rtol=0, atol=0)


def test_convolution_is_causal_on_request() -> None:
    x = torch.randn(1, LENGTH, WIDTH)
    causal = make("convolution", causal=True)
    torch.testing.assert_close(causal(x), Convolution(WIDTH, causal=True, seed=3)(x), rtol=0, atol=0)
    assert not torch.equal(causal(x), make("convolution")(x))


def test_kv_heads_are_passed_to_the_mechanism() -> None:
    assert make("full", kv_heads=1).kv_heads == 1  # pyright: ignore
    assert make("gqa:kv_heads=1").kv_heads == 1  # pyright: ignore


def test_baseline_options_include_defaults() -> None:
    assert baseline_options("convolution") == {"kernel": 3}
    assert baseline_options("convolution:kernel=7") == {"kernel": 7}
    assert baseline_options("gru") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("convolution:kernl=3", "convolution: unknown option 'kernl'; did you mean 'kernel'"),
        ("convolution:kernel=few", "convolution: option kernel='few' does not fit"),
        ("convolution:kernel=0", "kernel must be at least 1"),
        ("convolution:kernel=4", "odd where it is centred"),
        ("gru:seed=1", "gru: unknown option 'seed'"),  # the configuration sets it
        ("gru:backend=dense", "gru has no backends"),
        ("gruu", "unknown layer 'gruu'; did you mean 'gru'"),
        ("sliding_windw", "unknown layer 'sliding_windw'; did you mean 'sliding_window'"),
        ("sliding_window:windw=3", "unknown option 'windw'; did you mean 'window'"),
        ("gru|lstm", "only patterns can be joined"),
        ("full:4", "expected option=value"),
    ],
)
def test_unknown_layers_and_options_are_reported(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(text)


def test_find_baseline_returns_none_for_other_names() -> None:
    assert find_baseline("full") is None
    assert find_baseline("gru|lstm") is None
    assert find_baseline("gru") is GRU


def test_a_registered_mechanism_shadows_a_baseline() -> None:
    assert is_baseline("gru")
    with tiny_suites.isolated_registry():
        tiny_suites.register_modified("gru")
        assert not is_baseline("gru")  # the plug-in's mechanism takes precedence
