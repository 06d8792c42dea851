"""Simple properties of Pathfinder's images, which classifiers without attention use."""

import numpy as np

from ..training.problem import Array
from .pathfinder_drawing import DOT

WINDOW = 2  # cells around a dot in which its path has a direction
BRIGHT = 128  # grey level
CHUNK = 256  # images at a time


def measure_ink(images: Array) -> Array:
    """Of grey images ``[S, side, side]`` the mean, and the shares of pixels that are not black and that are bright."""
    return np.stack([x.mean((1, 2)) for x in (images, images > 0, images >= BRIGHT)], 1)


def measure_images(images: Array) -> dict[str, Array]:
    """Properties of generated images ``[S, side, side]``, each ``[S, F]``: distance of the dots, cells with ink, their
    distance from the centre, ink in the rectangle and near the line between the dots, and directions in which paths
    leave the dots."""
    parts = [_measure_chunk(images[i : i + CHUNK]) for i in range(0, len(images), CHUNK)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _measure_chunk(images: Array) -> dict[str, Array]:
    is_ink, dots = images > 0, np.argwhere(images == DOT)[:, 1:].reshape(-1, 2, 2)
    line = dots[:, 1] - dots[:, 0]
    distance = np.hypot(*line.T)
    first, second = (_find_directions(is_ink, dots[:, i]) for i in range(2))
    towards = (first * line).sum(1) / distance, -(second * line).sum(1) / distance
    in_rectangle, near_line = _locate_between(dots, images.shape[1])
    from_centre = np.hypot(*(np.mgrid[: images.shape[1], : images.shape[1]] - (images.shape[1] - 1) / 2))
    count = is_ink.sum((1, 2))
    columns = {
        "distance": [distance, distance**2],
        "ink": [count],
        "position of ink": [(is_ink * from_centre**power).sum((1, 2)) / count for power in (1, 2)],
        "ink between": [
            (is_ink & in_rectangle).sum((1, 2)),
            *((is_ink & region).sum((1, 2)) / region.sum((1, 2)) for region in (in_rectangle, near_line)),
        ],
        "directions": [towards[0] + towards[1], towards[0] * towards[1], (first * second).sum(1)],
    }
    return {name: np.stack(values, 1).astype(float) for name, values in columns.items()}


def _locate_between(dots: Array, side: int) -> tuple[Array, Array]:
    """The cells in the rectangle that has the dots ``[S, 2, 2]`` as corners, and those near the line between them,
    ``[S, side, side]`` each."""
    cells = np.moveaxis(np.mgrid[:side, :side], 0, -1)
    low, high = dots.min(1)[:, None, None], dots.max(1)[:, None, None]
    in_rectangle = ((cells >= low) & (cells <= high)).all(-1)
    offsets, line = cells - dots[:, 0, None, None], (dots[:, 1] - dots[:, 0])[:, None, None]
    distance = np.hypot(line[..., 0], line[..., 1])
    along = (offsets * line).sum(-1) / distance
    across = np.abs(offsets[..., 0] * line[..., 1] - offsets[..., 1] * line[..., 0]) / distance
    return in_rectangle, (along >= 0) & (along <= distance) & (across < 1.5)


def _find_directions(is_ink: Array, dots: Array) -> Array:
    """Unit vectors ``[S, 2]`` from dots ``[S, 2]`` to the mean of the ink around them; 0 without any."""
    padded = np.pad(is_ink, ((0, 0), (WINDOW, WINDOW), (WINDOW, WINDOW)))
    offsets = np.moveaxis(np.mgrid[-WINDOW : WINDOW + 1, -WINDOW : WINDOW + 1], 0, -1).reshape(-1, 2)
    near = dots[:, None] + offsets + WINDOW
    weights = padded[np.arange(len(dots))[:, None], near[..., 0], near[..., 1]]
    sums = (weights[..., None] * offsets).sum(1)
    return sums / np.maximum(np.hypot(*sums.T), 1e-9)[:, None]
