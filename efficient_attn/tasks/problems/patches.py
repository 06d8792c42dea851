"""Masked patches: half of a real image's patches are masked and predicted (masked autoencoders, He et al. 2021,
arXiv:2111.06377, and SimMIM, Xie et al. 2021, arXiv:2111.09886)."""

from functools import cache

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split
from . import digits
from .scikit_learn import import_part

PATCH_SIDE = 2  # pixels
ALL_EXAMPLES = 1_000_000  # more than a split has


class PatchesKeys(LearnKeys):
    """hidden: the number of masked patches of an image. The length is the number of all patches, 16."""

    hidden: Count = 8


def check(keys: PatchesKeys, length: int) -> None:
    if length != digits.N_PATCHES or keys.hidden >= digits.N_PATCHES:
        actual = f"got length {length} and hidden={keys.hidden}"
        raise UsageError(f"patches: an image is {digits.N_PATCHES} patches, of which at least one is shown; {actual}")


def cut_patches(images: Array) -> Array:
    """Patches of images ``[S, 1, 8, 8]``, line by line, ``[S, 16, 4]``."""
    lines = images.reshape(len(images), 8 // PATCH_SIDE, PATCH_SIDE, 8 // PATCH_SIDE, PATCH_SIDE)
    return lines.transpose(0, 1, 3, 2, 4).reshape(len(images), digits.N_PATCHES, PATCH_SIDE * PATCH_SIDE)


@cache
def compute_scale() -> tuple[float, float]:
    """Mean and standard deviation of the pixels of training images: chance is predicting these."""
    images, _ = digits.load_images("train")
    return float(images.mean()), float(images.std())


def draw(keys: PatchesKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Images ``[B, 1, 8, 8]``, and the masked patches' pixels, scaled to mean 0 and variance 1, NaN elsewhere."""
    images = digits.draw(keys, length, count, generator, split).inputs
    hidden = generator.random((len(images), length)).argsort(1) < keys.hidden
    mean, spread = compute_scale()
    values = ((cut_patches(images) - mean) / spread).astype(np.float32)
    return Batch(images, np.where(hidden[..., None], values, np.float32(np.nan)), hidden=hidden)


def baselines(keys: PatchesKeys, length: int) -> Baselines:
    """Predictions of the masked pixels from training images: their mean, the nearest by the visible pixels, and the
    conditional mean of a Gaussian with the mean and the covariance, shrunk as by Ledoit & Wolf 2004, of all pixels."""
    mean, spread = compute_scale()
    batch = draw(keys, length, ALL_EXAMPLES, np.random.default_rng(0), "test")
    pixels, test = (
        ((cut_patches(images).astype(float) - mean) / spread).reshape(len(images), -1)
        for images in (digits.load_images("train")[0], batch.inputs)
    )
    assert batch.hidden is not None
    hidden = batch.hidden.repeat(PATCH_SIDE * PATCH_SIDE, axis=1)
    visible = np.where(hidden, np.nan, test)
    impute, gaussian = import_part("impute", "patches"), import_part("covariance", "patches").LedoitWolf().fit(pixels)
    predictions = {
        "mean image": np.broadcast_to(gaussian.location_, test.shape),
        "nearest image": impute.KNNImputer(n_neighbors=1).fit(pixels).transform(visible),
        "mean of the five nearest images": impute.KNNImputer(n_neighbors=5).fit(pixels).transform(visible),
        "conditional mean of a Gaussian": _predict_hidden(gaussian.location_, gaussian.covariance_, visible),
    }
    total = np.square(test[hidden]).sum()
    return Baselines(
        chance=0.0,
        majority=0.0,
        shortcuts={
            name: float(1 - np.square((prediction - test)[hidden]).sum() / total)
            for name, prediction in predictions.items()
        },
        caveat="Similar training images are enough for such a score, so the task shows what a model learns from 1,197"
        " images, and not that it needs attention.",
    )


def _predict_hidden(mean: Array, covariance: Array, visible: Array) -> Array:
    """Images ``[S, W]`` with each pixel that is NaN replaced by its conditional mean given the others."""
    complete = visible.copy()
    for image in complete:
        hidden = np.isnan(image)
        weights = np.linalg.solve(covariance[~hidden][:, ~hidden], (image - mean)[~hidden])
        image[hidden] = mean[hidden] + covariance[hidden][:, ~hidden] @ weights
    return complete


PATCHES = Problem(
    name="patches",
    keys=PatchesKeys,
    recipe=Recipe(model="patches", layers=2, steps=6000, patch=PATCH_SIDE, solved=1.0),
    draw=draw,
    check=check,
    inputs=lambda keys: 0,
    outputs=lambda keys: PATCH_SIDE * PATCH_SIDE,
    baselines=baselines,
    metric="explained",
    image=(1, 8, 8),
)
