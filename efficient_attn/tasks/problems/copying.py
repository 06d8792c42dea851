"""Copying: random tokens, a separator, and the same tokens again as targets: every answer is half the length back (the
copy task, Graves et al. 2014, arXiv:1410.5401, read by a decoder)."""

from __future__ import annotations

import numpy as np

from ...errors import UsageError
from ..training.problem import IGNORED, Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split


class CopyingKeys(LearnKeys):
    """vocab: tokens to be copied; the separator is one more."""

    vocab: Count = 64


def check(keys: CopyingKeys, length: int) -> None:
    if length % 2 or length < 2 or keys.vocab < 2:
        raise UsageError(f"copying: it needs an even length and a vocab of at least 2, got {length} and {keys.vocab}")


def draw(keys: CopyingKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Tokens ``[B, N]``: N/2 of them, the separator, and all again except the last. The targets are in the second half.
    Examples are random: those of two splits coincide by chance only."""
    half = length // 2
    tokens = generator.integers(keys.vocab, size=(count, half))
    separator, ignored = np.full((count, 1), keys.vocab), np.full((count, half), IGNORED)
    inputs, targets = np.hstack([tokens, separator, tokens[:, :-1]]), np.hstack([ignored, tokens])
    return Batch(inputs, targets, distance=np.where(targets == IGNORED, -1, half))


def baselines(keys: CopyingKeys, length: int) -> Baselines:
    return Baselines(chance=1 / keys.vocab, majority=1 / keys.vocab)


COPYING = Problem(
    name="copying",
    title="Copying",
    sentence="Random tokens occur twice; the second time each is predicted.",
    keys=CopyingKeys,
    recipe=Recipe(model="decoder", convolution=2, positions="rotary"),
    draw=draw,
    check=check,
    inputs=lambda keys: keys.vocab + 1,
    outputs=lambda keys: keys.vocab + 1,
    baselines=baselines,
    windowed=True,
)
