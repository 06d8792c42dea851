"""Guesses of answers that are tokens of the input, scored on drawn examples: shortcuts of tasks with random tokens."""

import numpy as np

from ..training.problem import Array

GUESS_EXAMPLES = 2_000  # over which a score is counted


def guess_remaining_tokens(sources: Array, answers: Array) -> float:
    """The share of an answer's tokens ``[S, T]`` that are predicted by the most frequent token of the source ``[S, M]``
    that has not been written yet."""
    rows, counts = np.arange(len(sources)), np.zeros((len(sources), 1 + max(sources.max(), answers.max())), np.int32)
    np.add.at(counts, (rows[:, None], sources), 1)
    n_correct = 0
    for tokens in answers.T:
        n_correct += int((counts.argmax(1) == tokens).sum())
        counts[rows, tokens] -= 1
    return n_correct / answers.size
