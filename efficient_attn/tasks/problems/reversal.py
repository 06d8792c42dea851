"""Reversal: the source, written backwards. All of it is wanted, so that one fixed vector between
reader and writer fails as sources grow (Cho et al. 2014, arXiv:1409.1259)."""

from __future__ import annotations

import numpy as np

from ...errors import UsageError
from ..training.answers import make_answer_batch
from ..training.problem import Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split


class ReversalKeys(LearnKeys):
    """vocab: tokens of a source; BEGIN and END of an answer are two more."""

    vocab: Count = 32


def check(keys: ReversalKeys, length: int) -> None:
    if length < 1 or keys.vocab < 2:
        raise UsageError(f"reversal: it needs a length and a vocab of at least 2, got {length} and {keys.vocab}")


def draw(keys: ReversalKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Sources ``[B, N]``, targets ``[B, N + 1]``. Examples are drawn anew: those of two splits are alike by chance
    alone."""
    source = generator.integers(keys.vocab, size=(count, length))
    return make_answer_batch(source, source[:, ::-1], begin=keys.vocab, end=keys.vocab + 1)


def baselines(keys: ReversalKeys, length: int) -> Baselines:
    """Who counts places knows END, and guesses the rest."""
    token, end = length / (length + 1) / keys.vocab, 1 / (length + 1)
    return Baselines(
        chance=1 / (keys.vocab + 1),
        majority=max(token, end),
        shortcut=token + end,
        way="the place alone, which tells END",
    )


REVERSAL = Problem(
    name="reversal",
    title="Reversal",
    sentence="A source is written backwards; tokens are counted, each given those before it.",
    keys=ReversalKeys,
    recipe=Recipe(model="sequence", positions="sinusoidal", steps=600),
    draw=draw,
    check=check,
    inputs=lambda keys: keys.vocab + 2,
    outputs=lambda keys: keys.vocab + 2,
    baselines=baselines,
)
