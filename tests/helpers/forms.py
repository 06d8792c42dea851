"""A contest decided beforehand, as a table of another machine may decide it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.autotuning.candidates import TimingTable, Tunable


@contextmanager
def forced(contest: Tunable, form: str) -> Iterator[None]:
    """Within, a form wins wherever it can serve."""
    able = {point.kind: point for point in contest.points if form in contest.make_candidates(point)}
    table = TimingTable(tuple((point, {form: 1.0}) for point in able.values()), "forced")
    key = contest.name, torch.get_num_threads()
    before = autotuner._TABLES.get(key)
    autotuner.use_tables({contest.name: table}, torch.get_num_threads())
    try:
        yield
    finally:
        autotuner._TABLES.pop(key)
        autotuner.CHOICES.clear()
        if before is not None:
            autotuner._TABLES[key] = before
