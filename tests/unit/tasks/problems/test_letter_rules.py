"""Rules from letters to phones, compared with counts in dictionaries, and on languages whose rules are known."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from efficient_attn.tasks.problems.letter_rules import align, predict_by_context, predict_next_phones, pronounce
from efficient_attn.tasks.training.problem import Array

# phones of the letters a to e; of a before b, it is 9
GROUPS: dict[int, tuple[int, ...]] = {1: (1,), 2: (2,), 3: (), 4: (3, 4), 5: (5,)}


def _draw_words(count: int, seed: int, *, context: bool = False) -> tuple[Array, Array, list[list[tuple[int, ...]]]]:
    """Spellings, pronunciations, and the phones of each letter, of words of 4 to 9 letters."""
    generator = np.random.default_rng(seed)
    spellings, pronunciations, groups = np.zeros((count, 9), int), np.zeros((count, 18), int), []
    for row in range(count):
        letters = generator.integers(1, 6, size=generator.integers(4, 10))
        groups.append([GROUPS[letter] for letter in letters.tolist()])
        for i in range(len(letters) - 1):
            if context and (letters[i], letters[i + 1]) == (1, 2):
                groups[-1][i] = (9,)
        phones = [phone for group in groups[-1] for phone in group]
        spellings[row, : len(letters)], pronunciations[row, : len(phones)] = letters, phones
    return spellings, pronunciations, groups


def test_letters_are_aligned_with_their_phones() -> None:
    spellings, pronunciations, groups = _draw_words(500, 0)
    expected = np.full(spellings.shape, -1)
    for row, group in enumerate(groups):
        expected[row, : len(group)] = [sum(p * 6**i for i, p in enumerate(phones)) for phones in group]
    assert (align(spellings, pronunciations) == expected).all()


def test_words_of_too_many_phones_are_not_aligned() -> None:
    spellings, pronunciations, _ = _draw_words(100, 0)
    spellings[0] = [1, 0, 0, 0, 0, 0, 0, 0, 0]
    pronunciations[0, :3], pronunciations[0, 3:] = 1, 0
    groups = align(spellings, pronunciations)
    assert (groups[0] == -1).all()
    assert ((groups[1:] >= 0) == (spellings[1:] > 0)).all()


def test_rules_of_a_language_with_contexts_are_learned() -> None:
    (spellings, pronunciations, _), (others, expected, _) = (_draw_words(n, n, context=True) for n in (3000, 200))
    assert (pronounce((spellings, pronunciations), others) == expected).all(1).mean() > 0.95


def test_values_are_the_most_frequent_in_the_first_known_context() -> None:
    generator = np.random.default_rng(0)
    contexts, tests = (generator.integers(8, size=(3, count)) for count in (200, 300))
    wide, narrow = ([8 * x[0] + x[1], x[0]] for x in (contexts, tests + np.array([[0], [2], [0]])))
    values = generator.integers(5, size=200)
    counts: list[defaultdict[int, Counter[int]]] = [defaultdict(Counter) for _ in range(2)]
    for i, value in enumerate(values.tolist()):
        for kind in range(2):
            counts[kind][int(wide[kind][i])][value] += 1
    predicted = predict_by_context(wide, values, narrow)
    n_wide = 0
    for i, value in enumerate(predicted.tolist()):
        kind = 0 if int(narrow[0][i]) in counts[0] else 1
        n_wide += kind == 0
        known = counts[kind][int(narrow[kind][i])]
        assert value == min(known, key=lambda x: (-known[x], x))
    assert 0 < n_wide < 300
    assert predict_by_context([np.array([1, 1, 2])], np.array([4, 3, 3]), [np.array([7])]).tolist() == [3]


@pytest.mark.parametrize("length", [9, 12])
def test_next_phones_are_predicted_by_place_and_last_two(length: int) -> None:
    """A dictionary of counts, in which each context has the phones that follow."""
    (spellings, pronunciations, _), (others, answers, _) = (_draw_words(n, n, context=True) for n in (300, 50))
    spellings, others = (np.pad(x, ((0, 0), (0, length - 9))) for x in (spellings, others))

    def list_contexts(letters: Array, phones: Array, place: int) -> list[tuple[int, ...]]:
        around = [int(letters[j]) if 0 <= j < length else 0 for j in range(place - 2, place + 3)]
        last, before = (int(phones[place - n]) if place >= n else 0 for n in (1, 2))
        return [(*around, last, before), (*around, last), (*around[1:4], last), (around[2], last), (last,)]

    counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for letters, phones in zip(spellings, np.pad(pronunciations, ((0, 0), (0, 1))), strict=True):
        for place in range((phones > 0).sum() + 1):
            for context in list_contexts(letters, phones, place):
                counts[context][int(phones[place])] += 1
    predicted = predict_next_phones((spellings, pronunciations), (others, answers))
    assert predicted.shape == (50, 19)
    for row, (letters, phones) in enumerate(zip(others, answers, strict=True)):
        for place in range((phones > 0).sum() + 1):
            known = next(counts[c] for c in list_contexts(letters, phones, place) if c in counts)
            assert predicted[row, place] == min(known, key=lambda x: (-known[x], x))
