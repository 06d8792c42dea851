"""Classifiers of a whole sequence, and of a pair of sequences."""

import torch
from torch import Tensor, nn

from ...contract import Mask
from ...layers.weights import make_projection
from ...models.config import Config
from ...models.stacks import Encoder


class SequenceClassifier(nn.Module):
    """An encoder with a linear classifier of the mean over valid positions."""

    def __init__(self, config: Config, *, vocab: int, classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, vocab=vocab)
        self.head = make_projection(config.d_model, classes, bias=True, seed=config.seed, name="head")

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Tokens ``[B, N]`` to logits ``[B, classes]``. lengths: ``[B]``."""
        return self.head(encode_mean(self.encoder, tokens, lengths))


class PairClassifier(nn.Module):
    """One encoder reads both sequences of a pair, each by itself; a classifier with two hidden layers reads both means,
    their product and their difference (the form of Long Range Arena's retrieval, Tay et al. 2020, arXiv:2011.04006)."""

    def __init__(self, config: Config, *, vocab: int, classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, vocab=vocab)
        width, seed = config.d_model, config.seed
        self.head = nn.Sequential(
            make_projection(4 * width, width, bias=True, seed=seed, name="inner"),
            nn.ReLU(),
            make_projection(width, max(1, width // 2), bias=True, seed=seed, name="outer"),
            nn.ReLU(),
            make_projection(max(1, width // 2), classes, bias=True, seed=seed, name="head"),
        )

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Tokens ``[B, 2, N]`` to logits ``[B, classes]``. lengths: ``[B, 2]``."""
        means = encode_mean(self.encoder, tokens.flatten(0, 1), None if lengths is None else lengths.flatten())
        first, second = means.unflatten(0, (-1, 2)).unbind(1)
        return self.head(torch.cat([first, second, first * second, first - second], -1))


def encode_mean(encoder: Encoder, tokens: Tensor, lengths: Tensor | None) -> Tensor:
    """Tokens ``[B, N]`` to the mean of the encoder's rows over valid positions, ``[B, d_model]``. lengths: ``[B]``."""
    rows = encoder(tokens, Mask(key_lengths=lengths, query_lengths=lengths))
    if lengths is None:
        return rows.mean(1)
    valid = (torch.arange(rows.shape[1], device=rows.device) < lengths[:, None])[..., None]
    return (rows * valid).sum(1) / lengths[:, None].clamp(min=1)
