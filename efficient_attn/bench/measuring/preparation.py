"""Prepare a case for timing: verify it, count its memory and work, and calibrate it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ... import units
from ...contract.capacity import longest_context
from ...errors import UsageError
from ...instruments.global_state import watch_global_state
from ...instruments.timing import calibrate, time_first_call
from ...kernels.autotuning import autotuner
from ...results.rows import Row, finite_or_none
from ..case import Case
from . import prepared_case
from .prepared_case import PreparedCase, add_reason, is_much_more
from .row_errors import InvalidResult
from .samples import TimedSteps, make_timed, verify_workload
from .workload import BACKWARD, Workload

CALLS_TO_GROW, MIN_GROWTH_SHARE = 4, 0.1  # calls that may not all leave this share of their output allocated


def prepare_case(
    case: Case,
    row: Row,
    report_stage: Callable[..., None],
    *,
    peak_memory: bool = False,
    memory_budget: int | None = None,
    process_memory: bool = False,
) -> PreparedCase:
    """Verify a case, count its memory and calibrate it.

    report_stage: called with each stage and its time limit in seconds. peak_memory: whether rows have the bytes of a
    call. memory_budget: for the longest context, when decoding. process_memory: whether memory is also measured in a
    new process.
    """
    config, sampling = case.group.config, case.group.sampling
    report_stage(prepared_case.MAKING_INPUTS)
    workload = Workload(case)
    with watch_global_state(workload.sampled_inputs):
        compiles = config.compiled or workload.attn.compiles or config.device == "cuda"
        first_stage = (prepared_case.COMPILING, None) if compiles else (prepared_case.FIRST_CALL, sampling.budget_s)
        report_stage(*first_stage)
        workload.warm()
        report_stage(prepared_case.FIRST_CALL, sampling.budget_s)
        if config.mode == "decode":
            row.state_bytes = workload.held_state.total
            add_reason(row, workload.held_state.reason)
            report_stage(prepared_case.FIRST_CALL, sampling.budget_s)
        steps = TimedSteps(workload, sampling.seed) if config.mode == "decode" else None
        subject = make_timed(workload, seed=sampling.seed)

        def make_first_call() -> None:
            time_first_call(subject, budget_s=sampling.budget_s, device=config.device)
            subject.release()
            if steps is not None:
                steps.reset(1)
            report_stage(prepared_case.COUNTING_MEMORY)
            autotuner.clear_choices()  # those of a context

        samples = _count_memory(workload, row, steps, make_first_call, peak_memory=peak_memory)
        row.choices = autotuner.list_choices() or None
        report_stage(prepared_case.VERIFYING)
        error, row.gate_len = verify_workload(workload, steps)
        row.oracle_error = finite_or_none(error)
        add_reason(row, workload.attn.traits.describe_lossy_state())
        _count_work(workload, row)
        if memory_budget is not None:
            _count_capacity(workload, row, memory_budget)
        report_stage(prepared_case.CALIBRATING)
        cost = calibrate(subject, budget_s=sampling.budget_s, device=config.device)
    return PreparedCase(row, cost, samples | {"bytes_moved": row.bytes_moved}, process_memory)


def _count_memory(
    workload: Workload, row: Row, steps: TimedSteps | None, first_call: Callable[[], None], *, peak_memory: bool
) -> dict[str, Any]:
    """Profile a call after the first one: returns the kernels that ran; the row gets the bytes if the suite requests
    them. Raises `InvalidResult` if each further call leaves more memory allocated."""
    footprint = workload.footprint(steps and steps.next_token, first_call=first_call)
    if peak_memory:
        row.peak_memory_bytes, row.retained_bytes = footprint.peak, footprint.retained
        row.output_bytes, row.saved_bytes, row.workspace_bytes = footprint.output, footprint.saved, footprint.workspace
        row.kept_between_calls_bytes = footprint.lasting
        add_reason(row, footprint.reason)
        if is_much_more(footprint.peak, (footprint.peak or 0) - (footprint.lasting or 0)):
            add_reason(row, f"it keeps {units.size(footprint.lasting)} between calls, which its peak includes")
        least = max(1, MIN_GROWTH_SHARE * (footprint.output or 0))
        if (footprint.growth or 0) >= least and (growth := workload.measure_growth(CALLS_TO_GROW)) >= least:
            size = units.size(growth)
            raise InvalidResult(
                f"its memory grows: each of {CALLS_TO_GROW} calls with other inputs kept {size} or more"
            )
    row.kernels = " ".join(footprint.kernels) or None
    return {"kernels": list(footprint.kernels)}


def _count_work(workload: Workload, row: Row) -> None:
    s, attn, config = workload.shape, workload.attn, workload.case.group.config
    row.parameters = sum(p.numel() for p in attn.parameters())
    row.clamped_rows = workload.clamped_rows()
    row.bytes_moved = workload.bytes_moved
    decoding, m = config.mode == "decode", config.seq_len
    n, causal = (1, True) if decoding else (m, config.causal)
    row.pairs = attn.pairs(n, m, causal)
    row.backend_used, row.pairs_computed = attn.what_runs(
        replace(s, n=n, m=m),
        causal=causal,
        dtype=workload.sample.q.dtype,
        device=workload.sample.q.device,
        gradient=config.mode == "forward_backward",
        padded=workload.mask.pads_keys,
        stepwise=config.mode in ("decode", "prefill"),
    )
    if decoding:
        pairs = s.batch * attn.growth.step_cost(m)
    else:  # without work on padding
        lengths = Counter(workload.case.row_lengths)
        pairs = sum(rows * attn.growth.cost(length, length, causal) for length, rows in lengths.items())
    work = pairs * 2 * (s.head_dim + s.value_dim) * s.heads
    row.flops = work * (1 + BACKWARD) if row.mode == "forward_backward" else work
    row.steps = 1 if decoding else None
    if row.mode == "forward" and row.output_bytes is None:
        row.output_bytes = s.batch * s.heads * s.n * s.value_dim * workload.sample.q.element_size()


def _count_capacity(workload: Workload, row: Row, budget: int) -> None:
    """The longest context within the memory budget, or the reason why it is not known."""
    dtype = workload.sample.q.dtype
    if workload.held_state.reason:
        return  # its size does not follow from the state's tensors
    try:
        row.longest_context = longest_context(workload.attn, budget, batch=workload.shape.batch, dtype=dtype)
        row.memory_budget_bytes = budget
    except UsageError as error:  # a state that the first step allocates cannot be counted in advance
        add_reason(row, str(error))
