"""Copying: random tokens, a separator, and the same tokens again as targets, so that every answer is half the length
back (the copy task of Graves et al. 2014, arXiv:1410.5401, for a decoder)."""

import numpy as np

from ...errors import UsageError
from ..training.problem import IGNORED, Batch, Count, LearnKeys, Problem, Recipe, Split, guess_uniformly


class CopyingKeys(LearnKeys):
    """vocab: tokens to be copied; the separator is one more."""

    vocab: Count = 64


def check(keys: CopyingKeys, length: int) -> None:
    if length % 2 or length < 2 or keys.vocab < 2:
        raise UsageError(f"copying: it needs an even length and a vocab of at least 2, got {length} and {keys.vocab}")


def draw(keys: CopyingKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Tokens ``[B, N]``: N/2 tokens, the separator, and the same tokens except the last; targets in the second half."""
    half = length // 2
    tokens = generator.integers(keys.vocab, size=(count, half))
    separator, ignored = np.full((count, 1), keys.vocab), np.full((count, half), IGNORED)
    inputs, targets = np.hstack([tokens, separator, tokens[:, :-1]]), np.hstack([ignored, tokens])
    return Batch(inputs, targets, distance=np.where(targets == IGNORED, -1, half))


COPYING = Problem(
    name="copying",
    keys=CopyingKeys,
    recipe=Recipe(model="decoder", convolution=2, positions="rotary", steps=4000),
    draw=draw,
    check=check,
    inputs=lambda keys: keys.vocab + 1,
    outputs=lambda keys: keys.vocab + 1,
    baselines=guess_uniformly,
    windowed=True,
)
