"""Rules from letters to phones, as baselines of pronunciation: the most frequent phones in the most specific context of
letters that occurs in training (as in the tries of Daelemans & van den Bosch 1996, "Language-Independent Data-Oriented
Grapheme-to-Phoneme Conversion").

Spellings ``[S, N]`` have letters from 1 to 26, pronunciations ``[S, T]`` phones from 1 to 255, and 0 at their ends.
"""

from collections.abc import Sequence

import numpy as np

from ..training.problem import Array

WINDOWS = ((3, 5), (2, 5), (2, 4), (2, 3), (1, 3), (1, 2), (1, 1), (0, 1), (0, 0))  # letters before and after another
ROUNDS = 3  # of alignment; more do not change scores by more than a hundredth
SMOOTHING = 0.01  # added to the counts of a letter's phones
DIAGONAL = 8.0  # in the first round, weight of the difference of relative places


def predict_next_phones(train: tuple[Array, Array], test: tuple[Array, Array]) -> Array:
    """For each place in the tests' pronunciations and the one after the last, ``[S, T + 1]``, its phone, or 0 for the
    end, by the five letters around the same place of the spelling and the two phones before. train, test: spellings and
    pronunciations."""
    is_place = np.arange(train[1].shape[1] + 1) <= (train[1] > 0).sum(1, keepdims=True)
    contexts, test_contexts = (_list_place_contexts(*pair) for pair in (train, test))
    answers = np.pad(train[1], ((0, 0), (0, 1)))[is_place]
    return predict_by_context([x[is_place] for x in contexts], answers, test_contexts)


def _list_place_contexts(spellings: Array, pronunciations: Array) -> list[Array]:
    """Contexts ``[S, T + 1]``, from the most specific one."""
    count = pronunciations.shape[1] + 1
    last, before_last = (np.pad(pronunciations, ((0, 0), (n, 0)))[:, :count] for n in (1, 2))
    letters = np.pad(spellings, ((0, 0), (0, count)))
    widest, *narrower = (_pack_windows(letters, n, n)[:, :count] * 256 + last for n in (2, 1, 0))
    return [widest * 256 + before_last, widest, *narrower, last]


def pronounce(train: tuple[Array, Array], spellings: Array) -> Array:
    """Pronunciations ``[S, 2 N]``, padded with 0, of spellings by the phones of each letter in its context. train:
    spellings and pronunciations, whose letters are aligned with up to two phones each."""
    letters, phones = train
    base = int(phones.max()) + 1
    groups = align(letters, phones)
    is_letter = groups >= 0
    contexts = [_pack_windows(letters, *window)[is_letter] for window in WINDOWS]
    predicted = predict_by_context(contexts, groups[is_letter], [_pack_windows(spellings, *w) for w in WINDOWS])
    slots = np.stack([predicted % base, predicted // base], -1) * (spellings > 0)[..., None]
    slots = slots.reshape(len(spellings), -1)
    return np.take_along_axis(slots, np.argsort(slots == 0, axis=1, kind="stable"), axis=1)


def _pack_windows(spellings: Array, before: int, after: int) -> Array:
    """A number for the letters around each place, ``[S, N]``."""
    padded, packed = np.pad(spellings, ((0, 0), (before, after))), np.zeros(spellings.shape, dtype=np.int64)
    for offset in range(before + after + 1):
        packed = packed * 27 + padded[:, offset : offset + spellings.shape[1]]
    return packed


def predict_by_context(contexts: Sequence[Array], values: Array, test_contexts: Sequence[Array]) -> Array:
    """The most frequent value in the first of the contexts that occurs in training, in the shape of the tests'
    contexts; the most frequent of all if none does. contexts: one ``[S]`` for each kind, from the most specific one.
    values: ``[S]``, from 0. Of equally frequent values the smallest counts."""
    predicted = np.full(test_contexts[0].shape, np.bincount(values).argmax())
    is_open = np.ones(predicted.shape, dtype=bool)
    base = int(values.max()) + 1
    for train, test in zip(contexts, test_contexts, strict=True):
        pairs, counts = np.unique(train * base + values, return_counts=True)
        order = np.lexsort((-counts, pairs // base))
        keys, first = np.unique(pairs[order] // base, return_index=True)
        index = np.searchsorted(keys, test).clip(max=len(keys) - 1)
        is_known = is_open & (keys[index] == test)
        predicted[is_known] = (pairs[order][first] % base)[index[is_known]]
        is_open &= ~is_known
    return predicted


def align(spellings: Array, pronunciations: Array) -> Array:
    """The phones of each letter, ``[S, N]``: their sum if the second is multiplied by the number of phones, with 0;
    -1 for padding, and in words of more than two phones a letter. The most likely alignments and the frequencies of a
    letter's phones are computed in turn; at first, relative places count (hard expectation maximization)."""
    base, sizes = int(pronunciations.max()) + 1, (spellings > 0).sum(1)
    groups, scores = np.full(spellings.shape, -1), None
    for _ in range(ROUNDS):
        for size in np.unique(sizes):
            rows = sizes == size
            groups[rows, :size] = _align_words(spellings[rows, :size], pronunciations[rows], base, scores)
        counts = np.full((int(spellings.max()) + 1, base**2), SMOOTHING)
        np.add.at(counts, (spellings[groups >= 0], groups[groups >= 0]), 1)
        scores = np.log(counts / counts.sum(1, keepdims=True)).astype(np.float32)
    return groups


def _align_words(letters: Array, pronunciations: Array, base: int, scores: Array | None) -> Array:
    """The best alignment of words of the same number of letters, by dynamic programming over both. scores: logarithms
    of the probabilities of a letter's phones, ``[letters, base^2]``; None in the first round."""
    words, size = letters.shape
    phones = np.pad(pronunciations, ((0, 0), (0, 1))).T  # [T + 1, S]
    count, lengths = len(phones), (pronunciations > 0).sum(1)
    options = [np.zeros_like(phones), phones[:-1], phones[:-2] + base * phones[1:-1]]  # by the number of phones
    places = np.arange(count)[:, None] / np.maximum(lengths, 1)
    best = np.full((count, words), -np.inf, dtype=np.float32)
    best[0] = 0
    n_chosen = np.zeros((size, count, words), dtype=np.int8)
    for i in range(size):
        extended = np.full_like(best, -np.inf)
        for n, option in enumerate(options):
            if scores is None:
                distance = np.abs((i + 0.5) / size - places[: count - n] - 0.5 * n / np.maximum(lengths, 1))
                gain = -DIAGONAL * distance - abs(n - 1)
            else:
                gain = scores[letters[:, i], option]
            if n:
                gain = np.where(phones[n - 1 : count - 1] > 0, gain, -np.inf)
            reached = best[: count - n] + gain
            is_better = reached > extended[n:]
            extended[n:][is_better] = reached[is_better]
            n_chosen[i, n:][is_better] = n
        best = extended
    columns, position = np.arange(words), lengths.copy()
    groups = np.full((words, size), -1)
    is_aligned = np.isfinite(best[lengths, columns])
    for i in range(size - 1, -1, -1):
        n_phones = np.where(is_aligned, n_chosen[i, position, columns], 0)
        position = position - n_phones
        second = np.where(n_phones > 1, phones[np.minimum(position + 1, count - 1), columns], 0)
        first = np.where(n_phones > 0, phones[position, columns], 0)
        groups[:, i] = np.where(is_aligned, first + base * second, -1)
    return groups
