"""The multi-head layer's dropout of attention weights."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea
from efficient_attn.testing.tensor_comparison import assert_same


def made(variant: str | ea.Attention = "full", **options: float) -> ea.MultiHeadAttention:
    return ea.MultiHeadAttention(24, 4, variant=variant, **options)


def drawn() -> torch.Tensor:
    return torch.randn(2, 10, 24, generator=torch.Generator().manual_seed(0))


def test_dropout_is_that_of_the_mechanism_in_training() -> None:
    layer, x = made(dropout=0.5), drawn()
    assert layer.attn.dropout == 0.5
    assert "dropout=0.5" in repr(layer)
    one, other = layer(x), layer(x)
    assert not torch.equal(one, other)
    layer.eval()
    assert_same(layer(x), made()(x), "in evaluation")
    assert_same(layer.train(False)(x), made(dropout=0).train()(x), "without dropout")
    attn = ea.create("full")
    attn.dropout = 0.25
    assert made(attn).attn.dropout == 0.25
    with pytest.raises(ea.UnsupportedError, match=r"linear: .* do not claim dropout"):
        made("linear", dropout=0.5)
