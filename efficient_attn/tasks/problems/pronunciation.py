"""Pronunciation: from the letters of a word to its phones, whole words of the CMU Pronouncing Dictionary (grapheme to
phoneme, as in Yao & Zweig 2015, arXiv:1506.00196).

Words are split by their stems: in a split by words, two of five test words share theirs with a word of training.
"""

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Baselines, Batch, LearnKeys, Problem, Recipe, Split, make_answer_batch
from .cmudict_file import PHONES, read_words
from .letter_rules import predict_next_phones, pronounce

LETTERS = 27  # with padding
PLACE_RULE = "five letters at the same place and the last two phones"
BEGIN, END = 0, len(PHONES) + 1


def check(keys: LearnKeys, length: int) -> None:
    for split, (spellings, _) in read_words(length).items():
        if not len(spellings):
            raise UsageError(f"pronunciation: the {split} part has no word of at most {length} letters and phones")


def draw(keys: LearnKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Words of at most N letters and phones: letters ``[B, N]`` padded at their ends, and targets ``[B, T + 1]``, the
    phones and END, where T is the most phones of a word in the batch. At most the whole split, each word once."""
    spellings, pronunciations = read_words(length)[split]
    indices = generator.choice(len(spellings), min(count, len(spellings)), replace=False)
    inputs, answers = spellings[indices], pronunciations[indices]
    sizes = (answers > 0).sum(1)
    answers = answers[:, : sizes.max()]
    lengths = (inputs > 0).sum(1)
    return make_answer_batch(inputs, answers, begin=BEGIN, end=END, lengths=lengths, answer_lengths=sizes)


def compute_scores(keys: LearnKeys, length: int) -> dict[str, float]:
    """The share of whole test words by simple rules."""
    train, (spellings, answers) = (read_words(length)[split] for split in ("train", "test"))
    is_predicted, is_place = _predict_by_place(length)
    pronounced = pronounce(train, spellings) == np.pad(answers, ((0, 0), (0, length)))
    return {
        PLACE_RULE: float((is_predicted | ~is_place).all(1).mean()),
        "the phones of each letter in its longest known context": float(pronounced.all(1).mean()),
    }


def compute_phone_scores(keys: LearnKeys, length: int) -> dict[str, float]:
    """The share of the tests' phones, with the ends of words, that simple rules predict from those before."""
    answers = read_words(length)["test"][1]
    is_predicted, is_place = _predict_by_place(length)
    counts = np.append(np.bincount(answers[answers > 0]), len(answers))  # each word has an end
    return {
        "the most frequent phone, or the end": float(counts.max() / counts.sum()),
        PLACE_RULE: float(is_predicted[is_place].mean()),
    }


def _predict_by_place(length: int) -> tuple[Array, Array]:
    """Which of the tests' phones and ends are predicted by their place, and which there are, ``[S, N + 1]``."""
    train, test = (read_words(length)[split] for split in ("train", "test"))
    is_place = np.arange(length + 1) <= (test[1] > 0).sum(1, keepdims=True)
    return predict_next_phones(train, test) == np.pad(test[1], ((0, 0), (0, 1))), is_place


def baselines(keys: LearnKeys, length: int) -> Baselines:
    answers = read_words(length)["test"][1]
    _, counts = np.unique(answers, axis=0, return_counts=True)
    guesses = float(len(PHONES) + 1) ** -((answers > 0).sum(1) + 1.0)
    return Baselines(
        chance=float(guesses.mean()),
        majority=float(counts.max() / len(answers)),
        shortcuts=compute_scores(keys, length),
        caveat="Such a score needs no more than the letters next to each, looked up in the words of training.",
    )


PRONUNCIATION = Problem(
    name="pronunciation",
    keys=LearnKeys,
    recipe=Recipe(model="sequence", layers=2, positions="sinusoidal", steps=3000, learning_rates=(2e-3, 5e-4)),
    draw=draw,
    check=check,
    inputs=lambda keys: LETTERS,
    outputs=lambda keys: END + 1,
    baselines=baselines,
    metric="exact",
)
