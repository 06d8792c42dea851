"""Masked patches: half of a real image's patches are masked and predicted (masked autoencoders, He et al. 2021,
arXiv:2111.06377, and SimMIM, Xie et al. 2021, arXiv:2111.09886)."""

from functools import cache

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split
from . import digits

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
    """The shortcut is to predict the mean image."""
    mean, spread = compute_scale()
    mean_patches = ((cut_patches(digits.load_images("train")[0]) - mean) / spread).mean(0)
    targets = draw(keys, length, ALL_EXAMPLES, np.random.default_rng(0), "test").targets
    residual, total = np.nansum(np.square(targets - mean_patches)), np.nansum(np.square(targets))
    return Baselines(chance=0.0, majority=0.0, shortcut=float(1 - residual / total), way="the mean image")


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
