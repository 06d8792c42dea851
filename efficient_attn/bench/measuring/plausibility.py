"""Compare times with the roofline, which is measured before, during and after a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...engines.job import WorkerDied
from ...instruments.disturbance import Disturbance
from ...instruments.roofline import Roofline, compute_spread, merge_rooflines
from ..case_config import CaseConfig
from .conditions import Conditions, Setting
from .jobs import InspectMachine

MAX_ROOFLINE_SHARE = 1.25  # times the highest measured roofline: more than any error of the roofline explains
MAX_RECHECKS = 3  # further measurements of the machine before a case is refused, for all cases of a setting together
LIMIT_S = 300.0


def measure_roofline(
    device: str, settings: Sequence[tuple[str, int | None]], conditions: Conditions, when: str
) -> dict[str, Any]:
    """Measure the machine for each dtype and number of threads; the highest rates are stored in the conditions.

    Returns the disturbance meanwhile, and the result of the memory check (``canary``), which is made before the run.
    Raises `WorkerDied` like every job.
    """
    facts: dict[str, Any] = {}
    job = InspectMachine(device=device, settings=tuple(settings), limit_s=LIMIT_S, canary=when == "before")
    for message in conditions.engine.carry_out(job):
        if isinstance(message, dict):
            facts["canary"] = message
        elif isinstance(message, Disturbance):
            facts["seen"] = asdict(message)
        else:
            dtype, threads, best = message
            add_roofline((device, dtype, threads), when, best, conditions)
    return facts


def add_roofline(setting: Setting, when: str, measured: Roofline, conditions: Conditions) -> None:
    """Store a measurement of the machine."""
    earlier = conditions.rooflines.get(setting)
    conditions.inspections.setdefault(setting, []).append((when, measured))
    conditions.rooflines[setting] = merge_rooflines([earlier, measured]) if earlier else measured


def list_rooflines(device: str, conditions: Conditions) -> list[dict[str, Any]]:
    """The highest rates for each setting of a device, the measurements that they are from, and their spread."""
    return [
        {"dtype": dtype, "threads": threads}
        | asdict(conditions.rooflines[on, dtype, threads])
        | {"spread": compute_spread([measured for _, measured in looks])}
        | {"looks": [{"when": when} | asdict(measured) for when, measured in looks]}
        for (on, dtype, threads), looks in conditions.inspections.items()
        if on == device
    ]


def explain_implausible(
    flops: float | None, bytes_moved: int | None, seconds: float, config: CaseConfig, conditions: Conditions
) -> str | None:
    """Why a call cannot have been this fast, with both numbers; None if it can, or without a roofline.

    The machine may have been slow when it was measured: it is measured again before a case is refused.
    """
    setting = config.device, config.dtype, config.threads
    if setting not in conditions.rooflines or bytes_moved is None:
        return None
    while reason := _compare_with_roofline(flops or 0.0, bytes_moved, seconds, conditions.rooflines[setting], config):
        if sum(when == "again" for when, _ in conditions.inspections.get(setting, ())) >= MAX_RECHECKS:
            return reason
        try:
            measure_roofline(config.device, [(config.dtype, config.threads)], conditions, "again")
        except WorkerDied:
            return reason
    return None


def _compare_with_roofline(
    flops: float, bytes_moved: int, seconds: float, best: Roofline, config: CaseConfig
) -> str | None:
    cold = config.cache == "cold"
    arithmetic, reading = flops / best.gemm_flops_per_s, best.estimate_read_seconds(bytes_moved, cold=cold)
    if max(arithmetic, reading) <= MAX_ROOFLINE_SHARE * seconds:
        return None
    if arithmetic >= reading:
        rates, by = (flops / seconds / 1e9, best.gemm_flops_per_s / 1e9), best.gemm_by
        unit, did = "GFLOP/s", "computes"
    else:
        rates, by = (
            (bytes_moved / seconds / 1e9, bytes_moved / reading / 1e9),
            best.find_memory_level(bytes_moved, cold=cold),
        )
        unit, did = "GB/s", "reads"
    message = f"faster than this machine {did}: at least {rates[0]:.4g} {unit}, the highest ceiling is {rates[1]:.4g}"
    return f"{message}{f' ({by})' if by else ''}, and {MAX_ROOFLINE_SHARE} times that is allowed"
