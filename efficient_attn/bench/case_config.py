"""The configuration and the sampling plan of measurements, and the group that combines both."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from ..errors import make_deprecated_alias

MAX_DECODE_STEPS = 32  # after a context, so few that its length hardly changes
MIN_LENGTH_DIVISOR = 4  # drawn lengths of rows are at least the sequence length over this


@dataclass(frozen=True, kw_only=True)
class CaseConfig:
    """One shape, dtype, device, mode and number of threads, with given inputs.

    mode: None for tasks without timings. max_len: the longest length that mechanisms are created for. fill: the padding
    of a batch: rows are ``full``, ``half`` full, of ``drawn`` lengths, or ``packed``, which are the same drawn lengths
    concatenated without padding. layer: of a model. segment: of a text that a model reads.
    """

    seq_len: int
    max_len: int
    device: str = "cpu"
    dtype: str = "float32"
    threads: int | None = None
    batch: int = 1
    heads: int = 1
    head_dim: int = 1
    causal: bool = False
    mode: str | None = None
    cache: str = "warm"
    compiled: bool = False
    cuda_graph: bool = False
    inputs: str = "normal"
    layer: int | None = None
    fill: str = "full"
    segment: int | None = None

    def row_lengths(self, seed: int) -> tuple[int, ...]:
        """The length of each row of the batch without padding. Drawn lengths are stratified over the possible ones."""
        n, rows = self.seq_len, self.batch
        if self.fill in ("full", "half"):
            return (n if self.fill == "full" else -(-n // 2),) * rows
        rng, shortest = random.Random(f"{seed} {rows} {n}"), -(-n // MIN_LENGTH_DIVISOR)
        lengths = [min(n, shortest + int((n + 1 - shortest) * (row + rng.random()) / rows)) for row in range(rows)]
        rng.shuffle(lengths)
        return tuple(lengths)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampling plan of a group. half_width: relative half width of intervals at which measuring stops. budget_s:
    seconds of measuring for a variant. seed: of everything random. warm_up_calls: before each sample, not timed."""

    rounds: int = 8
    max_rounds: int = 24
    processes: int = 4
    half_width: float = 0.02
    budget_s: float = 60.0
    seed: int = 0
    warm_up_calls: int = 0


@dataclass(frozen=True, kw_only=True)
class Group:
    """A configuration in one part of a suite, for one task, with its sampling plan. Its variants are measured together.

    target: of the task. baseline: the variant that others are compared with; baseline_kv_heads: its number of key-value
    heads, if it has several cases. keys: the values of the task's keys, as pairs. of_blocks: whether its variants are
    layers (x to x) instead of mechanisms.
    """

    suite: str
    part: str
    task: str
    target: str
    config: CaseConfig
    sampling: Sampling
    baseline: str | None = None
    baseline_kv_heads: int | None = None
    keys: tuple[tuple[str, Any], ...] = ()
    of_blocks: bool = False

    place = make_deprecated_alias("place", "config")
    effort = make_deprecated_alias("effort", "sampling")
