"""Measure the groups of a run: cases whose tasks allow it at the same time, all others one after another."""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch

from ...engines.turns import Turns
from ...errors import UsageError
from ...instruments.environment.machine import count_usable_cores
from ...results.rows import Record
from ..case import Case
from ..case_config import Group
from ..task_registry import find_task
from .conditions import Conditions
from .group import evaluate_case, measure_group

POLL_S = 0.02  # between two looks at all workers
ENDED = object()

PlannedGroup = tuple[Group, Sequence[Case]]


class UnusedJobs(UserWarning):
    """A number of jobs that has no effect."""


def is_parallel(group: Group) -> bool:
    """Whether cases of a group may be evaluated at the same time as others."""
    return find_task(group.target).chain is not None


def find_chain(case: Case) -> Hashable:
    """What a case of such a group has in common with those that must not run at the same time."""
    chain = find_task(case.group.target).chain
    assert chain is not None
    return chain(case)


def identify_unit(case: Case) -> Hashable:
    """What a case has in common with those that run on the same machine: the chain of its training, the cases of which
    it reads rows, or else its group."""
    together = find_task(case.group.target).together
    if is_parallel(case.group):
        return "chain", find_chain(case)
    return ("together", together(case)) if together else ("group", case.group)


def check_jobs(groups: Sequence[Group], jobs: int, turns: Turns | None = None) -> None:
    """Raise `UsageError` if the threads of so many jobs exceed the cores, or with turns of another run; warn if no
    group can run in parallel."""
    if jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {jobs}")
    if jobs == 1:
        return
    if turns is not None and turns.socket is not None:
        raise UsageError("--jobs does not go with --turns, whose two runs take turns at the processor")
    threads = [group.config.threads or torch.get_num_threads() for group in groups if is_parallel(group)]
    if not threads:
        warnings.warn(f"--jobs {jobs} has no effect: none of these cases is a training", UnusedJobs, stacklevel=3)
    elif (needed := jobs * max(threads)) > (usable := count_usable_cores()):
        each = "1 thread" if max(threads) == 1 else f"{max(threads)} threads"
        remedy = f"--jobs {usable}" if max(threads) == 1 else "--threads 1"
        raise UsageError(f"--jobs {jobs} with {each} each needs {needed} cores, and {usable} are usable; give {remedy}")


def measure_groups(planned: Sequence[PlannedGroup], conditions: Conditions, jobs: int) -> Generator[Record, None, None]:
    """One record for every case, in order; those of parallel groups that follow each other, as they come.

    Each of the ``jobs`` workers may use its share of the available memory.
    """
    shares = [conditions.memory_bytes, conditions.available_bytes and conditions.available_bytes // jobs]
    memory_bytes = min((share for share in shares if share is not None), default=None)
    for parallel, batch in groupby(planned, lambda item: jobs > 1 and is_parallel(item[0])):
        if parallel:
            cases = [case for _, members in batch for case in members]
            yield from evaluate_cases(cases, replace(conditions, jobs=jobs, memory_bytes=memory_bytes))
            continue
        for group, members in batch:
            conditions.turns.start_group()
            yield from measure_group(group, members, conditions)


def evaluate_cases(cases: Sequence[Case], conditions: Conditions) -> Iterator[Record]:
    """A record for every case, as they come, each before the next case of its chain starts."""
    pending = [(find_chain(case), case) for case in cases]
    running: dict[Hashable, Generator[Record | None, None, None]] = {}
    try:
        while pending or running:
            for chain, case in list(pending):
                if len(running) < conditions.jobs and chain not in running:
                    running[chain] = evaluate_case(case, conditions)
                    pending.remove((chain, case))
            is_idle = True
            for chain, outcomes in list(running.items()):
                outcome = next(outcomes, ENDED)
                is_idle = is_idle and outcome is None
                if isinstance(outcome, Record):
                    yield outcome
                elif outcome is ENDED:
                    del running[chain]
            if is_idle:
                time.sleep(POLL_S)
    finally:
        for outcomes in running.values():
            outcomes.close()  # which ends its worker
