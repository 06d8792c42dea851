"""Measure one group: prepare its cases, time them interleaved, and yield a record for every case."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from ...engines.job import WorkerDied
from ...instruments.environment import describe_absence
from ...instruments.timing import plan_samples
from ...results.rows import Record
from ..case import Case
from ..case_config import Group
from .conditions import Conditions
from .jobs import PrepareCases
from .kernel_choices import add_timed
from .prepared_case import PreparedCase, make_failure, make_worker_failure
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
    prepared: dict[str, PreparedCase] = {}
    n_yielded = 0
    for key, outcome in _prepare_all(group, cases, conditions):
        if isinstance(outcome, Record):
            records[key] = outcome
        elif outcome is not None:
            prepared[key] = outcome
            add_timed(conditions.choices, outcome.row.threads, outcome.timed)
        while n_yielded < len(cases) and (record := records.get(cases[n_yielded].key)):
            n_yielded += 1
            yield record
    if prepared:
        sampling, costs = group.sampling, {key: ready.cost for key, ready in prepared.items()}
        plans = plan_samples(costs, rounds=sampling.rounds, processes=sampling.processes, budget_s=sampling.budget_s)
        timed_cases: dict[str, TimedCase] = {}
        for case in cases:
            if ready := prepared.get(case.key):
                if ready.measures_process:
                    measure_process_memory(case, ready.row, conditions)
                left = conditions.timeout_s - ready.seconds
                budget = min(sampling.budget_s, left)
                timed_cases[case.key] = TimedCase(case, ready.row, ready.samples, plans[case.key], budget, left)
        records |= ProcessRuns(group, timed_cases, conditions).run()
    yield from (records[case.key] for case in cases[n_yielded:])


def evaluate_case(case: Case, conditions: Conditions) -> Generator[Record | None, None, None]:
    """The record of a case that is not timed; before it, and until its worker has ended, None instead of waiting."""
    for _, outcome in _prepare_all(case.group, [case], conditions, wait=False):
        if isinstance(outcome, PreparedCase):
            raise TypeError(f"the task {case.group.task} times no cases, but has prepared {case.key} for it")
        yield outcome


def _prepare_all(
    group: Group, cases: Sequence[Case], conditions: Conditions, *, wait: bool = True
) -> Iterator[tuple[str, PreparedCase | Record | None]]:
    """Every case by its key, prepared or failed. Without ``wait``, also None whenever nothing has come.

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
            memory_bytes=conditions.limit_memory(group.config.device),
            choices=conditions.choices,
            folder=conditions.folder,
            jobs=conditions.jobs,
        )
        done: set[str] = set()
        try:
            for message in conditions.engine.run(job) if wait else conditions.engine.poll(job):
                if message is None:
                    yield "", None
                    continue
                index, outcome = message
                done.add(batch[index].key)
                yield batch[index].key, outcome
        except WorkerDied as death:
            fails = death.case == 0 or (death.case > 0 and death.status == "timeout")
            for case in batch if death.case < 0 else [batch[death.case]] if fails else []:
                done.add(case.key)
                yield case.key, make_worker_failure(case, death, conditions.timeout_s)
            isolate = death.case > 0
        pending = [case for case in pending if case.key not in done]
