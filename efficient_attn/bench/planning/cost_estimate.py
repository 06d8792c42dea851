"""Estimate the time and memory of a plan, from the mechanisms' growth and a short measurement of the machine, and
compare the memory with what the machine has."""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch

from ... import units
from ...contract.decode_state import state_bytes
from ...contract.mechanism import Attention
from ...errors import UnsupportedError, UsageError
from ...instruments.environment import describe_absence, find_available_memory, find_total_memory
from ...instruments.roofline import Roofline, measure_roofline_rates, merge_rooflines
from ...instruments.timing import MIN_SAMPLE_S, SampleCost, plan_samples
from ...layers.named import find_baseline
from ..case import Case, group_cases
from ..case_config import Group
from ..measuring.inputs import draw_inputs
from ..measuring.parallel import check_jobs, find_chain, is_parallel
from ..measuring.samples import FLUSH_BYTES, MIN_STEPS
from ..measuring.turn_guard import is_built_in
from ..measuring.workload import BACKWARD, list_key_inputs
from ..task import Guess
from ..task_registry import find_task

# Fitted to quickstart and promises with torch's kernels on AMD Zen 4 and Intel Xeon Emerald Rapids: 154 of 159 times
# within a factor of two. In C++, windows take half of it and linear attention a third; estimates stay above.
EFFICIENCY = {"sdpa": 0.55, "dense": 0.2}  # share of a matrix product's rate that a backend reaches
DEFAULT_EFFICIENCY = 0.3  # of other backends
LAUNCH_S = 1e-4  # overhead of a call
STATE_READS = 2.5  # bytes that a decode step reads at the best rate, relative to its state
CONTEXT_WRITES = 4  # bytes that creating a context's state moves, relative to the state
INPUT_COPIES = 2  # memory of inputs relative to their size: the drawn rows, and the tensors passed
INPUT_WRITES = 2  # bytes that changing the inputs moves, relative to their size
VERIFY_S = 0.02  # for each round: the reference on some rows of a timed call
ROUGH_MEASUREMENTS = 3  # of the machine, of which the best counts
STATE_LENGTHS = (256, 512)  # contexts from whose states the size of a larger one is extrapolated
CALLS = 7  # calls in preparation: a first one, two for verification, two to count memory, two to calibrate
FIXED_S = 0.3  # for verifying and profiling a case of any size
DRAW_S = 8e-9  # for a number of the inputs
START_S = 0.2  # for a worker and torch's first products in it
PROFILER_S = 0.7  # for the first profile in a worker
SESSION_S = 4.0  # for imports, the fork server, measuring the machine, and the report
COMPILE_S = 15.0  # for torch.compile, in every worker

LARGE_SHARE = 0.5  # of the available memory, above which a plan gets a warning
MAX_NAMED = 3  # groups in a message
ANY_RATES = Roofline(1.0, 1.0)  # the estimate of memory does not depend on them


@dataclass(frozen=True)
class CostEstimate:
    """Seconds in total, the bytes of each group, and for each case key its share of both.

    absent: devices that this machine does not have, with the reason; they are not estimated. over_budget: baselines of
    which a call is expected to exceed the time budget of a case.
    """

    wall_s: float
    peaks: Mapping[Group, int]
    cases: Mapping[str, tuple[float, int]]
    absent: Mapping[str, str] = field(default_factory=dict)
    over_budget: Sequence[str] = ()

    @property
    def peak_bytes(self) -> int:
        """The most bytes of any group."""
        return max(self.peaks.values(), default=0)

    def describe_over_budget(self) -> str:
        """Why there will be no speedups, in a line; empty if no baseline exceeds the time budget."""
        names = ", ".join([*self.over_budget[:MAX_NAMED], *["others"] * (len(self.over_budget) > MAX_NAMED)])
        return (
            f"no speedups are expected where a call of the baseline exceeds the time budget: {names}" if names else ""
        )


