"""Check whether this machine is ready to measure, with advice on problems."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from ..instruments.disturbance import DisturbanceWatch
from ..instruments.memory import verify_memory_counter
from ..instruments.roofline import measure_roofline_rates, measure_timer_overhead, measure_timer_resolution
from ..instruments.timing import MIN_SAMPLE_S
from ..results.exchange import list_round_values
from ..results.stats import MARGIN, Estimate, classify_ratio, estimate_paired_ratio, t_quantile
from ..spec import Spec
from . import readiness
from .case_config import CaseConfig, Group, Sampling
from .gpu_readiness import check_gpu
from .measuring.conditions import Conditions
from .measuring.group import measure_group
from .measuring.kernel_choices import check_choices, check_native, check_triton
from .measuring.preparation import prepare_case
from .measuring.workload import Workload
from .planning.case_factory import make_case
from .planning.cost_estimate import estimate_call
from .readiness import Diagnosis, Finding
from .task import Task

ROUNDS = 8  # of an ordinary run, for which the noise floor is reported
DTYPE = {"cuda": "bfloat16"}  # in measurements of the roofline and the noise; elsewhere float32
# times calls as in any run
NOISE = Task(name="noise", words=(), plan=lambda request: (), judge=prepare_case, guess=estimate_call, work=Workload)


def diagnose(*, quick: bool = False, threads: int | None = None, device: str = "cpu") -> Diagnosis:
    """Check the machine in about 6 seconds, with ``quick`` 3. threads: those of the planned measurements."""
    count = threads or torch.get_num_threads()
    findings = [readiness.check_threads(count), readiness.check_frequency(), readiness.check_virtualisation()]
    findings += [readiness.check_memory(), _check_clock()]
    if device == "cuda":
        findings += check_gpu()
    if device == "cpu" or torch.cuda.is_available():
        findings += [_check_memory_counter(device), *_check_roofline(device, count)]
        findings += [check_native(), check_choices(count)] if device == "cpu" else [check_triton()]
        findings.append(_check_noise(device, threads, quick))
    return Diagnosis(tuple(findings))


# -- trial measurements -----------------------------------------------------------------------------------------------


def _check_clock() -> Finding:
    overhead, resolution = measure_timer_overhead(), measure_timer_resolution()
    is_coarse = max(overhead, resolution) > MIN_SAMPLE_S / 1000
    message = f"reading it takes {overhead * 1e9:.0f} ns, its resolution is {resolution * 1e9:.0f} ns"
    advice = "the clock is too coarse for samples of 2 ms: check the system's clock source"
    numbers = {"overhead_s": overhead, "resolution_s": resolution}
    return Finding.make("clock", message, numbers, advice if is_coarse else None)


def _check_memory_counter(device: str) -> Finding:
    counted = verify_memory_counter(device)
    if counted["ok"] is None:
        return Finding(topic="counting", message=str(counted["reason"]), level="note", numbers=counted)
    message = f"{counted['measured_bytes']} bytes counted of {counted['expected_bytes']} allocated"
    advice = "do not use the memory columns of this machine"
    return Finding.make("counting", message, counted, None if counted["ok"] else advice)


def _check_roofline(device: str, threads: int) -> Iterator[Finding]:
    """The machine's highest rates, and other activity while they were measured."""
    watch = DisturbanceWatch()
    roofline = measure_roofline_rates(device, DTYPE.get(device, "float32"), threads)
    disturbance = watch.read_interval()
    arithmetic, memory = roofline.gemm_flops_per_s, roofline.bytes_per_s
    message = f"{arithmetic / 1e9:.4g} GFLOP/s in a matrix product, {memory / 1e9:.3g} GB/s from memory"
    message += "".join(f", {cache.bytes_per_s / 1e9:.3g} from {cache.name}" for cache in roofline.caches[-1:])
    yield Finding(topic="rates", message=message, numbers=asdict(roofline))
    yield readiness.check_load(disturbance, threads if device == "cpu" else None)


class AANoise(NamedTuple):
    """The A/A noise: the ratio of two equal cases, and the standard deviation of a round's log ratio."""

    ratio: Estimate
    spread: float

    @property
    def floor(self) -> float:
        """The smallest relative difference that is significant in an ordinary run."""
        return max(MARGIN, math.expm1(t_quantile(0.975, ROUNDS - 1) * self.spread / math.sqrt(ROUNDS)))


def _check_noise(device: str, threads: int | None, quick: bool) -> Finding:
    noise = _measure_aa(device, threads, quick)
    if isinstance(noise, str):
        return Finding(topic="noise", message=f"not measured: {noise}", level="problem")
    ratio, low, high = noise.ratio
    if low is None or high is None:
        return Finding(topic="noise", message="not measured: too few rounds", level="problem")
    message = f"A/A ratio {ratio:.3f} ({low:.3f} to {high:.3f}), standard deviation of a round {noise.spread:.1%}"
    message += f"; differences below {noise.floor:.1%} are not significant here"
    numbers = {"ratio": ratio, "low": low, "high": high, "round_spread": noise.spread, "floor": noise.floor}
    is_noisy = classify_ratio(low, high) in ("faster", "slower") or noise.floor > 0.1
    advice = "measure on an idle machine, or with more rounds"
    return Finding.make("noise", message, numbers, advice if is_noisy else None)


def _measure_aa(device: str, threads: int | None, quick: bool) -> AANoise | str:
    """Exact attention compared with itself, measured like every group; or why that failed."""
    rounds, processes = (6, 2) if quick else (16, 4)
    sizes: dict[str, Any] = {"heads": 4, "seq_len": 512, "head_dim": 64, "max_len": 512}
    config = CaseConfig(mode="forward", device=device, dtype=DTYPE.get(device, "float32"), threads=threads, **sizes)
    sampling = Sampling(rounds=rounds, max_rounds=rounds, processes=processes, half_width=MARGIN, budget_s=30)
    task: dict[str, Any] = {"part": "noise", "task": "noise", "target": f"{__name__}:NOISE", "baseline": "full"}
    group = Group(suite="doctor", config=config, sampling=sampling, **task)
    backend = make_case(group, Spec("full"), None).create().backend
    cases = [make_case(group, Spec("full", backend=name), None) for name in (None, backend)]
    records = list(measure_group(group, cases, Conditions(timeout_s=120)))
    if failed := next((r.row.reason for r in records if r.row.status != "ok"), None):
        return failed
    first, second = (list_round_values(r) for r in records)
    ratio = estimate_paired_ratio(first, second, records[0].samples["process"])
    logs = [math.log(a / b) for a, b in zip(first, second, strict=False)]
    return AANoise(ratio, float(np.std(logs, ddof=1)))
