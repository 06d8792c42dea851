"""What is measured and how precisely: the configuration, the sampling plan, and the group that combines both."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from ..errors import make_deprecated_alias

MAX_DECODE_STEPS = 32  # decode steps after a context, at most: so few hardly change its length
MIN_LENGTH_DIVISOR = 4  # where rows' lengths are drawn, none is shorter than this part of the longest possible


@dataclass(frozen=True, kw_only=True)
class CaseConfig:
    """One shape, dtype, device, mode and number of threads, with given inputs. layer: of a captured model. segment: of
    the text that a model reads.

    mode: None for tasks without timings. max_len: the longest length that mechanisms are created for. fill: the padding
    of a batch: rows are ``full``, ``half`` full, of ``drawn`` lengths, or ``packed``, which are the same drawn lengths
    concatenated without padding.
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
        """Of each row of the batch, the positions that are no padding. Drawn ones are spread over all that may be."""
        n, rows = self.seq_len, self.batch
        if self.fill in ("full", "half"):
            return (n if self.fill == "full" else -(-n // 2),) * rows
        draw, least = random.Random(f"{seed} {rows} {n}"), -(-n // MIN_LENGTH_DIVISOR)
        lengths = [min(n, least + int((n + 1 - least) * (row + draw.random()) / rows)) for row in range(rows)]
        draw.shuffle(lengths)
        return tuple(lengths)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampling plan of a group: rounds and processes, the half width of intervals that is sufficient, and the time
    budget of a variant. seed: of everything random."""

    rounds: int = 8
    max_rounds: int = 24
    processes: int = 4
    half_width: float = 0.02
    budget_s: float = 60.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Group:
    """A configuration in one part of a suite, for one task, with its sampling plan. All its variants are measured
    together.

    target: the module of the task. baseline: the variant that others are compared with; baseline_kv_heads: its number
    of key-value heads, if it has several cases. keys: the values of the task's keys, as pairs. of_blocks: whether its
    variants are layers (x to x) instead of mechanisms.
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
