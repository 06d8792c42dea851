"""Dates: "mon, 14 feb 2011" to "2011-02-14", a character a token: a small translation for attention between two
sequences (Bahdanau et al. 2014, arXiv:1409.0473). Words that mean nothing stand before the date, so that a longer
source hides it better."""

from __future__ import annotations

from datetime import date
from functools import cache

import numpy as np

from ...errors import UsageError
from ..training.answers import answered
from ..training.problem import Array, Baselines, Batch, LearnKeys, Problem, Recipe, Split

NAMES = """january february march april may june july august september october november december
mon tue wed thu fri sat sun
dear sir paid due on from until signed letter order about the minutes of our meeting received at"""
MONTHS, DAYS, NOISE = (line.split() for line in NAMES.splitlines())
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz ,./-"
BEGIN, END = len(ALPHABET), len(ALPHABET) + 1
LONGEST = len("september 30, 1987")
YEARS = range(1950, 2050)  # so that two digits say the century
CODES = np.zeros(128, dtype=int)
CODES[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))

FORMS = (
    lambda d: f"{d.day} {MONTHS[d.month - 1]} {d.year}",
    lambda d: f"{MONTHS[d.month - 1]} {d.day}, {d.year}",
    lambda d: f"{DAYS[d.weekday()]}, {d.day} {MONTHS[d.month - 1][:3]} {d.year}",
    lambda d: f"{d.month:02}/{d.day:02}/{d.year % 100:02}",  # slashes: the month first
    lambda d: f"{d.day}.{d.month}.{d.year}",  # dots: the day first
)


class DatesKeys(LearnKeys):
    """Nothing besides; the length is the most characters that a source may have."""


def check(keys: DatesKeys, length: int) -> None:
    if length < LONGEST:
        raise UsageError(f"dates: a date takes up to {LONGEST} characters, a length of {length} is too short")


@cache
def days(split: Split) -> Array:
    """A tenth of all days is for validation and a tenth for tests: no day is in two splits."""
    every = np.arange(date(YEARS[0], 1, 1).toordinal(), date(YEARS[-1], 12, 31).toordinal() + 1)
    return every[{"train": every % 10 < 8, "validation": every % 10 == 8, "test": every % 10 == 9}[split]]


def draw(keys: DatesKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Sources ``[B, N]`` padded at their ends, targets ``[B, 11]``. How long a source may be is drawn evenly, and
    filled with words as far as they fit."""
    drawn = [date.fromordinal(day) for day in generator.choice(days(split), count).tolist()]
    texts = [FORMS[form](day) for form, day in zip(generator.integers(len(FORMS), size=count), drawn, strict=True)]
    sources = [_hide(text, length, generator) for text in texts]
    inputs = np.stack([_encode(text.ljust(length)) for text in sources])
    answers = np.stack([_encode(day.isoformat()) for day in drawn])
    return answered(inputs, answers, begin=BEGIN, end=END, lengths=np.array([len(text) for text in sources]))


def _hide(text: str, length: int, generator: np.random.Generator) -> str:
    """A date with words before it, which hold no digit and no name of a month."""
    room, words = int(generator.integers(length - len(text) + 1)), []
    for word in generator.choice(NOISE, room // 3 + 1).tolist():
        room -= len(word) + 1
        if room < 0:
            break
        words.append(word)
    return " ".join([*words, text])


def _encode(text: str) -> Array:
    return CODES[np.frombuffer(text.encode(), np.uint8)]


def baselines(keys: DatesKeys, length: int) -> Baselines:
    """Counted over all days of the tests: much of a date is known without its source."""
    answers = np.array([[*date.fromordinal(day).isoformat(), "$"] for day in days("test").tolist()])
    _, answers = np.unique(answers, return_inverse=True)
    answers = answers.reshape(len(days("test")), -1)
    guessed, before = 0, np.zeros(len(answers), dtype=int)
    for column in answers.T:  # of those that began alike, the most go on alike
        together, counts = np.unique(before * len(ALPHABET) + column, return_counts=True)
        best = np.zeros(before.max() + 1, dtype=int)
        np.maximum.at(best, together // len(ALPHABET), counts)
        guessed += best.sum()
        before = np.searchsorted(together, before * len(ALPHABET) + column)
    return Baselines(
        chance=1 / 12,  # ten digits, a hyphen, END
        majority=float(np.bincount(answers.ravel()).max() / answers.size),
        shortcut=float(guessed / answers.size),
        way="the answer's earlier characters",
    )


DATES = Problem(
    name="dates",
    title="Dates",
    sentence="A date in one of five forms, after words that mean nothing, is written as YYYY-MM-DD by characters.",
    keys=DatesKeys,
    recipe=Recipe(model="sequence", positions="sinusoidal", steps=800),
    draw=draw,
    check=check,
    inputs=lambda keys: len(ALPHABET) + 2,
    outputs=lambda keys: len(ALPHABET) + 2,
    baselines=baselines,
)
