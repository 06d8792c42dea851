"""CIFAR-10: the class of a real image of 32 x 32 pixels, read as a sequence of grey levels, from files (Krizhevsky
2009). Long Range Arena's task of image classification (Tay et al. 2020, arXiv:2011.04006)."""

import numpy as np

from ...errors import UsageError
from ..training.problem import Baselines, Batch, LearnKeys, Problem, Recipe, Split
from .cifar10_files import CLASSES, PIXELS, read_images
from .scikit_learn import import_part

GREY_LEVELS = 256
BASELINE_EXAMPLES = 5000  # to which baselines are fitted, and as many on which they are tested
CAVEAT = "Comparing pixels is enough for such a score, so the task does not show that models need attention."


class Cifar10Keys(LearnKeys):
    """data: the folder ``cifar-10-batches-py``, with the files ``data_batch_1`` to ``data_batch_5`` and
    ``test_batch``."""

    data: str | None = None


def check(keys: Cifar10Keys, length: int) -> None:
    if length != PIXELS:
        raise UsageError(f"cifar10: an image is {PIXELS} pixels, which is the only length; got {length}")
    for split in ("train", "test"):
        read_images(_get_folder(keys), split)


def _get_folder(keys: Cifar10Keys) -> str:
    if keys.data is None:
        raise UsageError("cifar10: reads your files; give the folder cifar-10-batches-py: --data DIR")
    return keys.data


def draw(keys: Cifar10Keys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Grey levels ``[B, 1024]``, line by line, and labels ``[B]``, at most the whole split, each image once."""
    images, labels = read_images(_get_folder(keys), split)
    indices = generator.permutation(len(labels))[:count]
    return Batch(images[indices].astype(np.int64), labels[indices])


def baselines(keys: Cifar10Keys, length: int) -> Baselines:
    """Scikit-learn's classifiers of pixels. Raises `NotInstalled` without it."""
    train, test = (
        draw(keys, length, BASELINE_EXAMPLES, np.random.default_rng(seed), split)
        for seed, split in enumerate(("train", "test"))
    )
    pixels, test_pixels = (batch.inputs / (GREY_LEVELS - 1) for batch in (train, test))
    classifiers = {
        "nearest neighbour": import_part("neighbors", "the shortcuts of cifar10").KNeighborsClassifier(1),
        "ridge regression": import_part("linear_model", "the shortcuts of cifar10").RidgeClassifier(),
    }
    return Baselines(
        chance=1 / CLASSES,
        majority=float(np.bincount(test.targets).max() / len(test.targets)),
        shortcuts={
            name: float(classifier.fit(pixels, train.targets).score(test_pixels, test.targets))
            for name, classifier in classifiers.items()
        },
        caveat=CAVEAT,
    )


CIFAR10 = Problem(
    name="cifar10",
    keys=Cifar10Keys,
    recipe=Recipe(model="encoder", layers=2, positions="learned", steps=2000, batch=16),
    draw=draw,
    check=check,
    inputs=lambda keys: GREY_LEVELS,
    outputs=lambda keys: CLASSES,
    baselines=baselines,
)
