"""Swapping some layers: skipping earlier layers gives the output of a full pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from tiny_models import bert, gpt2, llama, save_tiny

from efficient_attn.errors import UsageError
from efficient_attn.integrations.bundled import load
from efficient_attn.integrations.model_swap import PartialSwap, list_layers
from efficient_attn.integrations.observers import watch
from efficient_attn.integrations.segments import compare_with_own, cut_segment
from efficient_attn.integrations.swapping import swap
from efficient_attn.integrations.texts import Text
from efficient_attn.integrations.transformers import register

WINDOW = "sliding_window:window=2"


def _open(tmp_path: Path, make: Callable[..., Any]) -> PartialSwap:
    tmp_path.mkdir(exist_ok=True)
    text = tmp_path / "text.txt"
    text.write_text("of the people, by the people, for the people")
    model = load(str(save_tiny(tmp_path / "tiny", make)))
    model.model.set_attn_implementation(register("full"))
    return PartialSwap.read(model, cut_segment(model, Text.find(str(text)), 32, 0))


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("make", [llama, gpt2, bert])
def test_skipping_earlier_layers_changes_nothing(tmp_path: Path, make: Callable[..., Any], layer: int) -> None:
    one = _open(tmp_path, make)
    found = one.run(layer, WINDOW)
    model = one.loaded_model.model
    with swap(model, {layer: WINDOW}), torch.inference_mode():
        whole = model(one.tokens)[0][0]
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-6)
    assert (found - one.out).abs().max() > 1e-5
    torch.testing.assert_close(one.run(layer, "full"), one.out, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("earlier", "layer"), [(0, 1), (1, 0)])
def test_a_further_layer_is_added_to_those_with_a_mechanism(tmp_path: Path, earlier: int, layer: int) -> None:
    own = _open(tmp_path, llama)
    model, tokens = own.loaded_model, own.tokens
    one = PartialSwap.read(model, tokens, {earlier: WINDOW})
    torch.testing.assert_close(one.out, own.run(earlier, WINDOW), rtol=0, atol=1e-6)
    both = PartialSwap.read(model, tokens, {earlier: WINDOW, layer: WINDOW})
    torch.testing.assert_close(one.run(layer, WINDOW), both.out, rtol=0, atol=1e-6)
    assert (both.out - one.out).abs().max() > 1e-5


def test_earlier_layers_are_not_computed_again(tmp_path: Path) -> None:
    one = _open(tmp_path, llama)
    with watch() as meter:
        one.run(1, WINDOW)
    assert meter.calls == {0: 2, 1: 3}, "two of each by the short passes of swap"
    with watch() as meter, torch.inference_mode():
        one.loaded_model.model(one.tokens)
    assert meter.calls == {0: 1, 1: 1}


def test_each_layer_changes_the_output(tmp_path: Path) -> None:
    one = _open(tmp_path, llama)
    assert not torch.allclose(one.run(0, WINDOW), one.run(1, WINDOW), atol=1e-5)
    same = compare_with_own(one.loaded_model, one.out, one.out, one.tokens)
    assert (same["divergence"], same["agreement"]) == (0, 1)


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    model = llama()
    model.set_attn_implementation(register("full"))
    model.config.num_hidden_layers = 3
    with pytest.raises(UsageError, match="3 layers are not in one list"):
        list_layers(model)
