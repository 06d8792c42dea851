"""Copying: random tokens, a separator, and the same tokens again as targets, so that every answer is half the length
back (the copy task of Graves et al. 2014, arXiv:1410.5401, for a decoder)."""

from dataclasses import replace

import numpy as np

from ...errors import UsageError
from ..training.problem import IGNORED, Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split, guess_uniformly
from .guesses import GUESS_EXAMPLES, guess_remaining_tokens


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


def baselines(keys: CopyingKeys, length: int) -> Baselines:
    batch, half = draw(keys, length, GUESS_EXAMPLES, np.random.default_rng(0), "test"), length // 2
    shortcut = guess_remaining_tokens(batch.inputs[:, :half], batch.targets[:, half:])
    return replace(
        guess_uniformly(keys, length),
        shortcuts={"the most frequent token not yet copied": shortcut},
        caveat="How often tokens occur is enough for such a score, so the task does not show that these models copy.",
    )


COPYING = Problem(
    name="copying",
    keys=CopyingKeys,
    recipe=Recipe(model="decoder", convolution=2, positions="rotary", steps=4000),
    draw=draw,
    check=check,
    inputs=lambda keys: keys.vocab + 1,
    outputs=lambda keys: keys.vocab + 1,
    baselines=baselines,
    windowed=True,
)
