"""A cross-check of counted memory: the growth of resident memory in a new process, whatever allocates it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ... import units
from ...engines.job import StageBoard, WorkerDied
from ...engines.worker import limit_memory
from ...errors import UnsupportedError
from ...instruments.allocator import ResidentGrowth, measure_resident_growth
from ...results.rows import Row
from ..case import Case
from .conditions import Conditions
from .kernel_choices import Choices, apply_choices
from .prepared_case import COUNTING_MEMORY, add_reason, is_much_more
from .workload import Workload

WARM_UP_LENGTHS = (256, 512, 1024, 2048)


@dataclass(frozen=True, kw_only=True)
class MeasureProcessMemory:
    """Sends the `ResidentGrowth` of a case's first call, after a call with a short length, or the reason why it is not
    known. When decoding, the call absorbs the context and makes one step."""

    case: Case
    timeout_s: float
    memory_bytes: int | None
    choices: Choices = field(default_factory=dict)

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Make the two calls."""
        board.set_stage(0, COUNTING_MEMORY, self.timeout_s)
        if threads := self.case.group.config.threads:
            torch.set_num_threads(threads)
        apply_choices(self.choices)
        limit_memory(self.memory_bytes)
        try:
            _warm_up(self.case)
            workload = Workload(self.case)
            if self.case.group.config.mode == "forward_backward":
                workload.make_upstream()
            send(measure_resident_growth(lambda: _make_call(workload)))
        except OSError as error:
            send(str(error))


def _warm_up(case: Case) -> None:
    """Load what a first call loads, with the shortest call that the mechanism accepts, if one is shorter."""
    longest, compiles = case.shape.n, case.group.config.compiled or case.create().compiles
    shorter = [length for length in WARM_UP_LENGTHS if length < longest]
    for length in [longest] if compiles else shorter or [longest]:  # each length is compiled by itself
        with suppress(UnsupportedError):  # of lengths that are no multiple of a block
            workload = Workload(case, replace(case.shape, n=length, m=length))
            workload.warm()
            _make_call(workload)
            return


def _make_call(workload: Workload) -> Any:
    if workload.case.group.config.mode != "decode":
        return workload.make_call(workload.sample)
    q, k, v, inputs = workload.sample
    newest = {name: x[:, :, -1:] for name, x in inputs.items()}
    state = workload.after_context(workload.shape.m + 1)
    with torch.no_grad():
        return workload.attn.step(q[:, :, -1:], k[:, :, -1:], None if v is None else v[:, :, -1:], state, **newest)


def measure_process_memory(case: Case, row: Row, conditions: Conditions) -> None:
    """Fill the row's resident memory, and report in its reason when it is much more than was counted."""
    if conditions.engine.method == "inline":
        return  # this process has made larger calls
    job = MeasureProcessMemory(
        case=case,
        timeout_s=conditions.timeout_s,
        memory_bytes=conditions.memory_bytes,
        choices=conditions.choices,
    )
    try:
        (outcome,) = conditions.engine.run(job)
    except WorkerDied as death:
        outcome = death.reason
    if not isinstance(outcome, ResidentGrowth):
        add_reason(row, f"its memory in a new process is not known: {outcome}")
        return
    if row.mode == "decode":
        row.process_peak_bytes, counted, owner = outcome.held, row.state_bytes, "its decode state has"
    else:
        row.process_peak_bytes, counted, owner = outcome.peak, row.peak_memory_bytes, "its counted peak is"
    if is_much_more(row.process_peak_bytes, counted):
        growth = units.size(row.process_peak_bytes)
        comparison = f"a new process grew by {growth}, {owner} {units.size(counted)}"
        add_reason(row, f"{comparison}: it allocates memory that is not counted")
