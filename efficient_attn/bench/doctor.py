"""Check how well this machine can measure at the moment, and what would help."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import torch

from ..instruments.disturbance import DisturbanceWatch
from ..instruments.environment.gpu import list_gpus, read_sensors
from ..instruments.environment.readings import Unknown, value_or_none
from ..instruments.memory import verify_memory_counter
from ..instruments.roofline import measure_roofline_rates, measure_timer_overhead, measure_timer_resolution
from ..instruments.timing import MIN_SAMPLE_S
from ..results.exchange import list_round_values
from ..results.stats import MARGIN, Estimate, classify_ratio, estimate_paired_ratio, t_quantile
from ..spec import Spec
from .case_config import CaseConfig, Group, Sampling
from .measuring.conditions import Conditions
from .measuring.group import measure_group
from .measuring.kernel_choices import check_choices
from .measuring.preparation import prepare_case
from .measuring.workload import Workload
from .planning.case_factory import make_case
from .planning.cost_estimate import estimate_call
from .readiness import (
    Diagnosis,
    Finding,
    check_frequency,
    check_load,
    check_memory,
    check_threads,
    check_virtualisation,
)
from .task import Task

ROUNDS = 8  # of an ordinary run, for which the noise floor is reported
DTYPE = {"cuda": "bfloat16"}  # in noise measurements; elsewhere float32
# a call timed against itself, as calls are timed in any run
NOISE = Task(name="noise", words=(), plan=lambda asked: (), judge=prepare_case, guess=estimate_call, work=Workload)


def diagnose(*, quick: bool = False, threads: int | None = None, device: str = "cpu") -> Diagnosis:
    """Check the machine: about 6 seconds, with ``quick`` 3. threads: the number to be measured with."""
    count = threads or torch.get_num_threads()
    findings = [check_threads(count), check_frequency(), check_virtualisation(), check_memory(), _check_clock()]
    if device == "cuda":
        findings.append(_check_gpu())
    if device == "cpu" or torch.cuda.is_available():
        findings += [_check_memory_counter(device), *_check_roofline(device, count)]
        findings += [check_choices(count)] if device == "cpu" else []
        findings.append(_check_noise(device, threads, quick))
    return Diagnosis(tuple(findings))


def _check_gpu() -> Finding:
    names = list_gpus()
    if not names:
        return Finding(topic="gpu", said="no CUDA device on this machine", level="problem", advice="use --device cpu")
    now = read_sensors()
    message = ", ".join(f"{name} {value}" for name, value in now.items() if not isinstance(value, Unknown))
    untold = next((value.reason for value in now.values() if isinstance(value, Unknown)), None)
    return Finding(
        topic="gpu",
        said=f"{names[0]}: {message or 'no sensors'}",
        level="note" if untold else "ok",
        advice=f"clock, power and temperature are not available: {untold}" if untold else None,
        numbers={name: value_or_none(value) for name, value in now.items()},
    )


# -- trial measurements -----------------------------------------------------------------------------------------------


def _check_clock() -> Finding:
    overhead, resolution = measure_timer_overhead(), measure_timer_resolution()
    coarse = max(overhead, resolution) > MIN_SAMPLE_S / 1000
    return Finding(
        topic="clock",
        said=f"reading it takes {overhead * 1e9:.0f} ns, its resolution is {resolution * 1e9:.0f} ns",
        level="problem" if coarse else "ok",
        advice="the clock is too coarse for samples of 2 ms: check the system's clock source" if coarse else None,
        numbers={"overhead_s": overhead, "resolution_s": resolution},
    )


def _check_memory_counter(device: str) -> Finding:
    counted = verify_memory_counter(device)
    if counted["ok"] is None:
        return Finding(topic="counting", said=str(counted["reason"]), level="note", numbers=counted)
    message = f"{counted['measured_bytes']} bytes counted of {counted['expected_bytes']} allocated"
    if counted["ok"]:
        return Finding(topic="counting", said=message, numbers=counted)
    advice = "do not use the memory columns of this machine"
    return Finding(topic="counting", said=message, level="problem", advice=advice, numbers=counted)


def _check_roofline(device: str, threads: int) -> Iterator[Finding]:
    """The machine's highest rates, and other activity while they were measured."""
    watch = DisturbanceWatch()
    best = measure_roofline_rates(device, DTYPE.get(device, "float32"), threads)
    disturbance = watch.read_interval()
    arithmetic, memory = best.gemm_flops_per_s, best.bytes_per_s
    message = f"{arithmetic / 1e9:.4g} GFLOP/s in a matrix product, {memory / 1e9:.3g} GB/s from memory"
    message += "".join(f", {cache.bytes_per_s / 1e9:.3g} from {cache.name}" for cache in best.caches[-1:])
    yield Finding(topic="rates", said=message, numbers=asdict(best))
    yield check_load(disturbance, threads if device == "cpu" else None)


class AANoise(NamedTuple):
    """Two runs of the same thing: their ratio with its interval, the spread of a round's ratio (in logarithms)."""

    ratio: Estimate
    spread: float

    @property
    def floor(self) -> float:
        """The smallest difference that is significant in an ordinary run, as a share."""
        return max(MARGIN, math.expm1(t_quantile(0.975, ROUNDS - 1) * self.spread / math.sqrt(ROUNDS)))


def _check_noise(device: str, threads: int | None, quick: bool) -> Finding:
    noise = _measure_aa(device, threads, quick)
    if isinstance(noise, str):
        return Finding(topic="noise", said=f"not measured: {noise}", level="problem", numbers={})
    ratio, low, high = noise.ratio
    if low is None or high is None:
        return Finding(topic="noise", said="not measured: too few rounds", level="problem")
    alarm = classify_ratio(low, high) in ("faster", "slower")
    loud = noise.floor > 0.1
    advice = "measure at a quieter time, or with more rounds" if alarm or loud else None
    message = (
        f"the same twice: ratio {ratio:.3f} ({low:.3f} to {high:.3f}), standard deviation of a round {noise.spread:.1%}"
    )
    return Finding(
        topic="noise",
        said=f"{message}; differences below {noise.floor:.1%} are not significant here",
        level="problem" if alarm or loud else "ok",
        advice=advice,
        numbers={"ratio": ratio, "low": low, "high": high, "round_spread": noise.spread, "floor": noise.floor},
    )


def _measure_aa(device: str, threads: int | None, quick: bool) -> AANoise | str:
    """Exact attention compared with itself, measured like every group; or why that failed."""
    rounds, processes = (6, 2) if quick else (16, 4)
    # fmt: off
    place = CaseConfig(
        mode="forward", device=device, dtype=DTYPE.get(device, "float32"), threads=threads,
        heads=4, seq_len=512, head_dim=64, max_len=512,
    )
    # fmt: on
    effort = Sampling(rounds=rounds, max_rounds=rounds, processes=processes, half_width=MARGIN, budget_s=30)
    target = f"{__name__}:NOISE"
    cell = Group(
        suite="doctor", part="noise", task="noise", target=target, config=place, sampling=effort, baseline="full"
    )
    backend = make_case(cell, Spec("full"), None).create().backend
    twice = [make_case(cell, Spec("full", backend=name), None) for name in (None, backend)]
    records = list(measure_group(cell, twice, Conditions(timeout_s=120)))
    if failed := next((r.row.reason for r in records if r.row.status != "ok"), None):
        return failed
    first, second = (list_round_values(r) for r in records)
    ratio = estimate_paired_ratio(first, second, records[0].samples["process"])
    logs = [math.log(a / b) for a, b in zip(first, second, strict=False)]
    return AANoise(ratio, float(np.std(logs, ddof=1)))
