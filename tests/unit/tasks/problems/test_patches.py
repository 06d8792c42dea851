"""Masked patches: cut as by the model, scaled and partly hidden; and their prediction from training images."""

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


def test_shortcuts_match_predictions_image_by_image() -> None:
    pytest.importorskip("sklearn.datasets")
    baselines = PATCHES.baselines(KEYS, 16)
    batch = PATCHES.draw(KEYS, 16, 300, np.random.default_rng(0), "test")
    images = load_images("train")[0].astype(float)
    train, test = ((cut_patches(x) - images.mean()) / images.std() for x in (images, batch.inputs))
    assert batch.hidden is not None
    errors, total = dict.fromkeys(baselines.shortcuts, 0.0), 0.0
    covariance = np.cov(train.reshape(-1, 64).T)
    for image, hidden in zip(test, batch.hidden, strict=True):
        order = np.argsort(np.square(train - image)[:, ~hidden].sum((1, 2)))
        pixels = hidden.repeat(4)
        # regression of the hidden pixels on the visible ones, which has the same solution without shrinkage
        slopes = np.linalg.lstsq(covariance[~pixels][:, ~pixels], covariance[~pixels][:, pixels], rcond=1e-4)[0]
        offsets = (image[~hidden] - train.mean(0)[~hidden]).ravel() @ slopes
        predictions = {
            "mean image": train.mean(0)[hidden],
            "nearest image": train[order[0]][hidden],
            "mean of the five nearest images": train[order[:5]].mean(0)[hidden],
            "conditional mean of a Gaussian": train.mean(0)[hidden] + offsets.reshape(-1, 4),
        }
        total += np.square(image[hidden]).sum()
        for name, prediction in predictions.items():
            errors[name] += np.square(image[hidden] - prediction).sum()
    assert baselines.shortcuts.keys() == errors.keys()
    for name, error in errors.items():
        assert baselines.shortcuts[name] == pytest.approx(1 - error / total, abs=0.005), name
    assert baselines.shortcuts["conditional mean of a Gaussian"] == pytest.approx(0.742, abs=0.002)
    assert (baselines.chance, baselines.majority) == (0.0, 0.0)