def estimate_cost(cases: Sequence[Case], *, best: Roofline | None = None, jobs: int = 1) -> CostEstimate:
    """The cost of running cases on this machine. best: its rates, measured in less than a second if not given. jobs:
    trainings at the same time. Raises `UsageError` for more than the cores allow."""
    check_jobs([group for group, _ in group_cases(cases)], jobs)
    rates: dict[tuple[str, str, int | None], Roofline] = {}
    costs: dict[str, tuple[float, int]] = {}
    devices = {device: describe_absence(device) for device in {case.group.config.device for case in cases}}
    absent = {device: reason for device, reason in sorted(devices.items()) if reason}
    peaks: dict[Group, int] = {}
    over_budget: list[str] = []
    for group, members in group_cases(cases):
        if group.config.device in absent:
            continue
        setting = group.config.device, group.config.dtype, group.config.threads
        if setting not in rates:
            measured = (measure_roofline_rates(*setting, rough=True) for _ in range(ROUGH_MEASUREMENTS))
            rates[setting] = best or merge_rooflines(list(measured))
        guesses = {case.key: estimate_case(case, rates[setting]) for case in members}
        seconds = _estimate_seconds(group, guesses, rates[setting])
        budget_s = group.sampling.budget_s if find_task(group.target).work is not None else math.inf
        late = (case for case in members if case.is_baseline and guesses[case.key].call_s > budget_s)
        over_budget += [f"{case.variant} at {group.config.seq_len:,} ({budget_s:g} s)" for case in late]
        costs |= {key: (seconds[key], INPUT_COPIES * g.input_bytes + g.call_bytes) for key, g in guesses.items()}
        # a process run stores the inputs and decode states of all its cases; calls run one after another
        inputs = INPUT_COPIES * sum(g.input_bytes for g in guesses.values())
        calls = [g.call_bytes for g in guesses.values()]
        peaks[group] = inputs + (sum(calls) if group.config.mode == "decode" else max(calls))
        if is_parallel(group):  # each worker has a model of its own
            peaks[group] = jobs * max(costs[case.key][1] for case in members)
    wall = _estimate_wall(cases, {key: seconds for key, (seconds, _) in costs.items()}, jobs)
    return CostEstimate(wall + SESSION_S if wall else 0.0, peaks, costs, absent, tuple(dict.fromkeys(over_budget)))


def _estimate_wall(cases: Sequence[Case], seconds: Mapping[str, float], jobs: int) -> float:
    """Seconds of all cases; where they run in parallel, those of the workers, or of the longest chain if it takes
    longer."""
    wall = 0.0
    for parallel, batch in groupby(cases, lambda case: jobs > 1 and is_parallel(case.group)):
        chains: defaultdict[Hashable, float] = defaultdict(float)
        for case in batch:
            chains[find_chain(case) if parallel else None] += seconds.get(case.key, 0.0)
        wall += max(sum(chains.values()) / (jobs if parallel else 1), *chains.values())
    return wall


# -- one case ------------------------------------------------------------------------------------------------------


def estimate_case(case: Case, best: Roofline) -> Guess:
    """The task's estimate; zero for unsupported mechanisms and those without a declared growth."""
    try:
        return find_task(case.group.target).guess(case, best)
    except UnsupportedError:
        return Guess(0.0, 0, 0)


def estimate_call(case: Case, best: Roofline) -> Guess:
    """The estimate for one call of a case's mechanism."""
    config, s, attn = case.group.config, case.shape, case.create()
    size = getattr(torch, config.dtype).itemsize
    widths = (attn.key_dim or s.head_dim) + (s.value_dim if attn.traits.values else 0)
    keys = s.batch * s.kv_heads * s.m * widths * size
    queries, output = (s.batch * s.heads * s.n * width * size for width in (s.head_dim, s.value_dim))
    if config.mode == "decode":
        state = _estimate_state_bytes(case, attn)
        return Guess(LAUNCH_S + STATE_READS * state / best.bytes_per_s, queries + keys, state)
    # padding may be computed like the rest; packed sequences of one length share a call
    calls = Counter(case.row_lengths) if config.fill == "packed" else {s.n: s.batch}
    pairs = sum(rows * attn.growth.cost(n, n, config.causal) for n, rows in calls.items())
    operations = 2 * (s.head_dim + s.value_dim) * s.heads * pairs
    training = config.mode == "forward_backward"
    operations *= 1 + BACKWARD if training else 1
    output += keys if config.mode == "prefill" else 0  # the decode state
    moved = (queries + keys + output) * (2 if training else 1)
    rate = EFFICIENCY.get(attn.backend, DEFAULT_EFFICIENCY) * best.gemm_flops_per_s
    call_s = LAUNCH_S * len(calls) + max(operations / rate, moved / best.bytes_per_s)
    workspace = attn.workspace_bytes(s, size, causal=config.causal, training=training)
    compile_s = COMPILE_S if config.compiled or attn.compiles_on(config.device) else 0.0
    return Guess(call_s, queries + keys, output + workspace, compile_s)


def _estimate_state_bytes(case: Case, attn: Attention) -> int:
    """Bytes of the state after the context, extrapolated linearly from two short contexts."""
    m, (short, long) = case.shape.m, STATE_LENGTHS
    if m <= long:
        return _measure_state_bytes(case, attn, m)
    small, large = (_measure_state_bytes(case, attn, length) for length in STATE_LENGTHS)
    return large + (large - small) * (m - long) // (long - short)


def _measure_state_bytes(case: Case, attn: Attention, length: int) -> int:
    dtype, device = getattr(torch, case.group.config.dtype), case.group.config.device
    sample = draw_inputs(case, attn, replace(case.shape, n=length, m=length))
    with torch.no_grad():
        state = attn.init_state(case.shape.batch, length, dtype, device)
        return state_bytes(attn.absorb(sample.k, sample.v, state, **list_key_inputs(attn, sample)))


