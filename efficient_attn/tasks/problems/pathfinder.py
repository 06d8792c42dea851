"""Pathfinder: whether a dashed path connects two dots, in an image that is read cell by cell (Linsley et al. 2018,
arXiv:1805.08315), in the form of Long Range Arena (Tay et al. 2020, arXiv:2011.04006), whose images are read from files
with ``data``. In generated images, dots have a token of their own, nothing is blurred, and paths never touch."""

import warnings
from typing import Annotated

import numpy as np
from pydantic import Field

from ...errors import UsageError
from ..training.problem import Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split
from .logistic_scores import score_logistic_regression
from .pathfinder_drawing import PathSizes, draw_pairs
from .pathfinder_features import measure_images, measure_ink
from .pathfinder_files import SHARES, list_images, read_images
from .scikit_learn import import_part

BASELINE_EXAMPLES = 4000  # to which baselines are fitted, and as many on which they are tested
N_TREES, MIN_LEAF = 60, 10  # of the forest: trees, and examples in a leaf
MIN_PAIRS = 4  # of the drawings that are made to check sizes
MAX_POOLS = 10_000  # of drawings for a batch
CAVEAT = "Such a score needs no path to be followed, so the task does not show that models do."


class PathfinderKeys(LearnKeys):
    """side: of the square image, in cells; the length is its square. path_length: dashes of the two long paths, by
    default as many as a side has room for. distractors: the number of short paths, by default an eighth of the side.
    distractor_length: their dashes, by default a third of ``path_length`` and at least two. dash, gap: in cells. data:
    a folder with LRA's ``imgs`` and ``metadata``, such as ``pathfinder32/curv_contour_length_14``, whose images of
    ``side`` pixels replace generated ones."""

    side: Count = 32
    path_length: Count | None = None
    distractors: Annotated[int, Field(ge=0, strict=True)] | None = None
    distractor_length: Count | None = None
    dash: Count = 2
    gap: Count = 1
    data: str | None = None


def choose_sizes(keys: PathfinderKeys) -> PathSizes:
    """The sizes of generated images, with their defaults."""
    path_length = keys.path_length or max(1, keys.side // (keys.dash + keys.gap))
    return PathSizes(
        side=keys.side,
        path_length=path_length,
        distractors=keys.side // 8 if keys.distractors is None else keys.distractors,
        distractor_length=keys.distractor_length or max(2, path_length // 3),
        dash=keys.dash,
        gap=keys.gap,
    )


def check(keys: PathfinderKeys, length: int) -> None:
    if length != keys.side**2:
        raise UsageError(
            f"pathfinder: side={keys.side} is a length of {keys.side**2}, not {length}; change side or seq_len"
        )
    if keys.data is None:
        sizes = choose_sizes(keys)
        if len(draw_pairs(sizes, np.random.default_rng(0))) < MIN_PAIRS:
            raise _make_error(sizes)
        return
    for split in SHARES:
        read_images(keys.data, keys.side, split)
    if empty := list_images(keys.data).empty:
        others = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        warnings.warn(f"pathfinder: {empty[0]}{others}: empty, left out", stacklevel=2)


def _make_error(sizes: PathSizes) -> UsageError:
    lengths = [sizes.count_cells(dashes) for dashes in (sizes.path_length, sizes.distractor_length)]
    paths = f"2 paths of {lengths[0]} cells and {sizes.distractors} of {lengths[1]}, {sizes.margin} cells apart"
    return UsageError(
        f"pathfinder: {sizes.side} x {sizes.side} has too little room for {paths}; make them fewer or shorter"
    )


def draw(keys: PathfinderKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Images ``[B, N]``, line by line, and labels ``[B]``: 1, for half of them, if the dots are connected. Tokens are
    0, 1 for dashes and 2 for dots; from files they are grey levels, and at most all images are drawn, each once."""
    if keys.data is not None:
        images, labels = read_images(keys.data, keys.side, split)
        indices = generator.permutation(len(labels))[:count]
        return Batch(images[indices].reshape(-1, length).astype(np.int64), labels[indices])
    sizes, pools = choose_sizes(keys), []
    while 2 * sum(map(len, pools)) < count:
        if len(pools) == MAX_POOLS:
            raise _make_error(sizes)
        pools.append(draw_pairs(sizes, generator))
    images = np.concatenate(pools)[: (count + 1) // 2].reshape(-1, length)
    order = generator.permutation(len(images))[:count]
    return Batch(images[order], order % 2)


def baselines(keys: PathfinderKeys, length: int) -> Baselines:
    """Scikit-learn's classifiers of simple properties of images. Raises `NotInstalled` without it."""
    train, test = (
        draw(keys, length, BASELINE_EXAMPLES, np.random.default_rng(seed), split)
        for seed, split in enumerate(("train", "test"))
    )
    import_part("linear_model", "the shortcuts of pathfinder")
    images = [batch.inputs.reshape(-1, keys.side, keys.side) for batch in (train, test)]
    features, shortcuts = [{"ink": measure_ink(x)} for x in images], dict[str, float]()
    if keys.data is None:
        features = [measure_images(x) for x in images]
        joined, test_joined = (np.hstack(list(part.values())) for part in features)
        forest = import_part("ensemble", "the shortcuts of pathfinder").RandomForestClassifier(
            N_TREES, min_samples_leaf=MIN_LEAF, random_state=0
        )
        score = forest.fit(joined, train.targets).score(test_joined, test.targets)
        shortcuts["random forest on all of these"] = float(score)
        features = [{**part, "distance and ink": np.hstack([part["distance"], part["ink"]])} for part in features]
    for name, values in features[0].items():
        score = score_logistic_regression(values, train.targets, features[1][name], test.targets)
        shortcuts[f"logistic regression on {name}"] = score
    majority = float(np.bincount(test.targets).max() / len(test.targets))
    return Baselines(chance=0.5, majority=majority, shortcuts=shortcuts, caveat=CAVEAT)


PATHFINDER = Problem(
    name="pathfinder",
    keys=PathfinderKeys,
    recipe=Recipe(model="encoder", layers=2, positions="learned", steps=2000),
    draw=draw,
    check=check,
    inputs=lambda keys: 3 if keys.data is None else 256,
    outputs=lambda keys: 2,
    baselines=baselines,
)
