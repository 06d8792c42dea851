"""Digits: 1,797 real images of handwritten digits, 8 x 8, included in scikit-learn (Alpaydin & Kaynak 1998)."""

from functools import cache

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Baselines, Batch, LearnKeys, Problem, Recipe, Split
from .scikit_learn import import_part

N_PATCHES = 16  # of two by two points
N_HELD_OUT = 600  # images not used for training, half of them for validation


def check(keys: LearnKeys, length: int) -> None:
    if length != N_PATCHES:
        raise UsageError(f"digits: an image is {N_PATCHES} patches, which is the only length; got {length}")


@cache
def load_images(split: Split) -> tuple[Array, Array]:
    """Images ``[S, 1, 8, 8]`` with values from 0 to 1, and labels ``[S]``: 1,197, 300 and 300 of them, stratified by
    class. Raises `NotInstalled` without scikit-learn."""
    datasets = import_part("datasets", "digits")
    images, labels = (np.asarray(part) for part in datasets.load_digits(return_X_y=True))
    shuffled = np.random.default_rng(0).permutation(len(labels))  # neighbours are of one writer
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    held_out = np.arange(N_HELD_OUT) * len(order) // N_HELD_OUT  # evenly over the sorted classes
    parts = {"train": np.delete(order, held_out), "validation": order[held_out[::2]], "test": order[held_out[1::2]]}
    indices = parts[split]
    return (images[indices] / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels[indices]


def draw(keys: LearnKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Images ``[B, 1, 8, 8]`` and labels ``[B]``, at most the whole split, each image once."""
    images, labels = load_images(split)
    indices = generator.permutation(len(labels))[:count]
    return Batch(images[indices], labels[indices])


def baselines(keys: LearnKeys, length: int) -> Baselines:
    """Scikit-learn's classifiers of pixels with their default settings."""
    (images, labels), (test_images, test_labels) = load_images("train"), load_images("test")
    pixels, test_pixels = images.reshape(len(images), -1), test_images.reshape(len(test_images), -1)
    linear_models = import_part("linear_model", "digits")
    classifiers = {
        "nearest neighbour": import_part("neighbors", "digits").KNeighborsClassifier(1),
        "ridge regression": linear_models.RidgeClassifier(),
        "logistic regression": linear_models.LogisticRegression(max_iter=1000),
        "support vector machine": import_part("svm", "digits").SVC(),
    }
    return Baselines(
        chance=0.1,
        majority=float((test_labels == np.bincount(labels).argmax()).mean()),
        shortcuts={
            name: float((classifier.fit(pixels, labels).predict(test_pixels) == test_labels).mean())
            for name, classifier in classifiers.items()
        },
        caveat="Comparing pixels is enough for such a score, so the task shows what a model learns from 1,197 images,"
        " and not that it needs attention.",
    )


DIGITS = Problem(
    name="digits",
    keys=LearnKeys,
    recipe=Recipe(model="vision", layers=2, steps=2000, patch=2),
    draw=draw,
    check=check,
    inputs=lambda keys: 0,
    outputs=lambda keys: 10,
    baselines=baselines,
    image=(1, 8, 8),
)
