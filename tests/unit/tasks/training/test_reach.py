"""Reach: how far back models see, and the share of answers within that distance."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny_suites
import tiny_training as tiny
import torch
from numpy.typing import NDArray

from efficient_attn.results.store import read
from efficient_attn.tasks.problems.copying import COPYING
from efficient_attn.tasks.problems.induction import INDUCTION
from efficient_attn.tasks.problems.mqar import MQAR, MqarKeys
from efficient_attn.tasks.problems.selective_copying import SELECTIVE_COPYING, SelectiveCopyingKeys
from efficient_attn.tasks.training.learners import make_learner
from efficient_attn.tasks.training.loop import draw
from efficient_attn.tasks.training.problem import IGNORED
from efficient_attn.tasks.training.reach import compute_lookback, compute_reach_score, compute_share_within, count_reach
from efficient_attn.tasks.training.shortcuts import compute_baselines, make_drawing_setup

WINDOWED = {problem.name: problem for problem in (MQAR, INDUCTION, COPYING, SELECTIVE_COPYING)}
EXAMPLES = 100

TEXT = tiny_suites.TINY.replace("[16]", "[24]").replace("threads", "causal = [true], threads")


def _count(variant: str) -> int | None:
    (case,) = tiny_suites.plan(TEXT, variants=[variant])
    return count_reach(case)


@pytest.mark.parametrize(
    ("variant", "span"),
    [
        ("sliding_window:window=3", 4),  # with its own position
        ("sliding_window:window=99", 24),  # no further than the first
        ("dilated_window:window=2:dilation=3", None),  # with gaps
        ("sliding_window:window=2|dilated_window:window=2:dilation=2", None),
        ("sliding_window:window=3|dilated_window:window=2:dilation=2", 5),
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


def _find_needed(name: str, tokens: list[int], query: int) -> list[int]:
    """The positions of the tokens without which the answer at a query is not known, from the tokens alone."""
    if name in ("mqar", "induction"):
        key = tokens.index(tokens[query])
        return [key, key + 1]
    if name == "copying":
        return [query - len(tokens) // 2]
    blank, mark = SelectiveCopyingKeys().vocab, SelectiveCopyingKeys().vocab + 1
    copied = [position for position, token in enumerate(tokens) if token not in (blank, mark)]
    return copied[query - tokens.index(mark) :]  # with those after it, which tell its number


@cache
def _list_needs(name: str) -> tuple[list[int], list[list[int]]]:
    """The queries of all test examples, and the positions that each needs."""
    problem = WINDOWED[name]
    batch = draw(make_drawing_setup(problem, problem.keys(), 64), "test", EXAMPLES, 0)
    rows, queries = (indices.tolist() for indices in np.nonzero(batch.targets != IGNORED))
    inputs = batch.inputs.tolist()
    return queries, [_find_needed(name, inputs[row], query) for row, query in zip(rows, queries, strict=True)]


def _compute_flow(window: int, layers: int, convolution: int) -> NDArray[np.bool_]:
    """Whether information about position j ``[.., j]`` reaches position i ``[i, ..]``, layer by layer."""
    back = np.subtract.outer(np.arange(64), np.arange(64))
    mixed = (back >= 0) & (back < max(1, convolution))
    attended = (back >= 0) & (back <= window)
    flow = np.eye(64, dtype=bool)
    for _ in range(layers):
        flow |= attended @ mixed @ flow
    return flow


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize(("layers", "convolution"), [(1, 2), (2, 2), (3, 2), (1, 0), (2, 0), (1, 3), (2, 4)])
def test_reach_is_that_of_enumerated_paths(name: str, layers: int, convolution: int) -> None:
    queries, needs = _list_needs(name)
    problem = WINDOWED[name]
    keys = problem.keys(examples=EXAMPLES)
    for window in (0, 1, 4, 7, 8, 16, 24, 32, 47, 48):
        flow = _compute_flow(window, layers, convolution)
        reached = [bool(flow[query, needed].all()) for query, needed in zip(queries, needs, strict=True)]
        lookback = compute_lookback(window + 1, layers, convolution)
        assert compute_share_within(problem, keys, 64, lookback) == np.mean(reached), window


def test_reach_of_published_windows_is_what_was_learned() -> None:
    rows = read(Path(__file__).parents[4] / "results" / "windows")
    for window in (16, 24, 32, 48):
        variant = [record.row for record in rows if record.row.variant == f"sliding_window:window={window}"]
        scores = [row.extra["train.score"] for row in variant if row.extra.get("train.attempt") == "best"]
        share = compute_share_within(MQAR, MqarKeys(), 64, compute_lookback(window + 1, 1, MQAR.recipe.convolution))
        assert scores
        assert share + (1 - share) / 128 == pytest.approx(np.mean(np.array(scores, dtype=float)), abs=0.01)


def test_the_bound_is_chance_beyond_the_reach() -> None:
    text = tiny_suites.TINY.replace("forward", "copying")
    near, far = (tiny_suites.plan(text, variants=[f"sliding_window:window={window}"])[0] for window in (6, 7))
    # the answer is 8 tokens back, and the convolution sees one more than 6
    assert compute_reach_score(COPYING, near) == compute_baselines(COPYING, near.keys, 16).chance
    assert compute_reach_score(COPYING, far) == 1
