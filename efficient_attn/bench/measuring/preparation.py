"""Prepare a case for timing: verify it, count its memory and work, and calibrate it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...contract.capacity import longest_context
from ...contract.decode_state import state_bytes
from ...errors import UsageError
from ...instruments.global_state import watch_global_state
from ...instruments.timing import calibrate, time_first_call
from ...kernels.autotuning import autotuner
from ...results.rows import Row, finite_or_none
from ..case import Case
from .prepared_case import (
    CALIBRATING,
    COMPILING,
    COUNTING_MEMORY,
    FIRST_CALL,
    MAKING_INPUTS,
    VERIFYING,
    PreparedCase,
)
from .samples import TimedSteps, make_timed, verify_workload
from .workload import BACKWARD, Workload


def prepare_case(
    case: Case, row: Row, at: Callable[..., None], *, peak_memory: bool = False, memory_budget: int | None = None
) -> PreparedCase:
    """Verify a case, count its memory and calibrate it. at: called with each stage and its time limit in seconds.

    peak_memory: whether rows have the bytes of a call. memory_budget: for the longest context, when decoding.
    """
    place, budget_s = case.group.config, case.group.sampling.budget_s
    at(MAKING_INPUTS)
    workload = Workload(case)
    with watch_global_state(workload.sampled_inputs):
        compiles = place.compiled or workload.attn.compiles
        at(COMPILING if compiles else FIRST_CALL, None if compiles else budget_s)
        workload.warm()
        at(FIRST_CALL, budget_s)
        steps = TimedSteps(workload, case.group.sampling.seed) if place.mode == "decode" else None
        subject = make_timed(workload, seed=case.group.sampling.seed)
        time_first_call(subject, budget_s=budget_s, device=place.device)
        at(VERIFYING)
        error, row.gate_len = verify_workload(workload, steps)
        row.oracle_error = finite_or_none(error)
        row.parameters = sum(p.numel() for p in workload.attn.parameters())
        row.clamped_rows = workload.clamped_rows()
        row.bytes_moved = workload.bytes_moved
        _count_work(workload, row)
        if memory_budget is not None:
            _count_capacity(workload, row, memory_budget)
        at(COUNTING_MEMORY)
        autotuner.clear_choices()  # the backend chosen in verification, perhaps at another length
        samples = _count_memory(workload, row, steps, with_kernels=peak_memory)
        row.choices = autotuner.list_choices() or None
        at(CALIBRATING)
        pace = calibrate(subject, budget_s=budget_s, device=place.device)
    return PreparedCase(row, pace, samples | {"bytes_moved": row.bytes_moved})


def _count_memory(workload: Workload, row: Row, steps: TimedSteps | None, *, with_kernels: bool) -> dict[str, Any]:
    """One call under the profiler: the kernels that ran, and the bytes if the suite requests them."""
    footprint = workload.footprint(steps and steps.next_token)
    if with_kernels:
        row.peak_memory_bytes, row.retained_bytes, row.reason = footprint.peak, footprint.retained, footprint.reason
        row.output_bytes, row.saved_bytes, row.workspace_bytes = footprint.output, footprint.saved, footprint.workspace
    return {"kernels": list(footprint.kernels)}


def _count_work(workload: Workload, row: Row) -> None:
    s, attn, place = workload.shape, workload.attn, workload.case.group.config
    decoding, m = place.mode == "decode", place.seq_len
    n, causal = (1, True) if decoding else (m, place.causal)
    asked = replace(s, n=n, m=m)
    dtype, gradient = workload.sample.q.dtype, place.mode == "forward_backward"
    row.pairs = attn.pairs(n, m, causal)
    row.backend_used, row.pairs_computed = attn.what_runs(asked, causal=causal, dtype=dtype, gradient=gradient)
    if decoding:
        pairs = s.batch * attn.growth.step_cost(m)
    else:  # work on padding does not count
        lengths = Counter(workload.case.row_lengths)
        pairs = sum(rows * attn.growth.cost(length, length, causal) for length, rows in lengths.items())
    work = pairs * 2 * (s.head_dim + s.value_dim) * s.heads
    row.flops = work * (1 + BACKWARD) if row.mode == "forward_backward" else work
    if decoding:
        row.steps = 1
        row.state_bytes = state_bytes(workload.after_context(s.m))
    elif row.mode == "forward":
        row.output_bytes = s.batch * s.heads * s.n * s.value_dim * workload.sample.q.element_size()


def _count_capacity(workload: Workload, row: Row, budget: int) -> None:
    """How long a context can be within the memory budget, or the reason why that is not known."""
    dtype = workload.sample.q.dtype
    try:
        row.longest_context = longest_context(workload.attn, budget, batch=workload.shape.batch, dtype=dtype)
        row.memory_budget_bytes = budget
    except UsageError as error:  # a state that only its first step allocates cannot be counted ahead
        row.reason = str(error)
