"""Digits: the splits, and the classifiers that models are compared with."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.digits import DIGITS, load_images
from efficient_attn.tasks.training.problem import LearnKeys

KEYS = LearnKeys()


def test_missing_scikit_learn_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from efficient_attn.errors import NotInstalled

    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    load_images.cache_clear()
    with pytest.raises(NotInstalled, match=r"pip install 'efficient-attn\[data\]'"):
        DIGITS.draw(KEYS, 16, 4, np.random.default_rng(0), "train")


def test_lengths_other_than_16_are_refused() -> None:
    with pytest.raises(UsageError, match="16 patches"):
        DIGITS.check(KEYS, 64)


def test_splits_are_disjoint_and_contain_every_class() -> None:
    sklearn = pytest.importorskip("sklearn.datasets")
    parts = [load_images(split) for split in ("train", "validation", "test")]
    assert [len(labels) for _, labels in parts] == [1197, 300, 300]
    together = np.concatenate([images.reshape(-1, 64) for images, _ in parts]) * 16
    every = sklearn.load_digits().data
    assert sorted(map(tuple, together)) == sorted(map(tuple, every))  # each once
    shares = np.stack([np.bincount(labels) / len(labels) for _, labels in parts])
    assert np.ptp(shares, axis=0).max() < 0.007
    values = parts[0][0]
    assert values.dtype == np.float32
    assert (values.min(), values.max()) == (0, 1)


def test_draws_contain_each_image_at_most_once() -> None:
    pytest.importorskip("sklearn.datasets")
    batch = DIGITS.draw(KEYS, 16, 512, np.random.default_rng(0), "test")
    assert batch.inputs.shape == (300, 1, 8, 8)
    assert len({image.tobytes() for image in batch.inputs}) == 300
    some = [DIGITS.draw(KEYS, 16, 8, np.random.default_rng(seed), "train") for seed in (1, 1, 2)]
    assert (some[0].inputs == some[1].inputs).all()
    assert (some[0].inputs != some[2].inputs).any()


def test_baselines_are_measured_on_the_test_split() -> None:
    pytest.importorskip("sklearn.datasets")
    (images, labels), (test_images, test_labels) = load_images("train"), load_images("test")
    distances = np.square(test_images[:, None].astype(float) - images).sum((2, 3, 4))
    baselines = DIGITS.baselines(KEYS, 16)
    assert baselines.shortcuts["nearest neighbour"] == np.mean(labels[distances.argmin(1)] == test_labels)
    worst_first = [0.943, 0.973, 0.983, 0.987]
    assert sorted(baselines.shortcuts.values()) == pytest.approx(worst_first, abs=0.01)
    assert baselines.majority == pytest.approx(0.1, abs=0.01)
