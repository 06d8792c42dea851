"""Where and how hard: the place in which mechanisms are compared, the effort spent there, and a cell of both."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from ..errors import make_deprecated_alias

MAX_DECODE_STEPS = 32  # decode steps after a context, at most: so few hardly change its length
MIN_LENGTH_DIVISOR = 4  # where rows' lengths are drawn, none is shorter than this part of the longest possible


@dataclass(frozen=True, kw_only=True)
class CaseConfig:
    """One shape, dtype, device, mode and number of threads, on given inputs. layer: of a model that was captured.
    segment: of the text that a model reads.

    mode: None for tasks that time nothing. max_len: the longest length that mechanisms are made for.
    fill: how much of a batch is no padding: its rows are ``full``, ``half`` full, or of ``drawn`` lengths; ``packed``
    are rows of the same drawn lengths, one after another without padding.
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
    """How hard a cell is measured: rounds and processes, at which half width of the intervals it is enough, and what a
    variant may take. seed: of all that is drawn."""

    rounds: int = 8
    max_rounds: int = 24
    processes: int = 4
    half_width: float = 0.02
    budget_s: float = 60.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Group:
    """A place in one part of a suite, for one task, with its effort. All its variants are measured together.

    target: where the task is found. baseline: the variant that others are compared with; baseline_kv_heads: in which
    of its cases, where it has several. keys: the values of the task's keys, as pairs. of_blocks: whether its variants
    name layers, x to x, with those mechanisms inside, instead of mechanisms.
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
