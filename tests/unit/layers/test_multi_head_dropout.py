"""The multi-head layer's dropout of attention weights."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea
from efficient_attn.testing.tensor_comparison import assert_same


def make(variant: str | ea.Attention = "full", **options: float) -> ea.MultiHeadAttention:
    return ea.MultiHeadAttention(24, 4, variant=variant, **options)


def draw() -> torch.Tensor:
    return torch.randn(2, 10, 24, generator=torch.Generator().manual_seed(0))


def test_dropout_is_passed_to_the_mechanism_and_off_in_evaluation() -> None:
    layer, x = make(dropout=0.5), draw()
    assert layer.attn.dropout == 0.5
    assert "dropout=0.5" in repr(layer)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert_same(layer(x), make()(x), "in evaluation")
    assert_same(layer.train(False)(x), make(dropout=0).train()(x), "without dropout")
    attn = ea.create("full")
    attn.dropout = 0.25
    assert make(attn).attn.dropout == 0.25
    with pytest.raises(ea.UnsupportedError, match=r"linear: .* do not claim dropout"):
        make("linear", dropout=0.5)
