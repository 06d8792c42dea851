"""A case that is ready to be timed, the stages of a case in a worker, and the records of cases without a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...engines.job import WorkerDied
from ...instruments.timing import SampleCost
from ...results.rows import OVER_BUDGET, Record, Row, Status

if TYPE_CHECKING:
    from ..case import Case
    from .kernel_choices import Tables

STAGES = (
    "its inputs were made",
    "it was compiled",
    "its first call ran",
    "it was compared with its reference",
    "its memory was counted",
    "it was calibrated",
    "it was timed",
    "it was evaluated",
)
MAKING_INPUTS, COMPILING, FIRST_CALL, VERIFYING, COUNTING_MEMORY, CALIBRATING, TIMING, EVALUATING = range(len(STAGES))

MIN_EXCESS_SHARE, MIN_EXCESS_BYTES = 0.2, 16 * 2**20  # of memory, beyond which differences are reported


@dataclass
class PreparedCase:
    """A verified case: its row so far, and the cost of a sample, from which rounds are planned. measures_process:
    whether its memory is also measured in a new process. seconds: that preparing it took. timed: the kernels that its
    worker has timed, itself and for earlier cases."""

    row: Row
    cost: SampleCost
    samples: dict[str, Any] = field(default_factory=dict)
    measures_process: bool = False
    seconds: float = 0.0
    timed: Tables = field(default_factory=dict)


def add_reason(row: Row, reason: str | None) -> None:
    """Add a sentence to the row's reason, if there is one."""
    row.reason = "; ".join(filter(None, (row.reason, reason))) or None


def is_much_more(measured: int | None, counted: int | None) -> bool:
    """Whether memory exceeds what was counted by so much that a row says so."""
    if measured is None or counted is None:
        return False
    return measured - counted > max(MIN_EXCESS_SHARE * counted, MIN_EXCESS_BYTES)


def make_failure(case: Case, status: Status, reason: str) -> Record:
    """The record of a case that was not measured, and why."""
    row = case.row()
    row.status, row.reason = status, reason
    return Record(row)


def make_worker_failure(case: Case, death: WorkerDied, timeout_s: float) -> Record:
    """The record of a case whose worker died. timeout_s: the time limit of a case."""
    if death.case < 0:
        return make_failure(case, death.status, f"its worker could not start: {death.reason}")
    reason = f"{death.reason}, while {STAGES[death.stage]}"
    if death.status == "timeout":
        budget = case.group.sampling.budget_s
        exceeds_budget = death.stage == FIRST_CALL and budget < timeout_s
        limit = f"{OVER_BUDGET} of {budget:g} s" if exceeds_budget else f"over {timeout_s:g} s"
        reason = f"{limit}: {reason}"
    return make_failure(case, death.status, reason)
