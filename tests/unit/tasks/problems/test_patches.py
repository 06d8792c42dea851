"""Masked patches: cut as by the model, scaled and partly hidden; the mean image is the shortcut."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from efficient_attn.errors import UsageError
from efficient_attn.models.config import Config
from efficient_attn.models.vision import VisionTransformer
from efficient_attn.tasks.problems.digits import load_images
from efficient_attn.tasks.problems.patches import PATCHES, PatchesKeys, cut_patches

KEYS = PatchesKeys()


@pytest.mark.parametrize(("hidden", "length"), [(8, 64), (16, 16)])
def test_wrong_lengths_and_fully_hidden_images_are_refused(hidden: int, length: int) -> None:
    with pytest.raises(UsageError, match="16 patches, of which at least one is shown"):
        PATCHES.check(PatchesKeys(hidden=hidden), length)


def test_patches_match_those_of_the_model() -> None:
    images = np.random.default_rng(0).random((3, 1, 8, 8), dtype=np.float32)
    model = VisionTransformer(Config(d_model=8, heads=1, layers=1), image=(1, 8, 8), patch=2, classes=2)
    assert (cut_patches(images) == model.cut(torch.from_numpy(images)).numpy()).all()


@pytest.mark.parametrize("count", [1, 8, 15])
def test_the_requested_number_of_patches_is_hidden(count: int) -> None:
    pytest.importorskip("sklearn.datasets")
    batch = PATCHES.draw(PatchesKeys(hidden=count), 16, 50, np.random.default_rng(3), "train")
    assert batch.hidden is not None
    assert (batch.hidden.sum(1) == count).all()
    assert len({row.tobytes() for row in batch.hidden}) > 10  # not the same for all
    values = cut_patches(batch.inputs)[batch.hidden]
    scaling = np.polyfit(values.ravel(), batch.targets[batch.hidden].ravel(), 1)
    images = load_images("train")[0]
    assert scaling == pytest.approx([1 / images.std(), -images.mean() / images.std()], rel=1e-3)


def test_shortcut_is_the_score_of_the_mean_image() -> None:
    pytest.importorskip("sklearn.datasets")
    baselines = PATCHES.baselines(KEYS, 16)
    batch = PATCHES.draw(KEYS, 16, 300, np.random.default_rng(0), "test")
    images = load_images("train")[0]
    mean = (cut_patches(images).mean(0) - images.mean()) / images.std()
    assert batch.hidden is not None
    pairs = [(mean[p], batch.targets[i, p]) for i, p in zip(*np.nonzero(batch.hidden), strict=True)]
    error = sum(float(((m - t) ** 2).sum()) for m, t in pairs)
    assert baselines.shortcut == pytest.approx(1 - error / sum(float((t**2).sum()) for _, t in pairs), rel=1e-4)
    assert (baselines.chance, baselines.majority) == (0.0, 0.0)
