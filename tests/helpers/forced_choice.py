"""Autotuning with a given result, as a timing table of another machine may have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.autotuning.candidates import TimingTable, Tunable


@contextmanager
def force_implementation(tunable: Tunable, implementation: str) -> Iterator[None]:
    """In the context, an implementation is selected wherever it is a candidate."""
    supported = {p.kind: p for p in tunable.points if implementation in tunable.make_candidates(p)}
    table = TimingTable(tuple((point, {implementation: 1.0}) for point in supported.values()), "forced")
    key = tunable.name, torch.get_num_threads()
    before = autotuner._TABLES.get(key)
    autotuner.use_tables({tunable.name: table}, torch.get_num_threads())
    try:
        yield
    finally:
        autotuner._TABLES.pop(key)
        autotuner.CHOICES.clear()
        if before is not None:
            autotuner._TABLES[key] = before
