"""Reach: how far back models really see, and how much of a task lies within that."""

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
        ("sliding_window:window=3", 4),  # and its own
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
def test_the_reach_of_a_mechanism(variant: str, span: int | None) -> None:
    assert _count(variant) == span


@pytest.mark.parametrize(("layers", "convolution"), [(1, 0), (2, 0), (3, 0), (1, 2), (2, 2), (2, 3)])
def test_a_model_sees_as_far_as_is_computed_and_no_further(layers: int, convolution: int) -> None:
    """Every token is changed in turn: does the last position notice?"""
    problem = replace(tiny.TINY, recipe=replace(tiny.TINY.recipe, convolution=convolution, layers=layers))
    model = make_learner(problem, tiny.keys(), "sliding_window:window=3", length=24, seed=0).model
    tokens = torch.arange(24)[None] % 7
    changed = tokens.repeat(24, 1) + 10 * torch.eye(24, dtype=torch.int64)
    with torch.no_grad():
        before, after = (model(x)[:, -1] for x in (tokens, changed))
    noticed = [23 - n for n in range(24) if not torch.equal(before[0], after[n])]
    assert max(noticed) == compute_lookback(4, layers, convolution)
    if not convolution:
        assert compute_lookback(4, layers) == layers * (4 - 1)


@pytest.mark.parametrize("far", [0, 3, 6, 12, 15])
def test_the_share_within_is_what_is_counted_one_by_one(far: int) -> None:
    keys = MqarKeys(vocab=32, pairs=3)
    batch = tiny.TINY.draw(keys, 16, EXAMPLES, np.random.default_rng(0), "test")
    near = asked = 0
    for tokens, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        for place, target in enumerate(targets):
            if target >= 0:
                asked += 1
                near += place - (tokens.index(tokens[place]) + 1) <= far  # the value follows the key
    assert compute_share_within(tiny.TINY, keys, 16, far) == near / asked
    assert compute_share_within(tiny.TINY, keys, 16, 15) == 1
