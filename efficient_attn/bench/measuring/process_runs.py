"""The process runs of a group: its cases are timed interleaved in several processes, until the intervals are narrow."""

from __future__ import annotations

import itertools
import math
import secrets
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...engines.job import WorkerDied
from ...instruments.roofline import compute_roofline_share
from ...instruments.timing import SAMPLES_PER_ROUND, RoundPlan
from ...results.rows import Record, Row
from ...results.stats import Estimate, estimate_geometric_mean, estimate_paired_ratio, median
from ..case import Case
from ..case_config import Group
from .conditions import Conditions
from .kernel_counts import select_attention
from .plausibility import explain_implausible
from .prepared_case import make_failure, make_worker_failure
from .round_job import MeasureRounds, ProcessRunEnd, ProcessRunSpoiled, RoundResult

SALT_BYTES = 8
MAX_EXTRA_RUNS = 2  # additional process runs, to replace disturbed ones


@dataclass
class TimedCase:
    """A prepared case during the process runs of its group."""

    case: Case
    row: Row
    samples: dict[str, Any]
    sampling_plan: RoundPlan
    remaining_s: float  # of its budget
    until_timeout_s: float
    rounds: list[list[float]] = field(default_factory=list)  # samples in milliseconds
    process: list[int] = field(default_factory=list)  # by which each round was measured
    disturbed: list[int] = field(default_factory=list)  # samples of each round
    exhausted: bool = False

    @property
    def medians(self) -> list[float]:
        """One value a round."""
        return [median(samples) for samples in self.rounds]

    def add_round(self, samples: list[float], disturbed: int, process: int) -> None:
        """Store the samples of a round, and subtract their time from the budget."""
        self.rounds.append(samples)
        self.process.append(process)
        self.disturbed.append(disturbed)
        self._spend(sum(samples) / 1e3 * self.sampling_plan.cost.calls + len(samples) * self.sampling_plan.cost.reset_s)

    def _spend(self, seconds: float) -> None:
        self.remaining_s -= seconds
        self.until_timeout_s -= seconds

    def plan_rounds(self, per_run: int) -> int:
        """The number of rounds of the next process run that its budget allows, after the warm-up."""
        count = min(per_run, self.sampling_plan.count_affordable_rounds(self.remaining_s))
        if not self.rounds:
            count = max(count, 1)  # a case whose single call fits the budget gets at least one value
        if count:
            self._spend(self.sampling_plan.cost.warm_up_s)
        self.exhausted = count < per_run
        return count


