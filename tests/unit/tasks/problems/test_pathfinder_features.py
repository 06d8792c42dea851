"""Properties of images: each by hand in a small drawing."""

from __future__ import annotations

import numpy as np
import pytest

from efficient_attn.tasks.problems.pathfinder_features import measure_images, measure_ink

DRAWING = """
. . . . . . . .
. O # . . . . .
. . . . # . . .
. . . . . # . .
. . . . . . . .
. . . . . # O .
. . . . . . . .
# # . . . . . .
"""


def test_properties_of_a_drawing() -> None:
    image = np.array([[".#O".index(x) for x in line.split()] for line in DRAWING.strip().splitlines()])
    features = {name: values[0] for name, values in measure_images(image[None]).items()}
    distance = np.hypot(4, 5)
    assert features["distance"] == pytest.approx([distance, 41])
    assert features["ink"] == [8]
    offsets = np.argwhere(image) - 3.5
    assert features["position of ink"] == pytest.approx([np.hypot(*offsets.T).mean(), (offsets**2).sum(1).mean()])
    count, in_rectangle, near_line = features["ink between"]
    assert (count, in_rectangle) == (6, 6 / 30)
    cells = np.argwhere(np.ones((8, 8))) - (1, 1)
    along, across = cells @ (4, 5) / distance, np.abs(cells @ (5, -4)) / distance
    near = ((along >= 0) & (along <= distance) & (across < 1.5)).reshape(8, 8)
    assert near_line == pytest.approx((image[near] > 0).sum() / near.sum())
    first, second, line = np.array([0, 1]), np.array([-1, -1]) / np.sqrt(2), np.array([4, 5]) / distance
    towards = first @ line, -second @ line  # the second is the mean of (0, -1) and (-2, -1) from the dot
    assert features["directions"] == pytest.approx([sum(towards), towards[0] * towards[1], first @ second])


def test_many_images_are_measured_in_parts() -> None:
    image = np.array([[".#O".index(x) for x in line.split()] for line in DRAWING.strip().splitlines()])
    flipped = np.stack([image, image[::-1], image[:, ::-1], image.T] * 100)
    single, many = measure_images(image[None]), measure_images(flipped)
    for name, values in many.items():
        assert values.shape == (400, single[name].shape[1])
        assert values == pytest.approx(np.repeat(single[name], 400, 0))  # properties do not depend on orientation


def test_ink_of_grey_images() -> None:
    images = np.array([[[0, 0], [100, 200]], [[0, 0], [0, 0]]])
    assert measure_ink(images).tolist() == [[75, 0.5, 0.25], [0, 0, 0]]
