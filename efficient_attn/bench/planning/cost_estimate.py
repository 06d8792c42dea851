"""Estimate the time and memory of a plan, from the mechanisms' growth and a short measurement of the machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ...contract.decode_state import state_bytes
from ...contract.mechanism import Attention
from ...errors import UnsupportedError
from ...instruments.environment.devices import describe_absence
from ...instruments.roofline import Roofline, measure_roofline_rates, merge_rooflines
from ...instruments.timing import MIN_SAMPLE_S, SampleCost, plan_samples
from ..case import Case, group_cases
from ..case_config import Group
from ..measuring.inputs import draw_inputs
from ..measuring.samples import FLUSH_BYTES, MIN_STEPS
from ..measuring.workload import BACKWARD, list_key_inputs
from ..task import Guess
from ..task_registry import find_task

# Measured on the machine of the published runs; each should be right within a factor of two elsewhere.
EFFICIENCY = {"sdpa": 0.75, "dense": 0.25}  # share of a matrix product's rate that a backend reaches
OTHERWISE = 0.45
LAUNCH_S = 5e-5  # overhead of a call
STATE_READS = 1.5  # times that a decode step seems to read its state, at the best rate
SET_UP = 4  # times its state that setting up a context seems to move
HELD = 2  # memory of inputs relative to their size: random rows, and the tensors passed
REWRITE = 2  # times their bytes that inputs with new contents move
INSPECT_S = 0.02  # for each round: the reference on some rows of a timed call
QUICK_LOOKS = 3  # at the machine: the best counts, as each may fall into a slow moment
PROBES = (256, 512)  # contexts from which a state's growth is read off
CALLS = 7  # calls in preparation: a first one, two for verification, two to count memory, two to calibrate
FIXED_S = 0.3  # verification and profile of a case, whatever its size
DRAW_S = 8e-9  # for a number of the inputs
START_S = 0.2  # for a worker, and for torch's first products in it
PROFILER_S = 0.7  # for the first profile in a worker
SESSION_S = 4.0  # imports, fork server, measuring the machine, and the report
COMPILE_S = 15.0  # for torch.compile, in every worker


@dataclass(frozen=True)
class CostEstimate:
    """Seconds in total, the most bytes of any group, and for each case key its share of both.

    absent: devices that this machine does not have, with the reason; they are not estimated.
    """

    wall_s: float
    peak_bytes: int
    cases: Mapping[str, tuple[float, int]]
    absent: Mapping[str, str] = field(default_factory=dict)


def estimate_cost(cases: Sequence[Case], *, best: Roofline | None = None) -> CostEstimate:
    """The cost of running cases here. best: the machine's rates, measured in less than a second if not given."""
    rates: dict[tuple[str, str, int | None], Roofline] = {}
    costs: dict[str, tuple[float, int]] = {}
    devices = {device: describe_absence(device) for device in {case.group.config.device for case in cases}}
    absent = {device: reason for device, reason in sorted(devices.items()) if reason}
    peak = 0
    for cell, members in group_cases(cases):
        if cell.config.device in absent:
            continue
        setting = cell.config.device, cell.config.dtype, cell.config.threads
        if setting not in rates:
            rates[setting] = best or merge_rooflines(
                [measure_roofline_rates(*setting, rough=True) for _ in range(QUICK_LOOKS)]
            )
        guesses = {case.key: estimate_case(case, rates[setting]) for case in members}
        seconds = _seconds(cell, guesses, rates[setting])
        costs |= {key: (seconds[key], HELD * g.input_bytes + g.call_bytes) for key, g in guesses.items()}
        # a process run holds the inputs and decode states of all its cases; calls run one after another
        held, calls = HELD * sum(g.input_bytes for g in guesses.values()), [g.call_bytes for g in guesses.values()]
        peak = max(peak, held + (sum(calls) if cell.config.mode == "decode" else max(calls)))
    wall = sum(seconds for seconds, _ in costs.values())
    return CostEstimate(wall + SESSION_S if wall else 0.0, peak, costs, absent)


# -- one case ------------------------------------------------------------------------------------------------------


def estimate_case(case: Case, best: Roofline) -> Guess:
    """The task's estimate; nothing for unsupported mechanisms, or without a declared growth."""
    try:
        return find_task(case.group.target).guess(case, best)
    except UnsupportedError:
        return Guess(0.0, 0, 0)


