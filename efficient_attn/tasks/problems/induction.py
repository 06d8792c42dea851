"""Induction: a special token occurs early in a random sequence and again at its end; the target is the token that
followed its first occurrence (induction heads, Olsson et al. 2022, arXiv:2209.11895, in the form of H3, Fu et al. 2022,
arXiv:2212.14052)."""

from dataclasses import replace

import numpy as np

from ...errors import UsageError
from ..training.problem import IGNORED, Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split, guess_uniformly
from .guesses import GUESS_EXAMPLES, guess_remaining_tokens


class InductionKeys(LearnKeys):
    """vocab: tokens that may follow the special one, which is one more. nearest: smallest distance to the answer, by
    default half the length, so that a short window cannot reach it."""

    vocab: Count = 64
    nearest: Count | None = None


def check(keys: InductionKeys, length: int) -> None:
    if length < 3 or keys.vocab < 2:
        raise UsageError(f"induction: length must be at least 3 and vocab at least 2, got {length} and {keys.vocab}")
    if keys.nearest is not None and keys.nearest > length - 2:
        raise UsageError(f"induction: at length {length} no answer can be {keys.nearest} back; at most {length - 2}")


def get_nearest(keys: InductionKeys, length: int) -> int:
    """The smallest distance from the end to the answer."""
    return keys.nearest or max(1, length // 2)


def draw(keys: InductionKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Tokens ``[B, N]``, with one target at the last. The special token's position is uniform, except near the end."""
    inputs = generator.integers(keys.vocab, size=(count, length))
    first, rows = generator.integers(length - 1 - get_nearest(keys, length), size=count), np.arange(count)
    inputs[rows, first] = inputs[:, -1] = keys.vocab
    targets, distance = np.full((count, length), IGNORED), np.full((count, length), -1)
    targets[:, -1], distance[:, -1] = inputs[rows, first + 1], length - 1 - first  # back to the special token
    return Batch(inputs, targets, distance=distance)


def baselines(keys: InductionKeys, length: int) -> Baselines:
    batch = draw(keys, length, GUESS_EXAMPLES, np.random.default_rng(0), "test")
    candidates = batch.inputs[:, 1 : length - get_nearest(keys, length)]
    shortcut = guess_remaining_tokens(candidates, batch.targets[:, -1:])
    return replace(
        guess_uniformly(keys, length),
        shortcuts={"the most frequent token where answers are": shortcut},
        caveat="How often tokens occur is enough for such a score, so the task does not show induction.",
    )


INDUCTION = Problem(
    name="induction",
    keys=InductionKeys,
    recipe=Recipe(model="decoder", convolution=2, positions=None, steps=1600),
    draw=draw,
    check=check,
    inputs=lambda keys: keys.vocab + 1,
    outputs=lambda keys: keys.vocab + 1,
    baselines=baselines,
    windowed=True,
)
