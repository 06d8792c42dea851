"""Layers by one string: each is the class made by hand, and what does not exist is one line with the nearest name."""

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
BY_HAND: dict[str, Callable[[], nn.Module]] = {
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


def make(text: str, **more: Any) -> nn.Module:
    return make_layer(text, **{"d_model": WIDTH, "heads": 2, "length": LENGTH, "seed": 3, **more})


def test_every_baseline_is_made_by_name() -> None:
    assert BASELINES.keys() == {text.partition(":")[0] for text in BY_HAND if is_baseline(text)}


@pytest.mark.parametrize("text", BY_HAND)
def test_it_equals_the_class_made_by_hand(text: str) -> None:
    layer, wanted, x = make(text), BY_HAND[text](), torch.randn(2, LENGTH, WIDTH)
    assert type(layer) is type(wanted)
    assert layer.state_dict().keys() == wanted.state_dict().keys()
    torch.testing.assert_close(layer(x), wanted(x), rtol=0, atol=0)


def test_what_can_be_either_hides_later_positions_where_asked() -> None:
    x = torch.randn(1, LENGTH, WIDTH)
    causal = make("convolution", causal=True)
    torch.testing.assert_close(causal(x), Convolution(WIDTH, causal=True, seed=3)(x), rtol=0, atol=0)
    assert not torch.equal(causal(x), make("convolution")(x))


def test_key_value_heads_reach_the_mechanism() -> None:
    assert make("full", kv_heads=1).kv_heads == 1  # pyright: ignore
    assert make("gqa:kv_heads=1").kv_heads == 1  # pyright: ignore


def test_all_options_are_reported_defaults_included() -> None:
    assert baseline_options("convolution") == {"kernel": 3}
    assert baseline_options("convolution:kernel=7") == {"kernel": 7}
    assert baseline_options("gru") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("convolution:kernl=3", "convolution: unknown option 'kernl'; did you mean 'kernel'"),
        ("convolution:kernel=few", "convolution: option kernel='few' does not fit"),
        ("convolution:kernel=0", "kernel must be at least 1"),
        ("convolution:kernel=4", "odd where it is centred"),
        ("gru:seed=1", "gru: unknown option 'seed'"),  # a place says it
        ("gru:backend=dense", "gru has no backends"),
        ("gruu", "unknown layer 'gruu'; did you mean 'gru'"),
        ("sliding_windw", "unknown layer 'sliding_windw'; did you mean 'sliding_window'"),
        ("sliding_window:windw=3", "unknown option 'windw'; did you mean 'window'"),
        ("gru|lstm", "only patterns can be joined"),
        ("full:4", "expected option=value"),
    ],
)
def test_what_does_not_exist_is_one_line(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make(text)


def test_what_names_no_baseline_has_no_class() -> None:
    assert find_baseline("full") is None
    assert find_baseline("gru|lstm") is None
    assert find_baseline("gru") is GRU


def test_a_mechanism_of_a_plugin_may_be_called_as_a_baseline_is() -> None:
    assert is_baseline("gru")
    with tiny_suites.isolated_registry():
        tiny_suites.register_modified("gru")
        assert not is_baseline("gru")  # of a mechanism alone the plug-in's is meant
