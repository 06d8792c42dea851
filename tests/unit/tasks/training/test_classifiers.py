"""Classifiers: how both encodings of a pair enter its classifier."""

from __future__ import annotations

import pytest
import torch

from efficient_attn.models.config import Config
from efficient_attn.tasks.training.classifiers import PairClassifier, SequenceClassifier, encode_mean

CONFIG = Config(d_model=16, heads=2, layers=1, max_len=12, seed=3)


def _draw(*shape: int) -> torch.Tensor:
    return torch.randint(20, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("lengths", [None, torch.tensor([[12, 5], [1, 7], [9, 9]])])
def test_a_pair_is_classified_by_both_means_their_product_and_difference(lengths: torch.Tensor | None) -> None:
    model, tokens = PairClassifier(CONFIG, vocab=20, classes=2), _draw(3, 2, 12)
    means = []
    for i in range(2):
        rows = [model.encoder(tokens[j : j + 1, i, : lengths[j, i] if lengths is not None else 12]) for j in range(3)]
        means.append(torch.stack([row[0].mean(0) for row in rows]))
    x, y = means
    expected = model.head(torch.cat([x, y, x * y, x - y], 1))
    torch.testing.assert_close(model(tokens, lengths), expected)


def test_a_sequence_is_classified_by_the_mean_of_valid_positions() -> None:
    model, tokens, lengths = SequenceClassifier(CONFIG, vocab=20, classes=3), _draw(3, 12), torch.tensor([12, 4, 7])
    for i, length in enumerate(lengths.tolist()):
        mean = model.encoder(tokens[i : i + 1, :length]).mean(1)
        torch.testing.assert_close(encode_mean(model.encoder, tokens, lengths)[i : i + 1], mean)
        torch.testing.assert_close(model(tokens, lengths)[i : i + 1], model.head(mean))
