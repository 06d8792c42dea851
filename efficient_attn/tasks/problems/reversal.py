"""Reversal: the source in reverse order. The whole source is needed, so that models with a single context vector fail
as sources grow (Cho et al. 2014, arXiv:1409.1259)."""

from __future__ import annotations

import numpy as np

from ...errors import UsageError
from ..training.problem import Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split, make_answer_batch


class ReversalKeys(LearnKeys):
    """vocab: tokens of a source; BEGIN and END of an answer are two more."""

    vocab: Count = 32


def check(keys: ReversalKeys, length: int) -> None:
    if length < 1 or keys.vocab < 2:
        raise UsageError(f"reversal: it needs a length and a vocab of at least 2, got {length} and {keys.vocab}")


def draw(keys: ReversalKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Sources ``[B, N]``, targets ``[B, N + 1]``."""
    source = generator.integers(keys.vocab, size=(count, length))
    return make_answer_batch(source, source[:, ::-1], begin=keys.vocab, end=keys.vocab + 1)


def baselines(keys: ReversalKeys, length: int) -> Baselines:
    """The shortcut is to predict END from the position, and to guess the rest."""
    token, end = length / (length + 1) / keys.vocab, 1 / (length + 1)
    return Baselines(
        chance=1 / (keys.vocab + 1),
        majority=max(token, end),
        shortcut=token + end,
        way="the position alone, which predicts END",
    )


REVERSAL = Problem(
    name="reversal",
    keys=ReversalKeys,
    recipe=Recipe(model="sequence", positions="sinusoidal", steps=600),
    draw=draw,
    check=check,
    inputs=lambda keys: keys.vocab + 2,
    outputs=lambda keys: keys.vocab + 2,
    baselines=baselines,
)
