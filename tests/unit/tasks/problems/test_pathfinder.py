"""Pathfinder: draws with half of each label, sizes, and shortcuts that stay near chance."""

from __future__ import annotations

import numpy as np
import pytest
from pathfinder_solver import solve

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems import pathfinder
from efficient_attn.tasks.problems.pathfinder import PATHFINDER, PathfinderKeys, choose_sizes

KEYS = PathfinderKeys(side=16)


@pytest.mark.parametrize(("count", "positive"), [(1, None), (2, 1), (64, 32), (65, None), (200, 100)])
def test_half_of_the_images_have_connected_dots(count: int, positive: int | None) -> None:
    batch = PATHFINDER.draw(KEYS, 256, count, np.random.default_rng(0), "train")
    assert batch.inputs.shape == (count, 256)
    assert ((batch.inputs == 2).sum(1) == 2).all()
    assert positive is None or batch.targets.sum() == positive
    assert len(np.unique(batch.inputs, axis=0)) == count
    solutions = [solve(image, choose_sizes(KEYS).margin)[0] for image in batch.inputs.reshape(-1, 16, 16)]
    assert solutions == batch.targets.tolist()


def test_the_default_is_that_of_long_range_arena() -> None:
    keys = PathfinderKeys()
    PATHFINDER.check(keys, 1024)
    assert choose_sizes(keys).path_length == 10
    assert PATHFINDER.draw(keys, 1024, 8, np.random.default_rng(0), "test").inputs.shape == (8, 1024)


def test_paths_are_as_long_as_a_side_by_default() -> None:
    sizes = [choose_sizes(PathfinderKeys(side=24, dash=dash, gap=gap)) for dash, gap in ((1, 1), (2, 1), (4, 3))]
    assert [(x.path_length, x.count_cells(x.path_length)) for x in sizes] == [(12, 23), (8, 23), (3, 18)]


@pytest.mark.sampled(6)
def test_shortcuts_are_near_chance() -> None:
    pytest.importorskip("sklearn")
    shortcuts = dict(PATHFINDER.baselines(KEYS, 256).shortcuts)  # of 4,000 examples; expected of 20,000
    assert shortcuts.pop("random forest on all of these") == pytest.approx(0.656, abs=0.04)
    assert shortcuts.pop("logistic regression on ink") == 0.5  # all images have as much
    expected = {"distance": 0.5, "position of ink": 0.554, "ink between": 0.575, "directions": 0.518}
    expected["distance and ink"] = 0.5
    assert shortcuts == pytest.approx({f"logistic regression on {k}": v for k, v in expected.items()}, abs=0.03)


@pytest.mark.parametrize(
    ("keys", "length", "message"),
    [
        ({}, 256, "side=32 is a length of 1024, not 256; change side or seq_len"),
        ({"side": 16, "path_length": 40}, 256, "16 x 16 has too little room for 2 paths of 119 cells and 2 of 38, 2"),
        ({"side": 16, "distractors": 30}, 256, "too little room for 2 paths of 14 cells and 30 of 5"),
        ({"side": 2}, 4, "too little room"),
        ({"side": 1}, 1, "too little room"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(keys: dict[str, int], length: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PATHFINDER.check(PathfinderKeys(**keys), length)


def test_drawing_ends_where_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pathfinder, "MAX_POOLS", 2)
    with pytest.raises(UsageError, match="make them fewer or shorter"):
        PATHFINDER.draw(PathfinderKeys(side=8, path_length=9), 64, 4, np.random.default_rng(0), "train")
