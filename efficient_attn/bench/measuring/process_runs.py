"""The process runs of a group: its cases are timed interleaved in several processes, until the intervals are narrow."""

from __future__ import annotations

import itertools
import math
import secrets
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

from ...engines.job import WorkerDied
from ...instruments.gpu_trace import GpuTrace
from ...instruments.roofline import compute_roofline_share
from ...instruments.timing import SAMPLES_PER_ROUND, RoundPlan
from ...results.rows import Record, Row, Status
from ...results.stats import Estimate, estimate_geometric_mean, estimate_paired_ratio, median
from ..case import Case
from ..case_config import Group
from .conditions import Conditions
from .kernel_counts import select_attention
from .plausibility import explain_implausible
from .prepared_case import make_failure, make_worker_failure
from .round_job import MeasureRounds, ProcessRunEnd, ProcessRunSpoiled

SALT_BYTES = 8
MAX_EXTRA_RUNS = 2  # additional process runs, to replace disturbed ones


@dataclass
class TimedCase:
    """A prepared case during the process runs of its group. spent_s: of its budget and time limit."""

    case: Case
    row: Row
    samples: dict[str, Any]
    sampling_plan: RoundPlan
    budget_s: float
    timeout_s: float
    spent_s: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)  # samples in milliseconds
    gpu_rounds: list[list[float]] = field(default_factory=list)  # the same samples by a GPU's events
    gpu_trace: GpuTrace | None = None
    process: list[int] = field(default_factory=list)  # by which each round was measured
    disturbed: list[int] = field(default_factory=list)  # samples of each round
    exhausted: bool = False

    @property
    def medians(self) -> list[float]:
        """One value a round."""
        return [median(samples) for samples in self.rounds]

    def add_round(self, samples: list[float], disturbed: int, process: int, gpu: list[float] | None = None) -> None:
        """Store the samples of a round, and count their time."""
        self.rounds.append(samples)
        self.gpu_rounds += [] if gpu is None else [gpu]
        self.process.append(process)
        self.disturbed.append(disturbed)
        cost = self.sampling_plan.cost
        self.spent_s += sum(samples) / 1e3 * cost.calls + len(samples) * cost.reset_s

    def plan_rounds(self, per_run: int) -> int:
        """The number of rounds of the next process run that its budget allows, after the warm-up."""
        count = min(per_run, self.sampling_plan.count_affordable_rounds(self.budget_s - self.spent_s))
        if not self.rounds:
            count = max(count, 1)  # a case whose single call fits the budget gets at least one value
        if count:
            self.spent_s += self.sampling_plan.cost.warm_up_s
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
            base = self._baseline
            if not rounds_by_key or (number >= self.min_runs and base and base.case.key not in rounds_by_key):
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
        for key, timed in list(self.timed_cases.items()):  # before speedups over them are computed
            row, config = timed.row, self.group.config
            slowest_ms = estimate_geometric_mean(timed.medians, timed.process).high or max(timed.medians)
            if reason := explain_implausible(row.flops, row.bytes_moved, slowest_ms / 1e3, config, self.conditions):
                self._fail(key, "invalid", reason)
        return self.records | {key: self._make_record(timed) for key, timed in self.timed_cases.items()}

    @property
    def _baseline(self) -> TimedCase | None:
        return next((timed for timed in self.timed_cases.values() if timed.case.is_baseline), None)

    def _fail(self, key: str, status: Status, reason: str) -> None:
        self.records[key] = make_failure(self.timed_cases.pop(key).case, status, reason)

    def _run_process(self, rounds_by_key: dict[str, int], number: int) -> None:
        """One process run. If its worker dies, or a case disturbs all others, that case fails and the others run
        again."""
        while rounds_by_key:
            keys = list(rounds_by_key)
            try:
                messages = list(self._submit(rounds_by_key, number))
            except WorkerDied as death:
                key, limit_s = self._find_crashing_case(keys, death, number), self.conditions.timeout_s
                self.records[key] = make_worker_failure(self.timed_cases.pop(key).case, death, limit_s)
                del rounds_by_key[key]
                continue
            spoiled = next((message for message in messages if isinstance(message, ProcessRunSpoiled)), None)
            if spoiled is None:
                self._add_results(messages, keys, number)
                return
            for key in keys if spoiled.case is None else [keys[spoiled.case]]:
                self._fail(key, spoiled.status, spoiled.reason)
                del rounds_by_key[key]

    def _submit(self, rounds_by_key: dict[str, int], number: int) -> Any:
        members, conditions = [self.timed_cases[key] for key in rounds_by_key], self.conditions
        job = MeasureRounds(
            group=self.group,
            cases=tuple(timed.case for timed in members),
            sampling_plans=tuple(timed.sampling_plan for timed in members),
            rounds=tuple(rounds_by_key.values()),
            seed=next(self.seeds),
            timeout_s=tuple(timed.timeout_s - timed.spent_s for timed in members),
            memory_bytes=conditions.limit_memory(self.group.config.device, len(members)),
            first=number == 0,
            choices=conditions.choices,
        )
        return conditions.engine.run(job)

    def _find_crashing_case(self, keys: list[str], death: WorkerDied, number: int) -> str:
        """Run each case in its own worker, the current one first, until one crashes; otherwise the current one."""
        current = keys[max(death.case, 0)]
        if death.status == "timeout" or len(keys) == 1:
            return current
        for key in dict.fromkeys([current, *keys]):
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
                timed_by_index = {i: self.timed_cases[key] for i, key in enumerate(keys) if key in self.timed_cases}
                for index, timed in timed_by_index.items():
                    if self.group.config.compiled:
                        timed.row.graph_breaks = message.graph_breaks.get(index)
                    timed.row.energy_j = message.energy_j.get(index, timed.row.energy_j)
                    timed.row.idle_watts = message.idle_watts if index in message.energy_j else timed.row.idle_watts
                    timed.gpu_trace = message.gpu.get(index, timed.gpu_trace)
                    # a case that ran other kernels of attention than in preparation; if it is the baseline, there are
                    # no speedups
                    kernels = message.kernels.get(index)
                    prepared = select_attention(timed.samples.get("kernels", kernels or ()))
                    if kernels is not None and kernels != prepared:
                        lists = f"{' '.join(kernels) or 'none'}, in preparation {' '.join(prepared) or 'none'}"
                        changed = f"its kernels changed: in process run {number + 1} it ran {lists}"
                        self._fail(keys[index], "invalid", changed)
                continue
            for index, (status, reason) in message.failed.items():
                n_rounds = len(self.timed_cases[keys[index]].rounds)
                self._fail(keys[index], status, f"round {n_rounds + 1}: {reason}" if status == "invalid" else reason)
            for index, samples in message.samples.items():
                if timed := self.timed_cases.get(keys[index]):
                    timed.add_round(samples, message.disturbed.get(index, 0), number, message.gpu.get(index))

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

    def _make_record(self, timed: TimedCase) -> Record:
        row, config, medians, baseline = timed.row, self.group.config, timed.medians, self._baseline
        row.latency_ms = median(medians)
        estimate = estimate_geometric_mean(medians, timed.process)
        row.latency_ms_low = estimate.low and min(estimate.low, row.latency_ms)
        row.latency_ms_high = estimate.high and max(estimate.high, row.latency_ms)
        seconds = row.latency_ms / 1e3
        row.tokens_per_s = (config.batch if row.mode == "decode" else sum(timed.case.row_lengths)) / seconds
        row.tflops_per_s = None if row.flops is None else row.flops / seconds / 1e12
        roofline = self.conditions.rooflines.get((config.device, config.dtype, config.threads))
        if roofline is not None and row.bytes_moved is not None:
            cold = config.cache == "cold"
            row.read_from = roofline.find_memory_level(row.bytes_moved, cold=cold)
            row.bandwidth_share = roofline.estimate_read_seconds(row.bytes_moved, cold=cold) / seconds
            if row.flops is not None:
                row.roofline_share = compute_roofline_share(row.flops, row.bytes_moved, seconds, roofline, cold=cold)
        if baseline is not None:
            row.speedup, row.speedup_low, row.speedup_high = _estimate_speedup(baseline, timed)
        limited = timed.exhausted or timed.sampling_plan.samples < SAMPLES_PER_ROUND
        row.stop_reason = "budget" if limited else self.reason
        disturbed = [bool(n) or p in self.disturbed for n, p in zip(timed.disturbed, timed.process, strict=True)]
        row.rounds, row.processes, row.contaminated = len(disturbed), len(set(timed.process)), sum(disturbed)
        row.cache, row.cuda_graph = config.cache, config.cuda_graph
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
        if timed.gpu_rounds:
            timed.samples["gpu_ms"] = timed.gpu_rounds
            row.gpu_ms = median([median(samples) for samples in timed.gpu_rounds])
        if timed.gpu_trace is not None and row.gpu_ms is not None:
            row.launches, row.gpu_busy_ms = timed.gpu_trace.launches, timed.gpu_trace.busy_ms
            row.launch_bound = timed.gpu_trace.is_launch_bound(row.gpu_ms)
        if self.conditions.turns.socket is not None:  # by which `compare` pairs the process runs of two runs
            timed.samples["started"] = self.started
        return Record(row, timed.samples)


def _estimate_speedup(base: TimedCase, other: TimedCase) -> Estimate:
    """Over the rounds that both have: the first ones, because a case that exceeds its budget stops early."""
    return estimate_paired_ratio(base.medians, other.medians, other.process)
