"""MQAR: multi-query associative recall. Pairs of keys and values come first; each key occurs again later, at its own
distance, and its value is the target (Zoology, Arora et al. 2023, arXiv:2312.04927)."""

import numpy as np

from ...errors import UsageError
from ..training.problem import IGNORED, Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split
from .guesses import GUESS_EXAMPLES

POWER = 0.01  # of the distribution of gaps: near pairs are far more frequent, as words are in text


class MqarKeys(LearnKeys):
    """vocab: keys are from its first half except token 0, values from its second. pairs: of keys and values, all of
    which occur again. noise: whether other positions have random tokens, including keys and values, instead of token 0,
    which is much harder for small states."""

    vocab: Count = 256
    pairs: Count = 8
    noise: bool = False


def check(keys: MqarKeys, length: int) -> None:
    if length % 2 or 4 * keys.pairs > length:
        raise UsageError(f"mqar: {keys.pairs} pairs need an even length of at least {4 * keys.pairs}, not {length}")
    if keys.vocab <= length or keys.vocab // 2 <= keys.pairs:
        raise UsageError(f"mqar: vocab must be above the length and twice the pairs, got {keys.vocab}")


def draw(keys: MqarKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Keys and values without replacement; gaps drawn without replacement, p ~ j^(a - 1), used as they were drawn."""
    half, pairs = keys.vocab // 2, keys.pairs
    slots = np.arange(1, (length - 2 * pairs) // 2 + 1, dtype=float)
    probabilities = slots ** (POWER - 1)
    probabilities /= probabilities.sum()
    inputs = generator.integers(keys.vocab if keys.noise else 1, size=(count, length))
    key_tokens = generator.permuted(np.tile(np.arange(1, half), (count, 1)), axis=1)[:, :pairs]
    values = generator.permuted(np.tile(np.arange(half, keys.vocab), (count, 1)), axis=1)[:, :pairs]
    # the order of arrival in a race of exponential times is a draw without replacement
    times = generator.exponential(size=(count, len(slots))) / probabilities
    gaps = np.argsort(times, axis=1)[:, :pairs]
    rows, positions = np.arange(count)[:, None], 2 * pairs + 2 * gaps
    inputs[:, 0 : 2 * pairs : 2], inputs[:, 1 : 2 * pairs : 2] = key_tokens, values
    inputs[rows, positions] = key_tokens
    targets, distance = np.full((count, length), IGNORED), np.full((count, length), -1)
    targets[rows, positions], distance[rows, positions] = values, positions - 2 * np.arange(pairs)  # back to the keys
    return Batch(inputs, targets, distance=distance)


def baselines(keys: MqarKeys, length: int) -> Baselines:
    """The shortcut guesses the pair that was most frequently queried at the position in training."""
    guess, counts = 1 / (keys.vocab - keys.vocab // 2), np.zeros((2, length, keys.pairs), dtype=int)
    for count, seed in zip(counts, (1, 0), strict=True):
        distance = draw(keys, length, GUESS_EXAMPLES, np.random.default_rng(seed), "test").distance
        assert distance is not None
        _, positions = np.nonzero(distance >= 0)
        np.add.at(count, (positions, (positions - distance[distance >= 0]) // 2), 1)
    n_correct = np.take_along_axis(counts[1], counts[0].argmax(1)[:, None], axis=1).sum()
    return Baselines(
        chance=guess,
        majority=guess,
        shortcuts={"the pair most frequent at the position": float(n_correct / counts[1].sum())},
        caveat="The position of a query is enough for such a score, so the task does not show recall by key.",
    )


MQAR = Problem(
    name="mqar",
    keys=MqarKeys,
    recipe=Recipe(model="decoder", convolution=2, positions=None, steps=2400),
    draw=draw,
    check=check,
    inputs=lambda keys: keys.vocab,
    outputs=lambda keys: keys.vocab,
    baselines=baselines,
    windowed=True,
)
