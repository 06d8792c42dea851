"""Drawings of Pathfinder: labels by an independent solver, room between paths, and pairs with equal statistics."""

from __future__ import annotations

import numpy as np
import pytest
from pathfinder_solver import solve
from scipy import ndimage

from efficient_attn.tasks.problems.pathfinder_drawing import DOT, INK, PathSizes, draw_pairs
from efficient_attn.tasks.training.problem import Array

SIZES = {
    "side 16": PathSizes(side=16, path_length=5, distractors=2, distractor_length=2, dash=2, gap=1),
    "short dashes": PathSizes(side=14, path_length=5, distractors=1, distractor_length=3, dash=1, gap=1),
    "wide gaps": PathSizes(side=32, path_length=4, distractors=1, distractor_length=2, dash=3, gap=3),
    "no distractors": PathSizes(side=12, path_length=4, distractors=0, distractor_length=1, dash=2, gap=1),
    "short paths": PathSizes(side=12, path_length=2, distractors=3, distractor_length=1, dash=2, gap=1),
}


def _draw(sizes: PathSizes, pairs: int) -> Array:
    """At least so many pairs."""
    generator, drawn = np.random.default_rng(7), []
    while sum(map(len, drawn)) < pairs:
        drawn.append(draw_pairs(sizes, generator))
        assert len(drawn) < 200
    return np.concatenate(drawn)


@pytest.mark.parametrize("name", SIZES)
def test_following_dashes_gives_the_label(name: str) -> None:
    """Paths are the only groups of dashes, each with all its dashes: no two are near each other."""
    sizes = SIZES[name]
    long, short = sizes.path_length * sizes.dash, sizes.distractor_length * sizes.dash
    for pair in _draw(sizes, 60)[:60]:
        for connected, image in enumerate(pair):
            solution, counts = solve(image, sizes.margin)
            assert solution == bool(connected)
            assert counts == sorted([long] * 2 + [short] * sizes.distractors)


@pytest.mark.parametrize("name", SIZES)
def test_dots_are_ends_of_long_paths(name: str) -> None:
    """In the group of each dot, all dashes of a long path are connected without the dot, and the dot is an end."""
    sizes = SIZES[name]
    for image in _draw(sizes, 20)[:20].reshape(-1, sizes.side, sizes.side):
        components, _ = ndimage.label(image > 0, np.ones((3, 3)))
        for y, x in np.argwhere(image == DOT):
            assert (components == components[y, x]).sum() >= sizes.dash
            window = np.pad(image, 1)[y : y + 3, x : x + 3]
            assert (window > 0).sum() == 1 + (sizes.dash > 1)  # an end has at most one neighbour


def test_pairs_have_equal_ink_and_distances() -> None:
    images = _draw(SIZES["side 16"], 500)
    assert ((images > 0).sum((2, 3)) == 28).all()
    assert ((images == INK).sum((2, 3)) == 26).all()
    dots = np.argwhere(images == DOT)[:, 2:].reshape(len(images), 2, 2, 2)
    distances = np.hypot(*np.moveaxis(dots[:, :, 1] - dots[:, :, 0], -1, 0))
    assert (np.rint(distances[:, 0]) == np.rint(distances[:, 1])).all()
    assert len(np.unique(np.rint(distances))) > 8


@pytest.mark.sampled(6)
def test_every_cell_has_ink_as_often_with_either_label() -> None:
    """The largest of 256 differences of a cell's frequencies, in standard errors; as for dots alone."""
    images = _draw(SIZES["side 16"], 4000)
    for is_marked in (images > 0, images == DOT):
        shares = is_marked.mean(0)
        error = np.sqrt(2 * shares.mean(0) * (1 - shares.mean(0)) / len(images))
        folded = shares[1] - shares[0]
        assert np.abs(folded / error)[error > 0].max() < 7


def test_sizes_without_room_give_no_pairs() -> None:
    crowded = PathSizes(side=8, path_length=8, distractors=4, distractor_length=3, dash=2, gap=1)
    assert draw_pairs(crowded, np.random.default_rng(0)).shape == (0, 2, 8, 8)
