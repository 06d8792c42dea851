"""Reach: how far back models see, and the share of answers within that distance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny_suites
import tiny_training as tiny
import torch

from efficient_attn.tasks.problems.mqar import MqarKeys
from efficient_attn.tasks.training.learners import make_learner
from efficient_attn.tasks.training.reach import EXAMPLES, compute_lookback, compute_share_within, count_reach

TEXT = tiny_suites.TINY.replace("[16]", "[24]").replace("threads", "causal = [true], threads")


def _count(variant: str) -> int | None:
    (case,) = tiny_suites.plan(TEXT, variants=[variant])
    return count_reach(case)


@pytest.mark.parametrize(
    ("variant", "span"),
    [
        ("sliding_window:window=3", 4),  # with its own position
        ("sliding_window:window=99", 24),  # no further than the first
        ("dilated_window:window=2:dilation=3", 7),
        ("sliding_window:window=2|sliding_window:window=5", 6),
        ("full", None),
        ("linear", None),
        ("strided", None),
        ("fixed", None),
        ("random_blocks", None),
        ("attention_sinks", None),
        ("longformer", None),
        ("bigbird", None),
        ("luong_local", None),
    ],
)
def test_reach_of_a_mechanism(variant: str, span: int | None) -> None:
    assert _count(variant) == span


@pytest.mark.parametrize(("layers", "convolution"), [(1, 0), (2, 0), (3, 0), (1, 2), (2, 2), (2, 3)])
def test_lookback_of_a_model_is_as_computed(layers: int, convolution: int) -> None:
    """Changes each token in turn and compares the outputs at the last position."""
    problem = replace(tiny.TINY, recipe=replace(tiny.TINY.recipe, convolution=convolution, layers=layers))
    model = make_learner(problem, tiny.keys(), "sliding_window:window=3", length=24, seed=0).model
    tokens = torch.arange(24)[None] % 7
    changed = tokens.repeat(24, 1) + 10 * torch.eye(24, dtype=torch.int64)
    with torch.no_grad():
        before, after = (model(x)[:, -1] for x in (tokens, changed))
    visible_distances = [23 - n for n in range(24) if not torch.equal(before[0], after[n])]
    assert max(visible_distances) == compute_lookback(4, layers, convolution)
    if not convolution:
        assert compute_lookback(4, layers) == layers * (4 - 1)


@pytest.mark.parametrize("max_distance", [0, 3, 6, 12, 15])
def test_share_within_a_distance_matches_a_count(max_distance: int) -> None:
    keys = MqarKeys(vocab=32, pairs=3)
    batch = tiny.TINY.draw(keys, 16, EXAMPLES, np.random.default_rng(0), "test")
    near = answers = 0
    for tokens, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        for position, target in enumerate(targets):
            if target >= 0:
                answers += 1
                near += position - (tokens.index(tokens[position]) + 1) <= max_distance  # the value follows the key
    assert compute_share_within(tiny.TINY, keys, 16, max_distance) == near / answers
    assert compute_share_within(tiny.TINY, keys, 16, 15) == 1
