"""A contest decided beforehand, as a table of another machine may decide it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from efficient_attn.kernels.choices import desk
from efficient_attn.kernels.choices.contest import Contest, Table


@contextmanager
def forced(contest: Contest, form: str) -> Iterator[None]:
    """Within, a form wins wherever it can serve."""
    able = {point.kind: point for point in contest.points if form in contest.prepare(point)}
    table = Table(tuple((point, {form: 1.0}) for point in able.values()), "forced")
    key = contest.name, torch.get_num_threads()
    before = desk._TABLES.get(key)
    desk.use({contest.name: table}, torch.get_num_threads())
    try:
        yield
    finally:
        desk._TABLES.pop(key)
        desk.CHOSEN.clear()
        if before is not None:
            desk._TABLES[key] = before
