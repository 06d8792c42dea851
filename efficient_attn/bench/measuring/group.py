"""Measure one group: prepare its cases, time them interleaved, and yield a record for every case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...engines.job import WorkerDied
from ...instruments.environment import describe_absence
from ...instruments.timing import plan_samples
from ...results.rows import Record
from ..case import Case
from ..case_config import Group
from .conditions import Conditions
from .failures import make_failure, make_worker_failure
from .jobs import PrepareCases
from .prepared_case import PreparedCase
from .process_memory import measure_process_memory
from .process_runs import ProcessRuns, TimedCase


def measure_group(group: Group, cases: Sequence[Case], conditions: Conditions) -> Iterator[Record]:
    """Exactly one record for every case, in order, each as soon as it and all earlier ones are known.

    The record of a case that fails contains the reason; the others continue.
    """
    if reason := describe_absence(group.config.device):
        yield from (make_failure(case, "skipped", reason) for case in cases)
        return
    records: dict[str, Record] = {}
    prepared: dict[str, tuple[PreparedCase, float]] = {}
    n_yielded = 0
    for key, outcome, seconds in _prepare_all(group, cases, conditions):
        if isinstance(outcome, Record):
            records[key] = outcome
        else:
            prepared[key] = outcome, seconds
        while n_yielded < len(cases) and (record := records.get(cases[n_yielded].key)):
            n_yielded += 1
            yield record
    for case in cases:
        if case.key in prepared and prepared[case.key][0].measures_process:
            measure_process_memory(case, prepared[case.key][0].row, conditions)
    if prepared:
        records |= _time_cases([case for case in cases if case.key in prepared], prepared, conditions)
    yield from (records[case.key] for case in cases[n_yielded:])


def _time_cases(
    cases: Sequence[Case], prepared: Mapping[str, tuple[PreparedCase, float]], conditions: Conditions
) -> dict[str, Record]:
    """The records of a group's calibrated cases, which are timed interleaved."""
    group, sampling = cases[0].group, cases[0].group.sampling
    costs = {key: prepared_case.cost for key, (prepared_case, _) in prepared.items()}
    plans = plan_samples(costs, rounds=sampling.rounds, processes=sampling.processes, budget_s=sampling.budget_s)
    timed_cases: dict[str, TimedCase] = {}
    for case in cases:
        prepared_case, seconds = prepared[case.key]
        left = conditions.timeout_s - seconds
        budget = min(sampling.budget_s, left)
        timed_cases[case.key] = TimedCase(case, prepared_case.row, prepared_case.samples, plans[case.key], budget, left)
    return ProcessRuns(group, timed_cases, conditions).run()


def _prepare_all(
    group: Group, cases: Sequence[Case], conditions: Conditions
) -> Iterator[tuple[str, PreparedCase | Record, float]]:
    """Every case by its key, prepared or failed, with the seconds that it took.

    If a worker dies, its current case fails if it was the worker's first one, or if it timed out. Otherwise an earlier
    case may have caused the crash, and the current one is repeated in a worker of its own.
    """
    pending, isolate = list(cases), False
    while pending:
        batch = pending[:1] if isolate else pending
        isolate = False
        job = PrepareCases(
            group=group,
            cases=tuple(batch),
            timeout_s=conditions.timeout_s,
            memory_bytes=conditions.memory_bytes,
            choices=conditions.choices,
            folder=conditions.folder,
        )
        done: set[str] = set()
        try:
            for result in conditions.engine.run(job):
                done.add(batch[result.case].key)
                yield batch[result.case].key, result.outcome, result.seconds
        except WorkerDied as death:
            fails = death.case == 0 or (death.case > 0 and death.status == "timeout")
            for case in batch if death.case < 0 else [batch[death.case]] if fails else []:
                done.add(case.key)
                yield case.key, make_worker_failure(case, death, conditions), 0.0
            isolate = death.case > 0
        pending = [case for case in pending if case.key not in done]