# -- one group -----------------------------------------------------------------------------------------------------


def _estimate_seconds(group: Group, guesses: Mapping[str, Guess], best: Roofline) -> dict[str, float]:
    """Seconds of each case, with its share of the overhead of the group's workers."""
    is_timed, sampling = find_task(group.target).work is not None, group.sampling
    processes = sampling.processes if is_timed else 0
    starts = (START_S * (1 + processes) + PROFILER_S) / len(guesses)
    seconds = {key: starts + FIXED_S + CALLS * g.call_s for key, g in guesses.items()}
    if not is_timed:
        return seconds
    costs = {key: _estimate_sample(group, g) for key, g in guesses.items() if 0 < g.call_s <= sampling.budget_s}
    plans = plan_samples(costs, rounds=sampling.rounds, processes=processes, budget_s=sampling.budget_s)
    rounds = math.sqrt(sampling.rounds * sampling.max_rounds)  # noise determines the number between the two
    for key, g in guesses.items():
        if key not in costs:  # it is stopped in its first call
            seconds[key] = starts + FIXED_S + min(g.call_s, sampling.budget_s)
            continue
        cost, samples = costs[key], plans[key].samples * rounds
        inputs = DRAW_S * g.input_bytes / getattr(torch, group.config.dtype).itemsize
        seconds[key] += (inputs + cost.warm_up_s + g.compile_s) * (1 + processes)
        seconds[key] += min(samples * cost.calls_s, sampling.budget_s) + samples * _estimate_reset(group, g, best)
        seconds[key] += rounds * VERIFY_S
    return seconds


def _estimate_reset(group: Group, g: Guess, best: Roofline) -> float:
    """Untimed seconds before every sample: changing the inputs, creating a context's state, flushing the caches."""
    moved = INPUT_WRITES * g.input_bytes + (CONTEXT_WRITES * g.call_bytes if group.config.mode == "decode" else 0)
    return (moved + (2 * FLUSH_BYTES if group.config.cache == "cold" else 0)) / best.bytes_per_s


def _estimate_sample(group: Group, g: Guess) -> SampleCost:
    """The number of calls in a sample, and its time."""
    if group.config.cache == "cold":
        return SampleCost(1, g.call_s)
    calls = max(math.ceil(MIN_SAMPLE_S / max(g.call_s, LAUNCH_S)), MIN_STEPS if group.config.mode == "decode" else 1)
    return SampleCost(calls, calls * g.call_s)


# -- the expected memory, compared with what the machine has -----------------------------------------------------------


def check_memory(cases: Sequence[Case]) -> None:
    """Raise `UsageError` if cases are expected to need more than the machine's memory. Mechanisms of plug-ins are
    ignored, as their code only runs in workers."""
    built_in = [
        case
        for case in cases
        if not find_task(case.group.target).mechanisms
        or (case.group.of_blocks and find_baseline(case.variant))
        or is_built_in(case)
    ]
    estimate, total = estimate_cost(built_in, best=ANY_RATES), find_total_memory()
    if total is not None and (large := _describe_large(built_in, estimate, total)):
        remedy = "select other lengths or mechanisms, or give --memory-limit SIZE, at which a case is stopped"
        raise UsageError(f"run: {large}, and this machine has {units.rough_size(total)}; {remedy}")
    warn_of_memory(built_in, estimate)


def warn_of_memory(cases: Sequence[Case], estimate: CostEstimate) -> None:
    """Warn of cases that are expected to need more than half of the available memory."""
    available = find_available_memory()
    if available is not None and (large := _describe_large(cases, estimate, LARGE_SHARE * available)):
        is_refused = _describe_large(cases, estimate, find_total_memory() or math.inf)
        more = "; run refuses more than the machine has" if is_refused else ""
        warnings.warn(f"{large}; {units.rough_size(available)} are available{more}", stacklevel=2)


def _describe_large(cases: Sequence[Case], estimate: CostEstimate, limit: float) -> str:
    """The groups above a limit, the largest first, each with its largest mechanism; empty if there are none."""
    sizes: dict[str, int] = {}
    for group, members in group_cases(cases):
        peak, config = estimate.peaks.get(group, 0), group.config
        if peak > limit and config.device == "cpu":
            largest = max(members, key=lambda case: estimate.cases[case.key][1])
            batch = f", batch {config.batch}" if config.batch > 1 else ""
            name = f"part {group.part!r}, {config.mode or group.task} at {config.seq_len:,}{batch} ({largest.variant})"
            sizes[name] = max(peak, sizes.get(name, 0))
    names = [f"{name} about {units.rough_size(sizes[name])}" for name in sorted(sizes, key=lambda name: -sizes[name])]
    more = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    return f"expected memory: {', '.join([*names[:MAX_NAMED], *more])}" if names else ""
