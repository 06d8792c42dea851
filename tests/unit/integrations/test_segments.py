"""Metrics of swapped models: known values on few tokens, and no change without a swap."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch

from efficient_attn.errors import UsageError
from efficient_attn.integrations.model_info import BUNDLED_MODELS
from efficient_attn.integrations.segments import cut_segment, measure_hidden_metrics, measure_token_metrics
from efficient_attn.integrations.texts import Text


def test_losses_are_those_of_the_next_token() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [1.0, 1.0, 1.0]]))
    own = torch.log(torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1], [1.0, 1.0, 1.0]]))
    found = measure_token_metrics(logits, own, torch.tensor([2, 0, 1]))
    assert found["loss"] == pytest.approx(-(math.log(0.5) + math.log(0.8)) / 2)
    first = 0.25 * math.log(0.25 / 0.5) + 0.5 * math.log(0.5 / 0.25)
    assert found["divergence"] == pytest.approx(first / 2, abs=1e-6)
    assert found["agreement"] == 0.5
    assert found["loss_later"] is None


def test_positions_are_early_or_later() -> None:
    tokens, generator = torch.arange(700) % 11, torch.Generator().manual_seed(0)
    logits = torch.randn(700, 11, generator=generator)
    found = measure_token_metrics(logits, logits, tokens)
    each = torch.nn.functional.cross_entropy(logits[:-1], tokens[1:], reduction="none")
    assert found["loss"] == pytest.approx(each.mean().item(), rel=1e-5)
    assert found["loss_early"] == pytest.approx(each[:512].mean().item(), rel=1e-5)
    assert found["loss_later"] == pytest.approx(each[512:].mean().item(), rel=1e-5)
    assert (found["divergence"], found["divergence_p99"], found["agreement"]) == (0, 0, 1)


def test_hidden_metrics() -> None:
    rows = torch.randn(128, 16, generator=torch.Generator().manual_seed(0))
    same = measure_hidden_metrics(rows, rows)
    assert (same["hidden_error"], same["embedding_cosine"], same["similarity_rank"]) == pytest.approx((0, 1, 1))
    assert measure_hidden_metrics(2 * rows, rows)["hidden_error"] == pytest.approx(1)
    assert measure_hidden_metrics(2 * rows, rows)["similarity_rank"] == pytest.approx(1)
    assert measure_hidden_metrics(rows.flip(1), rows)["embedding_cosine"] < 0.9


def _loaded() -> Any:
    """A model whose tokens are the letters."""

    def tokenize(text: str, **_: Any) -> Any:
        return SimpleNamespace(input_ids=torch.tensor([[ord(c) for c in text]]))

    return SimpleNamespace(sizes=BUNDLED_MODELS["minilm"].sizes, tokenizer=tokenize)


def test_each_segment_is_the_beginning_of_another_document() -> None:
    text = Text("mine", tuple(c * (20 if c != "c" else 5) for c in "abcdef"))
    found = [chr(int(cut_segment(_loaded(), text, 10, i)[0, 0])) for i in range(5)]
    assert sorted(found) == list("abdef")
    assert cut_segment(_loaded(), text, 10, 0).shape == (1, 10)
    with pytest.raises(UsageError, match="5 documents of 10 tokens; segment 6"):
        cut_segment(_loaded(), text, 10, 5)
    with pytest.raises(UsageError, match="512 positions"):
        cut_segment(_loaded(), text, 513, 0)
