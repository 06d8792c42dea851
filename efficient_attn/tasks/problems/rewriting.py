"""Reversal and sorting: a source of random tokens is written in reverse order, or sorted with repetitions.

Both need the whole source, so that models with a single context vector fail as sources grow (Cho et al. 2014,
arXiv:1409.1259). Sorting is that of Vinyals et al. 2015, "Order Matters", arXiv:1511.06391, with tokens for numbers.
"""

from collections.abc import Callable

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split, make_answer_batch
from .guesses import GUESS_EXAMPLES, guess_remaining_tokens

MIN_PROBABILITY = 1e-300  # replaces a probability of zero in logarithms


class RewritingKeys(LearnKeys):
    """vocab: tokens of a source, in their order; BEGIN and END of an answer are two more."""

    vocab: Count = 32


def make_problem(name: str, rewrite: Callable[[Array], Array], baselines: Callable[..., Baselines]) -> Problem:
    """The problem of rewriting sources ``[B, N]``; targets are ``[B, N + 1]``, with END."""

    def check(keys: RewritingKeys, length: int) -> None:
        if length < 1 or keys.vocab < 2:
            raise UsageError(f"{name}: it needs a length and a vocab of at least 2, got {length} and {keys.vocab}")

    def draw(keys: RewritingKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
        source = generator.integers(keys.vocab, size=(count, length))
        return make_answer_batch(source, rewrite(source), begin=keys.vocab, end=keys.vocab + 1)

    return Problem(
        name=name,
        keys=RewritingKeys,
        recipe=Recipe(model="sequence", positions="sinusoidal", steps=600),
        draw=draw,
        check=check,
        inputs=lambda keys: keys.vocab + 2,
        outputs=lambda keys: keys.vocab + 2,
        baselines=baselines,
    )


def make_baselines(keys: RewritingKeys, length: int, shortcuts: dict[str, float], caveat: str) -> Baselines:
    """The baselines of an answer whose tokens are uniform, before END."""
    majority = max(length / (length + 1) / keys.vocab, 1 / (length + 1))
    return Baselines(chance=1 / (keys.vocab + 1), majority=majority, shortcuts=shortcuts, caveat=caveat)


def compute_reversal_baselines(keys: RewritingKeys, length: int) -> Baselines:
    """The shortcuts predict END from the position, and guess the rest: any token, or a frequent one of the source."""
    source = np.random.default_rng(0).integers(keys.vocab, size=(GUESS_EXAMPLES, length))
    guessed = {"the position alone": 1 / keys.vocab}
    guessed["the most frequent token not yet written"] = guess_remaining_tokens(source, source[:, ::-1])
    shortcuts = {way: (length * share + 1) / (length + 1) for way, share in guessed.items()}
    caveat = (
        "How often tokens occur is enough for such a score, so the task does not show that models read their order."
    )
    return make_baselines(keys, length, shortcuts, caveat)


def compute_sorting_baselines(keys: RewritingKeys, length: int) -> Baselines:
    """The shortcut is to guess each token from its position and the previous one: the same, or the next larger one."""
    shortcuts = {"the position and the previous token": (_count_guessed(length, keys.vocab) + 1) / (length + 1)}
    caveat = "The answer so far is enough for such a score, so the task does not show that the source is read."
    return make_baselines(keys, length, shortcuts, caveat)


def _count_guessed(length: int, vocab: int) -> float:
    """The expected number of an answer's tokens guessed from position and last token, by order statistics.

    Position i has v, and the next one v again, v + 1, or more. The probability that i tokens are up to v and none after
    them equals v is C(n, i) (F(v)^i - F(v-1)^i) (1 - F(v))^(n-i), where F is the share of tokens up to v; the next
    larger one is analogous.
    """
    cdf = np.arange(vocab + 1) / vocab  # F(-1) to F(vocab - 1)
    positions = np.arange(length + 1)[:, None]
    log_factors = np.log(np.arange(length, 0, -1) / np.arange(1, length + 1))
    log_binomials = np.concatenate([[0.0], np.cumsum(log_factors)])[:, None]

    def product(low: Array, high: Array) -> Array:
        """C(n, i) low^i high^(n-i), in row i."""
        log_low, log_high = (np.log(np.maximum(x, MIN_PROBABILITY)) for x in (low, high))
        return np.exp(log_binomials + positions * log_low + (length - positions) * log_high)

    above = 1 - cdf[1:]
    higher = np.append(above[1:], 0.0)  # above v + 1
    at_least = product(cdf, 1 - cdf)[::-1].cumsum(0)[::-1]  # i tokens or more up to v
    holds = np.diff(at_least, axis=1)  # position i, counted from 1, has v
    ends = product(cdf[1:], above) - product(cdf[:-1], above)
    steps = ends - (product(cdf[1:], higher) - product(cdf[:-1], higher))  # and the next one up follows
    first = 1 - (1 - 1 / vocab) ** length
    return float(first + np.maximum(holds - ends, steps)[1:length].sum())


REVERSAL = make_problem("reversal", lambda source: source[:, ::-1], compute_reversal_baselines)
SORTING = make_problem("sorting", lambda source: np.sort(source, axis=1), compute_sorting_baselines)
