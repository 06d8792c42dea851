"""Dates: sources are parsed by a reader that is independent of the generator."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from datetime import date

import numpy as np
import pytest

from efficient_attn.errors import NotInstalled, UsageError
from efficient_attn.tasks.problems.dates import ALPHABET, BEGIN, DATES, END, MAX_DATE_CHARACTERS, _align, list_days
from efficient_attn.tasks.training.problem import LearnKeys

KEYS = LearnKeys()
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def _read(text: str) -> str:
    if match := re.search(r"(\d\d)/(\d\d)/(\d\d)$", text):
        month, day, year = map(int, match.groups())
        year += 1900 if year >= 50 else 2000
    elif match := re.search(r"(\d+)\.(\d+)\.(\d{4})$", text):
        day, month, year = map(int, match.groups())
    elif match := re.search(r"([a-z]+) (\d+), (\d{4})$", text):
        month, day, year = MONTHS.index(match[1][:3]) + 1, int(match[2]), int(match[3])
    else:
        match = re.search(r"(\d+) ([a-z]+) (\d{4})$", text)
        assert match, text
        day, month, year = int(match[1]), MONTHS.index(match[2][:3]) + 1, int(match[3])
        if weekday := re.search(r"(\w{3}), \d", text):
            assert weekday[1] == WEEKDAYS[date(year, month, day).weekday()]
    return f"{year}-{month:02}-{day:02}"


@pytest.mark.parametrize("length", [MAX_DATE_CHARACTERS, 48])
def test_sources_can_be_parsed_to_their_targets(length: int) -> None:
    DATES.check(KEYS, length)
    batch = DATES.draw(KEYS, length, 400, np.random.default_rng(0), "train")
    assert batch.lengths is not None
    assert batch.begun is not None
    kinds, filled = set(), []
    for tokens, count, target in zip(batch.inputs, batch.lengths, batch.targets, strict=True):
        text = "".join(ALPHABET[i] for i in tokens[:count])
        assert _read(text) == "".join(ALPHABET[i] for i in target[:-1])
        kinds.add(re.sub(r"[a-z]+", "a", re.sub(r"\d+", "1", text)).split("a a ")[-1])
        filled.append(count / length)
    assert (batch.targets[:, -1] == END).all()
    assert (batch.begun == np.hstack([np.full((400, 1), BEGIN), batch.targets[:, :-1]])).all()
    assert len(kinds) >= 5
    assert max(filled) > 0.9
    assert batch.inputs.max() < DATES.inputs(KEYS)


def test_no_day_is_in_two_splits() -> None:
    parts = [set(list_days(split).tolist()) for split in ("train", "validation", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 36525
    batch = DATES.draw(KEYS, 48, 100, np.random.default_rng(0), "test")
    drawn = {date.fromisoformat("".join(ALPHABET[i] for i in row[:-1])).toordinal() for row in batch.targets}
    assert drawn <= parts[2]


def test_baselines_are_counted_over_test_days() -> None:
    baselines = DATES.baselines(KEYS, 48)
    following: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for day in list_days("test").tolist():
        text = f"{date.fromordinal(day).isoformat()}$"
        for i, letter in enumerate(text):
            following[text[:i]][letter] += 1
    letters = sum(following.values(), Counter())
    assert baselines.majority == pytest.approx(max(letters.values()) / letters.total())
    share = sum(max(c.values()) for c in following.values()) / letters.total()
    assert baselines.shortcuts["the earlier characters"] == pytest.approx(share)


@pytest.mark.parametrize("length", [MAX_DATE_CHARACTERS, 40])
def test_decision_trees_find_most_characters(length: int) -> None:
    """They need more than the year, which is at the end of most sources, and see no later character of the answer."""
    share = DATES.baselines(KEYS, length).shortcuts["decision trees on aligned characters"]
    assert 0.97 < share < 1


def test_characters_are_aligned_at_the_end_of_each_source() -> None:
    batch = DATES.draw(KEYS, 40, 50, np.random.default_rng(0), "train")
    assert batch.lengths is not None
    assert batch.begun is not None
    features = _align(batch)
    assert (features[:, MAX_DATE_CHARACTERS:] == batch.begun).all()
    for row, tokens, length in zip(features.tolist(), batch.inputs.tolist(), batch.lengths.tolist(), strict=True):
        end = tokens[:length][-MAX_DATE_CHARACTERS:]
        assert row[:MAX_DATE_CHARACTERS] == [-1] * (MAX_DATE_CHARACTERS - len(end)) + end


def test_missing_scikit_learn_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.tree", None)
    with pytest.raises(NotInstalled, match=r"baselines of dates need scikit-learn; run: pip install"):
        DATES.baselines(KEYS, 48)


def test_too_few_characters_are_refused() -> None:
    with pytest.raises(UsageError, match="dates: a date needs up to 18"):
        DATES.check(KEYS, 17)
