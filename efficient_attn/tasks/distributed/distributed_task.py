"""Distributed: one call of attention over processes that each have a part of the sequence.

A case starts its ranks, each a process with the threads of the configuration: gloo on the CPU, NCCL with a GPU for
each. The joined output (and gradients) must equal those of one process, and the bytes that each rank sends must be
those of the scheme's formula within `MAX_BYTES_ERROR`; otherwise the case is invalid. A round lasts until the slowest
rank is ready. Times are reported only if every rank has cores of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from ...bench.case_config import CaseConfig, Group
from ...bench.planning.request import TaskRequest
from ...bench.planning.suite_schema import Count
from ...bench.task import Guess, Keys, Task
from ...errors import UsageError
from ...results.rows import Record, Row
from ...results.section import Column, Section
from ...results.stats import estimate_trimmed_mean

if TYPE_CHECKING:
    from ...bench.case import Case
    from ...instruments.roofline import Roofline
    from .rank_job import RankJob, RankResult

MAX_BYTES_ERROR = 0.01
MAX_DIFFERENCE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 3e-2, "float16": 5e-3}
START_S = 6.0  # of a process
EFFICIENCY = 0.3  # of matrix products, with the verification


class DistributedKeys(Keys):
    """scheme: ``ring``, ``heads``, ``halo`` or ``state``. ranks: numbers of processes. training: whether a call is a
    forward and a backward pass."""

    scheme: tuple[str, ...] = ("ring",)
    ranks: tuple[Count, ...] = (1, 2, 4)
    training: tuple[bool, ...] = (True,)


def plan(request: TaskRequest) -> Iterator[tuple[Group, int | None]]:
    """A group for each scheme, number of ranks and configuration."""
    keys: DistributedKeys = request.keys
    axes = request.grid.combine("threads", "seq_len", "batch", "heads", "kv_heads", "head_dim", "causal")
    for scheme, training, values in product(keys.scheme, keys.training, axes):
        point = dict(values)
        kv_heads, length = point.pop("kv_heads"), point["seq_len"]
        for ranks in keys.ranks:
            chunks = ranks * (2 if scheme == "ring" and values["causal"] else 1)
            if length % chunks:
                raise UsageError(f"{request.task}: {scheme} on {ranks} ranks needs multiples of {chunks}, not {length}")
            inputs = f"{scheme}, {ranks} rank{'s' * (ranks > 1)}{', training' * training}"
            config = CaseConfig(max_len=length, inputs=inputs, **point)
            yield request.make_group(config, scheme=(scheme,), ranks=(ranks,), training=(training,)), kv_heads


def make_job(case: Case) -> RankJob:
    """What the ranks of a case run."""
    from ...registry import plugins
    from .rank_job import RankJob

    keys, config, sampling = case.keys, case.group.config, case.group.sampling
    return RankJob(
        spec=str(case.variant),
        scheme=keys.scheme[0],
        ranks=keys.ranks[0],
        batch=config.batch,
        heads=config.heads,
        kv_heads=case.kv_heads,
        seq_len=config.seq_len,
        head_dim=config.head_dim,
        dtype=config.dtype,
        device=config.device,
        causal=config.causal,
        training=keys.training[0],
        threads=config.threads or 1,
        rounds=sampling.rounds,
        seed=sampling.seed,
        plugins=tuple(plugins()),
    )


def judge(case: Case, row: Row, report_stage: Callable[..., None]) -> Record:
    """Start the ranks, and check and summarize what they measured."""
    from ...instruments.environment.machine import count_usable_cores
    from .rank_processes import run_ranks

    job, cores = make_job(case), count_usable_cores()
    shares_cores = job.device == "cpu" and job.ranks * job.threads > cores
    results = run_ranks(replace(job, rounds=0) if shares_cores else job)
    check_results(results, job.dtype)
    row.mode, row.backend_used = "forward_backward" if job.training else "forward", case.create().backend
    sent, difference = max(result.sent for result in results), results[0].difference
    row.extra = {"scheme": job.scheme, "ranks": job.ranks, "sent_bytes": sent, "difference": difference}
    row.extra |= {"formula_bytes": max(result.formula for result in results), "cores": cores}
    if shares_cores:
        row.extra["note"] = f"no time: {job.ranks} ranks of {job.threads} threads, usable cores: {cores}"
        return Record(row)
    times = [1e3 * max(seconds) for seconds in zip(*(result.times_s for result in results), strict=True)]
    mean = estimate_trimmed_mean(times)
    row.latency_ms = mean.value
    row.latency_ms_low, row.latency_ms_high = mean.interval() or (None, None)
    return Record(row, {"latency_ms": [[x] for x in times]})


def check_results(results: Sequence[RankResult], dtype: str) -> None:
    """Raise `InvalidResult` if a result differs from one process, or its bytes from the formula."""
    from ...bench.measuring.row_errors import InvalidResult

    difference, limit = results[0].difference, MAX_DIFFERENCE[dtype]
    if difference is None or not difference <= limit:
        raise InvalidResult(f"the ranks' results differ from one process by {difference}, at most {limit:g} is allowed")
    for rank, result in enumerate(results):
        if abs(result.sent - result.formula) > MAX_BYTES_ERROR * result.formula:
            raise InvalidResult(f"rank {rank} sent {result.sent:,} bytes, by the formula {result.formula:,}")


def guess(case: Case, best: Roofline) -> Guess:
    """The estimated cost of starting the processes, of the call in one process, and of the rounds."""
    from ...bench.planning.cost_estimate import CALLS

    s, keys, config = case.shape, case.keys, case.group.config
    factor = 3.5 if keys.training[0] else 1
    work = factor * 4 * s.head_dim * s.batch * s.heads * case.create().growth.cost(s.n, s.m, config.causal)
    seconds = keys.ranks[0] * START_S + (case.group.sampling.rounds + 3) * work / best.gemm_flops_per_s / EFFICIENCY
    numbers = s.batch * (s.heads + s.kv_heads) * s.n * s.head_dim
    return Guess(seconds / CALLS, 8 * numbers * keys.ranks[0], 32 * numbers)


DISTRIBUTED = Task(
    name="distributed",
    words=("distributed",),
    keys=DistributedKeys,
    plan=plan,
    judge=judge,
    guess=guess,
    columns={
        "scheme": "how ranks exchange what they need: ring, heads, halo or state",
        "ranks": "processes, each with a part of the sequence",
        "sent_bytes": "bytes that a rank sends in a call, of the rank that sends most",
        "formula_bytes": "the same by the scheme's formula",
        "difference": "largest difference of output and gradients from one process, relative to the largest number",
        "cores": "processor cores that the ranks may use",
        "note": "why there is no time",
    },
    sections=(
        Section(
            name="distributed",
            task="distributed",
            title="Attention over several processes",
            sentences=(
                "Each rank has a part of the sequence and its own threads. The time of a call is that of the slowest "
                "rank, reported if each rank has cores of its own. Output and gradients were compared with one "
                "process, and the bytes that each rank sent with the scheme's formula.",
            ),
            columns=(
                Column(name="seq_len", heading="Length", unit="count"),
                Column(name="latency_ms", heading="Time", unit="time"),
                Column(name="distributed.sent_bytes", heading="Sent by a rank", unit="bytes"),
                Column(name="distributed.formula_bytes", heading="By formula", unit="bytes"),
                Column(name="distributed.difference", heading="Difference", unit="error"),
            ),
            x="seq_len",
            y="latency_ms",
        ),
    ),
)
