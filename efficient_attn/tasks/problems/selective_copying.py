"""Selective copying: a few tokens at random positions among blanks; at the end they are written in order (Mamba, Gu &
Dao 2023, arXiv:2312.00752)."""

from dataclasses import replace

import numpy as np

from ...errors import UsageError
from ..training.problem import IGNORED, Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split, guess_uniformly
from .guesses import GUESS_EXAMPLES


class SelectiveCopyingKeys(LearnKeys):
    """vocab: tokens to copy; the blank and the mark at targets are two more. tokens: how many to copy."""

    vocab: Count = 16
    tokens: Count = 8


def check(keys: SelectiveCopyingKeys, length: int) -> None:
    if 2 * keys.tokens > length or keys.vocab < 2:
        raise UsageError(
            f"selective_copying: {keys.tokens} tokens need a length of at least {2 * keys.tokens} and a vocab of at"
            f" least 2, got {length} and {keys.vocab}"
        )


def draw(keys: SelectiveCopyingKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Tokens ``[B, N]``: blanks with tokens among them, then as many marks as tokens, at which the targets are."""
    blank, mark = keys.vocab, keys.vocab + 1
    inputs, targets = np.full((count, length), blank), np.full((count, length), IGNORED)
    distance = np.full((count, length), -1)
    tokens = generator.integers(keys.vocab, size=(count, keys.tokens))
    positions = np.argsort(generator.random((count, length - keys.tokens)), axis=1)[:, : keys.tokens]
    positions.sort(axis=1)
    np.put_along_axis(inputs, positions, tokens, axis=1)
    inputs[:, -keys.tokens :], targets[:, -keys.tokens :] = mark, tokens
    distance[:, -keys.tokens :] = np.arange(length - keys.tokens, length) - positions
    return Batch(inputs, targets, distance=distance)


def baselines(keys: SelectiveCopyingKeys, length: int) -> Baselines:
    """The shortcut copies, for each number, the token whose position most probably has that number, without counting.

    The number of tokens before a position is hypergeometric."""
    from scipy.stats import hypergeom

    batch, count = draw(keys, length, GUESS_EXAMPLES, np.random.default_rng(0), "test"), keys.tokens
    positions = np.nonzero(batch.inputs < keys.vocab)[1].reshape(-1, count)
    n_places, n_correct = length - count, 0
    for number, targets in enumerate(batch.targets[:, -count:].T):
        scores = hypergeom.logpmf(number, n_places - 1, np.arange(n_places), count - 1)
        guesses = np.take_along_axis(positions, scores[positions].argmax(1)[:, None], axis=1)
        n_correct += int((np.take_along_axis(batch.inputs, guesses, axis=1)[:, 0] == targets).sum())
    return replace(
        guess_uniformly(keys, length),
        shortcuts={"the token that is likely by its position": n_correct / (GUESS_EXAMPLES * count)},
        caveat="Positions are enough for such a score, so the task does not show that these models count tokens.",
    )


SELECTIVE_COPYING = Problem(
    name="selective_copying",
    keys=SelectiveCopyingKeys,
    recipe=Recipe(model="decoder", layers=2, convolution=2, positions="rotary", steps=3200),
    draw=draw,
    check=check,
    inputs=lambda keys: keys.vocab + 2,
    outputs=lambda keys: keys.vocab + 2,
    baselines=baselines,
    windowed=True,
)
