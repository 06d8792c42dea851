"""Measure one group: prepare its cases, time them interleaved, and yield a record for every case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...engines.job import WorkerDied
from ...instruments.environment.devices import describe_absence
from ...instruments.timing import plan_samples
from ...results.rows import Record
from ..case import Case
from ..case_config import Group
from .conditions import Conditions
from .failures import make_failure, make_worker_failure
from .jobs import PrepareCases
from .prepared_case import PreparedCase
from .process_runs import ProcessRuns, TimedCase


def measure_group(group: Group, cases: Sequence[Case], conditions: Conditions) -> Iterator[Record]:
    """Exactly one record for every case, in order, each as soon as it and all before it are known.

    A case that fails becomes a row with the reason; the others continue.
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
    if prepared:
        records |= _time_cases([case for case in cases if case.key in prepared], prepared, conditions)
    yield from (records[case.key] for case in cases[n_yielded:])


def _time_cases(
    cases: Sequence[Case], prepared: Mapping[str, tuple[PreparedCase, float]], conditions: Conditions
) -> dict[str, Record]:
    """The records of a group's calibrated cases, which are timed interleaved."""
    cell, effort = cases[0].group, cases[0].group.sampling
    paces = {key: prepared_case.pace for key, (prepared_case, _) in prepared.items()}
    takes = plan_samples(paces, rounds=effort.rounds, processes=effort.processes, budget_s=effort.budget_s)
    timed_cases: dict[str, TimedCase] = {}
    for case in cases:
        prepared_case, seconds = prepared[case.key]
        left = conditions.timeout_s - seconds
        budget = min(effort.budget_s, left)
        timed_cases[case.key] = TimedCase(case, prepared_case.row, prepared_case.samples, takes[case.key], budget, left)
    return ProcessRuns(cell, timed_cases, conditions).run()


def _prepare_all(
    group: Group, cases: Sequence[Case], conditions: Conditions
) -> Iterator[tuple[str, PreparedCase | Record, float]]:
    """Every case by its key, prepared or failed, with the seconds that it took.

    A worker that dies fails only one case: the current one, if it kills its own worker again, or hangs. Otherwise an
    earlier case did the damage, and the current one continues.
    """
    waiting, solo = list(cases), False
    while waiting:
        batch = waiting[:1] if solo else waiting
        solo = False
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
            for result in conditions.engine.carry_out(job):
                done.add(batch[result.case].key)
                yield batch[result.case].key, result.outcome, result.seconds
        except WorkerDied as death:
            to_blame = death.case == 0 or (death.case > 0 and death.status == "timeout")
            for case in batch if death.case < 0 else [batch[death.case]] if to_blame else []:
                done.add(case.key)
                yield case.key, make_worker_failure(case, death, conditions), 0.0
            solo = death.case > 0
        waiting = [case for case in waiting if case.key not in done]
