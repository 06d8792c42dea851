"""Sequence to sequence: answers as a decoder reads and writes them."""

from __future__ import annotations

import numpy as np

from .problem import Array, Batch


def make_answer_batch(inputs: Array, answers: Array, *, begin: int, end: int, lengths: Array | None = None) -> Batch:
    """Sources ``[B, N]`` and their answers ``[B, T]``: the decoder reads BEGIN and the answer, and writes the answer
    and END, ``[B, T + 1]``."""
    edge = np.ones((len(answers), 1), dtype=answers.dtype)
    begun, targets = np.hstack([begin * edge, answers]), np.hstack([answers, end * edge])
    return Batch(inputs, targets, begun=begun, lengths=lengths)
