"""Dates: "mon, 14 feb 2011" to "2011-02-14", a character a token: a small translation for attention between two
sequences (Bahdanau et al. 2014, arXiv:1409.0473). Unrelated words before the date make longer sources harder."""

from datetime import date
from functools import cache

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Baselines, Batch, LearnKeys, Problem, Recipe, Split, make_answer_batch
from .scikit_learn import import_part

WORD_LISTS = """january february march april may june july august september october november december
mon tue wed thu fri sat sun
dear sir paid due on from until signed letter order about the minutes of our meeting received at"""
MONTHS, DAYS, NOISE_WORDS = (line.split() for line in WORD_LISTS.splitlines())
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz ,./-"
BEGIN, END = len(ALPHABET), len(ALPHABET) + 1
MAX_DATE_CHARACTERS = len("september 30, 1987")  # a length is the largest number of characters in a source
TREE_EXAMPLES: dict[Split, int] = {"train": 4_000, "test": 1_000}
YEARS = range(1950, 2050)  # so that two digits determine the century
CODES = np.zeros(128, dtype=int)
CODES[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))

FORMATS = (
    lambda d: f"{d.day} {MONTHS[d.month - 1]} {d.year}",
    lambda d: f"{MONTHS[d.month - 1]} {d.day}, {d.year}",
    lambda d: f"{DAYS[d.weekday()]}, {d.day} {MONTHS[d.month - 1][:3]} {d.year}",
    lambda d: f"{d.month:02}/{d.day:02}/{d.year % 100:02}",  # slashes: the month first
    lambda d: f"{d.day}.{d.month}.{d.year}",  # dots: the day first
)


def check(keys: LearnKeys, length: int) -> None:
    if length < MAX_DATE_CHARACTERS:
        raise UsageError(f"dates: a date needs up to {MAX_DATE_CHARACTERS} characters, length {length} is too short")


@cache
def list_days(split: Split) -> Array:
    """A tenth of all days is for validation and a tenth for tests: no day is in two splits."""
    ordinals = np.arange(date(YEARS[0], 1, 1).toordinal(), date(YEARS[-1], 12, 31).toordinal() + 1)
    return ordinals[{"train": ordinals % 10 < 8, "validation": ordinals % 10 == 8, "test": ordinals % 10 == 9}[split]]


def draw(keys: LearnKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Sources ``[B, N]`` padded at their ends, targets ``[B, 11]``. Words fill a drawn length of each source."""
    dates = [date.fromordinal(day) for day in generator.choice(list_days(split), count).tolist()]
    formats = generator.integers(len(FORMATS), size=count)
    texts = [FORMATS[index](day) for index, day in zip(formats, dates, strict=True)]
    sources = [_prepend_noise(text, length, generator) for text in texts]
    inputs = np.stack([_encode(text.ljust(length)) for text in sources])
    answers = np.stack([_encode(day.isoformat()) for day in dates])
    return make_answer_batch(inputs, answers, begin=BEGIN, end=END, lengths=np.array([len(text) for text in sources]))


def _prepend_noise(text: str, length: int, generator: np.random.Generator) -> str:
    """A date with words before it, which contain no digit and no name of a month."""
    remaining, words = int(generator.integers(length - len(text) + 1)), []
    for word in generator.choice(NOISE_WORDS, remaining // 3 + 1).tolist():
        remaining -= len(word) + 1
        if remaining < 0:
            break
        words.append(word)
    return " ".join([*words, text])


def _encode(text: str) -> Array:
    return CODES[np.frombuffer(text.encode(), np.uint8)]


def baselines(keys: LearnKeys, length: int) -> Baselines:
    """Counted over all days of the tests, as much of a date can be predicted without its source; and by a decision tree
    for each character, from the last ones of the source and the answer so far."""
    answers = np.array([[*date.fromordinal(day).isoformat(), "$"] for day in list_days("test").tolist()])
    _, answers = np.unique(answers, return_inverse=True)
    answers = answers.reshape(len(list_days("test")), -1)
    n_correct, prefix_ids = 0, np.zeros(len(answers), dtype=int)
    for column in answers.T:  # the most frequent continuation after the same beginning
        extended_ids, counts = np.unique(prefix_ids * len(ALPHABET) + column, return_counts=True)
        best = np.zeros(prefix_ids.max() + 1, dtype=int)
        np.maximum.at(best, extended_ids // len(ALPHABET), counts)
        n_correct += best.sum()
        prefix_ids = np.searchsorted(extended_ids, prefix_ids * len(ALPHABET) + column)
    return Baselines(
        chance=1 / 12,  # ten digits, a hyphen, END
        majority=float(np.bincount(answers.ravel()).max() / answers.size),
        shortcuts={
            "the earlier characters": float(n_correct / answers.size),
            "decision trees on aligned characters": _score_trees(keys, length),
        },
        caveat="Characters at fixed places are enough for such a score, so the task does not show that models align"
        " sequences.",
    )


def _score_trees(keys: LearnKeys, length: int) -> float:
    trees = import_part("tree", "baselines of dates")
    train, test = (draw(keys, length, n, np.random.default_rng(0), split) for split, n in TREE_EXAMPLES.items())
    features, test_features, n_correct = _align(train), _align(test), 0
    for place, (labels, test_labels) in enumerate(zip(train.targets.T, test.targets.T, strict=True)):
        n = MAX_DATE_CHARACTERS + 1 + place  # the answer's later characters are not known yet
        tree = trees.DecisionTreeClassifier(random_state=0).fit(features[:, :n], labels)
        n_correct += int((tree.predict(test_features[:, :n]) == test_labels).sum())
    return n_correct / test.targets.size


def _align(batch: Batch) -> Array:
    """The last characters of each source, at the same places in all, and the input of the decoder."""
    assert batch.lengths is not None
    assert batch.begun is not None
    places = batch.lengths[:, None] - np.arange(MAX_DATE_CHARACTERS, 0, -1)
    characters = np.take_along_axis(batch.inputs, np.maximum(places, 0), axis=1)
    return np.hstack([np.where(places < 0, -1, characters), batch.begun])


DATES = Problem(
    name="dates",
    keys=LearnKeys,
    recipe=Recipe(model="sequence", positions="sinusoidal", steps=800),
    draw=draw,
    check=check,
    inputs=lambda keys: len(ALPHABET) + 2,
    outputs=lambda keys: len(ALPHABET) + 2,
    baselines=baselines,
)
