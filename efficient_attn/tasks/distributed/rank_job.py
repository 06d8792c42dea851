"""What the processes of a process group run and measure for one case, and the files by which they exchange it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

JOB, STORE = "job.json", "store"  # files of the folder that the processes share


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """What all ranks run. ranks: their number; the rest as in `CaseConfig`. plugins: to load before."""

    spec: str
    scheme: str
    ranks: int
    batch: int
    heads: int
    kv_heads: int
    seq_len: int
    head_dim: int
    dtype: str
    device: str
    causal: bool
    training: bool
    threads: int
    rounds: int
    seed: int
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What a rank measured: seconds of a call in each round, the bytes that it sent in one call, those of the formula,
    and the largest relative difference of output and gradients from one process, which rank 0 compares."""

    times_s: Sequence[float]
    sent: int
    formula: int
    difference: float | None
