"""Solve Pathfinder's images by joining cells that are near each other."""

from __future__ import annotations

import numpy as np

from efficient_attn.tasks.problems.pathfinder_drawing import DOT
from efficient_attn.tasks.training.problem import Array


def solve(image: Array, reach: int) -> tuple[bool, list[int]]:
    """Whether the dots are connected by steps of at most ``reach`` cells between cells with ink, and the number of
    cells with ink of each connected path, sorted."""
    points = np.argwhere(image > 0)
    near = np.abs(points[:, None] - points).max(-1) <= reach
    labels = np.arange(len(points))
    while True:
        lowest = np.where(near, labels, len(points)).min(1)
        if (lowest == labels).all():
            break
        labels = lowest
    ends = labels[image[tuple(points.T)] == DOT]
    assert len(ends) == 2
    return bool(ends[0] == ends[1]), sorted(np.unique(labels, return_counts=True)[1].tolist())
