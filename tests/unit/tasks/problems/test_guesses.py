"""Guesses of tokens from the rest of a source."""

from __future__ import annotations

import numpy as np
import pytest

from efficient_attn.tasks.problems.guesses import guess_remaining_tokens


@pytest.mark.parametrize(
    ("source", "answer", "share"),
    [
        ([3, 3, 5], [3, 3, 5], 1),  # of equally frequent tokens the first is guessed
        ([5, 3, 5], [3, 5, 5], 2 / 3),
        ([1, 2, 3], [3, 2, 1], 1 / 3),
        ([1, 1, 2, 9], [9], 0),
        ([4], [4], 1),
    ],
)
def test_the_most_frequent_remaining_token_is_guessed(source: list[int], answer: list[int], share: float) -> None:
    assert guess_remaining_tokens(np.array([source]), np.array([answer])) == pytest.approx(share)
    sources, answers = np.array([source, source[::-1]]), np.array([answer, answer])
    assert guess_remaining_tokens(sources, answers) == pytest.approx(share)  # their order is not used
