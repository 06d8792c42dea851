"""The records of cases without a result."""

from __future__ import annotations

from ...engines.job import WorkerDied
from ...results.rows import Record, Status
from ..case import Case
from .conditions import Conditions
from .prepared_case import FIRST_CALL, STAGES


def make_failure(case: Case, status: Status, reason: str) -> Record:
    """The record of a case that was not measured, and why."""
    row = case.row()
    row.status, row.reason = status, reason
    return Record(row)


def make_worker_failure(case: Case, death: WorkerDied, conditions: Conditions) -> Record:
    """The record of a case whose worker died."""
    if death.case < 0:
        return make_failure(case, death.status, f"its worker could not start: {death.reason}")
    reason = f"{death.reason}, while {STAGES[death.stage]}"
    if death.status == "timeout":
        budget = case.group.sampling.budget_s
        exceeds_budget = death.stage == FIRST_CALL and budget < conditions.timeout_s
        limit = f"one call takes longer than its budget of {budget:g} s"
        reason = f"{limit if exceeds_budget else f'over {conditions.timeout_s:g} s'}: {reason}"
    return make_failure(case, death.status, reason)