class ProcessRuns:
    """The process runs of a group, until the intervals are narrow or a limit is reached."""

    def __init__(self, group: Group, timed_cases: dict[str, TimedCase], conditions: Conditions) -> None:
        self.group, self.timed_cases, self.conditions = group, timed_cases, conditions
        self.records: dict[str, Record] = {}
        # differs between sessions too: a mechanism that stores results by contents on disk never finds one
        self.seed = zlib.crc32(repr(group).encode() + secrets.token_bytes(SALT_BYTES))
        self.seeds = itertools.count(self.seed)  # one a worker: a repeated process run also gets other contents
        self.rounds_per_run = math.ceil(group.sampling.rounds / group.sampling.processes)
        self.min_runs = math.ceil(group.sampling.rounds / self.rounds_per_run)
        self.max_runs = max(self.min_runs, group.sampling.max_rounds // self.rounds_per_run)
        self.disturbed: dict[int, str] = {}
        self.started: list[float] = []
        self.observations: list[dict[str, Any]] = []
        self.reason = "rounds"

    def run(self) -> dict[str, Record]:
        """Measure process runs until every case is precise enough, or out of time."""
        number = 0
        while self.timed_cases and number < self.max_runs:
            rounds_by_key = {
                key: count
                for key, timed in self.timed_cases.items()
                if not timed.exhausted and (count := timed.plan_rounds(self.rounds_per_run))
            }
            if not rounds_by_key or (
                number >= self.min_runs and self._baseline and self._baseline.case.key not in rounds_by_key
            ):
                self.reason = "budget"  # no speedup would become more precise
                break
            self.conditions.turns.start_process_run()
            self.started.append(time.time())
            self._run_process(rounds_by_key, number)
            number += 1
            min_runs_now = self.min_runs + min(MAX_EXTRA_RUNS, len(self.disturbed))
            if number >= min_runs_now and self._is_precise():
                self.reason = "half_width"
                break
        self._reject_implausible()
        return self.records | {key: self._make_record(timed) for key, timed in self.timed_cases.items()}

    @property
    def _baseline(self) -> TimedCase | None:
        return next((timed for timed in self.timed_cases.values() if timed.case.is_baseline), None)

    def _run_process(self, rounds_by_key: dict[str, int], number: int) -> None:
        """One process run. If its worker dies, or a case disturbs all others, that case fails and the others run
        again."""
        while rounds_by_key:
            keys = list(rounds_by_key)
            try:
                messages = list(self._submit(rounds_by_key, number))
            except WorkerDied as death:
                key = self._find_crashing_case(rounds_by_key, death, number)
                self.records[key] = make_worker_failure(self.timed_cases.pop(key).case, death, self.conditions.timeout_s)
                del rounds_by_key[key]
                continue
            spoiled = next((message for message in messages if isinstance(message, ProcessRunSpoiled)), None)
            if spoiled is None:
                self._add_results(messages, keys, number)
                return
            for key in keys if spoiled.case is None else [keys[spoiled.case]]:
                self._reject(key, spoiled.reason)
                del rounds_by_key[key]

    def _reject(self, key: str, reason: str) -> None:
        """End a case as invalid."""
        self.records[key] = make_failure(self.timed_cases.pop(key).case, "invalid", reason)

    def _submit(self, rounds_by_key: dict[str, int], number: int) -> Any:
        members, conditions = [self.timed_cases[key] for key in rounds_by_key], self.conditions
        job = MeasureRounds(
            group=self.group,
            cases=tuple(timed.case for timed in members),
            sampling_plans=tuple(timed.sampling_plan for timed in members),
            rounds=tuple(rounds_by_key.values()),
            seed=next(self.seeds),
            timeout_s=tuple(timed.until_timeout_s for timed in members),
            memory_bytes=_add_memory(conditions.memory_bytes, len(members), conditions.available_bytes),
            first=number == 0,
            choices=conditions.choices,
        )
        return conditions.engine.run(job)

    def _find_crashing_case(self, rounds_by_key: dict[str, int], death: WorkerDied, number: int) -> str:
        """Run each case in its own worker, the current one first, until one crashes; otherwise the current one."""
        keys = list(rounds_by_key)
        current = keys[max(death.case, 0)]
        if death.status == "timeout" or len(keys) == 1:
            return current
        for key in (current, *(k for k in keys if k != current)):
            try:
                list(self._submit({key: 1}, number))
            except WorkerDied:
                return key
        return current

    def _add_results(self, messages: list[Any], keys: list[str], number: int) -> None:
        for message in messages:
            if isinstance(message, ProcessRunEnd):
                self.observations.append(message.observations)
                if message.disturbance:
                    self.disturbed[number] = message.disturbance
                for index, breaks in message.graph_breaks.items():
                    if (timed := self.timed_cases.get(keys[index])) and self.group.config.compiled:
                        timed.row.graph_breaks = breaks
                for index, joules in message.energy_j.items():
                    if timed := self.timed_cases.get(keys[index]):
                        timed.row.energy_j = joules
                self._compare_kernels({keys[index]: kernels for index, kernels in message.kernels.items()}, number)
            else:
                self._add_round(message, keys, number)

    def _compare_kernels(self, counted: Mapping[str, list[str]], number: int) -> None:
        """Reject cases that ran other kernels of attention in this process run than in preparation. Speedups over a
        baseline among them do not exist."""
        for key, kernels in counted.items():
            if timed := self.timed_cases.get(key):
                prepared = select_attention(timed.samples.get("kernels", kernels))
                if kernels != prepared:
                    lists = f"{' '.join(kernels) or 'none'}, in preparation {' '.join(prepared) or 'none'}"
                    self._reject(key, f"its kernels changed: in process run {number + 1} it ran {lists}")

    def _add_round(self, message: RoundResult, keys: list[str], number: int) -> None:
        for index, (status, reason) in message.failed.items():
            timed = self.timed_cases.pop(keys[index])
            if status == "invalid":
                reason = f"round {len(timed.rounds) + 1}: {reason}"
            self.records[keys[index]] = make_failure(timed.case, status, reason)
        for index, samples in message.samples.items():
            if timed := self.timed_cases.get(keys[index]):
                timed.add_round(samples, message.disturbed.get(index, 0), number)

    def _is_precise(self) -> bool:
        """Whether every interval that can still become narrower is as narrow as required."""
        base = self._baseline
        for timed in self.timed_cases.values():
            if timed.exhausted or (timed is base and len(self.timed_cases) > 1):
                continue
            if base and timed is not base:
                estimate = _estimate_speedup(base, timed)
            else:
                estimate = estimate_geometric_mean(timed.medians, timed.process)
            if not estimate.half_width <= self.group.sampling.half_width:
                return False
        return True

    def _reject_implausible(self) -> None:
        """Reject cases that are faster than the roofline even at the upper end of their interval, before speedups over
        them are computed."""
        for key, timed in list(self.timed_cases.items()):
            row, config = timed.row, self.group.config
            slowest_ms = estimate_geometric_mean(timed.medians, timed.process).high or max(timed.medians)
            reason = explain_implausible(row.flops, row.bytes_moved, slowest_ms / 1e3, config, self.conditions)
            if reason:
                self.records[key] = make_failure(timed.case, "invalid", reason)
                del self.timed_cases[key]

    def _make_record(self, timed: TimedCase) -> Record:
        row = timed.row
        _fill_row(timed, self._baseline, self.conditions)
        limited = timed.exhausted or timed.sampling_plan.samples < SAMPLES_PER_ROUND
        row.stop_reason = "budget" if limited else self.reason
        disturbed = [bool(n) or p in self.disturbed for n, p in zip(timed.disturbed, timed.process, strict=True)]
        row.rounds, row.processes, row.contaminated = len(disturbed), len(set(timed.process)), sum(disturbed)
        row.cache, row.cuda_graph = self.group.config.cache, self.group.config.cuda_graph
        timed.samples |= {
            "latency_ms": timed.rounds,
            "process": timed.process,
            "calls": timed.sampling_plan.cost.calls,
            "order_seed": self.seed,
            "input_seed": self.seed,
            "waited": timed.disturbed,
            "disturbed": {str(process): reason for process, reason in self.disturbed.items()},
            "seen": self.observations,
        }
        if self.conditions.turns.socket is not None:  # by which `compare` pairs the process runs of two runs
            timed.samples["started"] = self.started
        return Record(row, timed.samples)


def _add_memory(each: int | None, count: int, available: int | None) -> int | None:
    if each is None:
        return available
    return each * count if available is None else min(each * count, available)


def _estimate_speedup(base: TimedCase, other: TimedCase) -> Estimate:
    """Over the rounds that both have: the first ones, because a case that exceeds its budget stops early."""
    return estimate_paired_ratio(base.medians, other.medians, other.process)


def _fill_row(timed: TimedCase, baseline: TimedCase | None, conditions: Conditions) -> None:
    row, group, medians = timed.row, timed.case.group, timed.medians
    latency, estimate = median(medians), estimate_geometric_mean(medians, timed.process)
    row.latency_ms = latency
    row.latency_ms_low = estimate.low and min(estimate.low, latency)
    row.latency_ms_high = estimate.high and max(estimate.high, latency)
    seconds = latency / 1e3
    row.tokens_per_s = (group.config.batch if row.mode == "decode" else sum(timed.case.row_lengths)) / seconds
    row.tflops_per_s = None if row.flops is None else row.flops / seconds / 1e12
    roofline = conditions.rooflines.get((group.config.device, group.config.dtype, group.config.threads))
    if roofline is not None and row.bytes_moved is not None:
        cold = group.config.cache == "cold"
        row.read_from = roofline.find_memory_level(row.bytes_moved, cold=cold)
        row.bandwidth_share = roofline.estimate_read_seconds(row.bytes_moved, cold=cold) / seconds
        if row.flops is not None:
            row.roofline_share = compute_roofline_share(row.flops, row.bytes_moved, seconds, roofline, cold=cold)
    if baseline is not None:
        row.speedup, row.speedup_low, row.speedup_high = _estimate_speedup(baseline, timed)