def estimate_call(case: Case, best: Roofline) -> Guess:
    """The estimate for one call of a case's mechanism."""
    place, s, attn = case.group.config, case.shape, case.create()
    size = getattr(torch, place.dtype).itemsize
    widths = (attn.key_dim or s.head_dim) + (s.value_dim if attn.traits.values else 0)
    keys = s.batch * s.kv_heads * s.m * widths * size
    queries, output = (s.batch * s.heads * s.n * width * size for width in (s.head_dim, s.value_dim))
    if place.mode == "decode":
        state = _state_bytes(case, attn)
        return Guess(LAUNCH_S + STATE_READS * state / best.bytes_per_s, queries + keys, state)
    # padding may be computed like the rest; packed sequences of one length share a call
    calls = Counter(case.row_lengths) if place.fill == "packed" else {s.n: s.batch}
    pairs = sum(rows * attn.growth.cost(n, n, place.causal) for n, rows in calls.items())
    operations = 2 * (s.head_dim + s.value_dim) * s.heads * pairs
    training = place.mode == "forward_backward"
    operations *= 1 + BACKWARD if training else 1
    output += keys if place.mode == "prefill" else 0  # the state of a step
    moved = (queries + keys + output) * (2 if training else 1)
    rate = EFFICIENCY.get(attn.backend, OTHERWISE) * best.gemm_flops_per_s
    call_s = LAUNCH_S * len(calls) + max(operations / rate, moved / best.bytes_per_s)
    workspace = attn.workspace_bytes(s, size, causal=place.causal, training=training)
    compile_s = COMPILE_S if place.compiled or attn.compiles else 0.0
    return Guess(call_s, queries + keys, output + workspace, compile_s)


def _state_bytes(case: Case, attn: Attention) -> int:
    """Bytes of the state after the context: those of two short contexts, continued as a line."""
    m, (less, more) = case.shape.m, PROBES
    if m <= more:
        return _measured_state(case, attn, m)
    small, large = (_measured_state(case, attn, length) for length in PROBES)
    return large + (large - small) * (m - more) // (more - less)


def _measured_state(case: Case, attn: Attention, length: int) -> int:
    dtype, device = getattr(torch, case.group.config.dtype), case.group.config.device
    sample = draw_inputs(case, attn, replace(case.shape, n=length, m=length))
    with torch.no_grad():
        state = attn.init_state(case.shape.batch, length, dtype, device)
        return state_bytes(attn.absorb(sample.k, sample.v, state, **list_key_inputs(attn, sample)))


# -- a cell --------------------------------------------------------------------------------------------------------


def _seconds(cell: Group, guesses: Mapping[str, Guess], best: Roofline) -> dict[str, float]:
    """Seconds of each case, with its share of the overhead of the group's workers."""
    timed = find_task(cell.target).work is not None
    sittings = cell.sampling.processes if timed else 0
    starts = (START_S * (1 + sittings) + PROFILER_S) / len(guesses)
    seconds = {key: starts + FIXED_S + CALLS * g.call_s for key, g in guesses.items()}
    if not timed:
        return seconds
    paces = {key: _estimate_pace(cell, g) for key, g in guesses.items() if 0 < g.call_s <= cell.sampling.budget_s}
    rounds = math.sqrt(
        cell.sampling.rounds * cell.sampling.max_rounds
    )  # noise determines the number of rounds between the two
    parts = plan_samples(paces, rounds=cell.sampling.rounds, processes=sittings, budget_s=cell.sampling.budget_s)
    for key, g in guesses.items():
        if key not in paces:  # it is stopped in its first call
            seconds[key] = starts + FIXED_S + min(g.call_s, cell.sampling.budget_s)
            continue
        pace, passes = paces[key], parts[key].samples * rounds
        inputs = DRAW_S * g.input_bytes / getattr(torch, cell.config.dtype).itemsize
        seconds[key] += (inputs + pace.warm_up_s + g.compile_s) * (1 + sittings)
        seconds[key] += min(passes * pace.calls_s, cell.sampling.budget_s) + passes * _interpolate(cell, g, best)
        seconds[key] += rounds * INSPECT_S
    return seconds


def _interpolate(cell: Group, g: Guess, best: Roofline) -> float:
    """Uncounted seconds before every sample: new inputs, a new context, or emptied caches."""
    renewed = REWRITE * g.input_bytes + (SET_UP * g.call_bytes if cell.config.mode == "decode" else 0)
    return (renewed + (2 * FLUSH_BYTES if cell.config.cache == "cold" else 0)) / best.bytes_per_s


def _estimate_pace(cell: Group, g: Guess) -> SampleCost:
    """The number of calls in a sample, and its time."""
    if cell.config.cache == "cold":
        return SampleCost(1, g.call_s)
    calls = max(math.ceil(MIN_SAMPLE_S / max(g.call_s, LAUNCH_S)), MIN_STEPS if cell.config.mode == "decode" else 1)
    return SampleCost(calls, calls * g.call_s)
