"""Compare times with the roofline, which is measured before, during and after a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...engines.job import WorkerDied
from ...instruments.disturbance import Disturbance
from ...instruments.roofline import Roofline, compute_spread
from ..case_config import CaseConfig
from .conditions import Conditions
from .jobs import InspectMachine

MAX_ROOFLINE_SHARE = 1.25  # higher shares of the roofline are rejected; its own error is smaller
MAX_RECHECKS = 3  # repeated measurements of the machine, for all cases of a setting together


def measure_roofline(
    device: str, settings: Sequence[tuple[str, int | None]], conditions: Conditions, when: str
) -> dict[str, Any]:
    """Measure the machine for each dtype and number of threads, as a further inspection of the conditions.

    when: ``before``, ``after`` or ``again``. Returns the disturbance (``seen``), and before the run also the result of
    the memory check (``canary``); if the worker dies, only the reason (``failed``).
    """
    facts: dict[str, Any] = {}
    job = InspectMachine(device=device, settings=tuple(settings), canary=when == "before")
    try:
        for message in conditions.engine.run(job):
            if isinstance(message, dict):
                facts["canary"] = message
            elif isinstance(message, Disturbance):
                facts["seen"] = asdict(message)
            else:
                dtype, threads, roofline = message
                conditions.inspections.setdefault((device, dtype, threads), []).append((when, roofline))
    except WorkerDied as death:
        return {"failed": death.reason}  # measuring continues without a roofline
    return facts


def list_rooflines(device: str, conditions: Conditions) -> list[dict[str, Any]]:
    """The highest rates for each setting of a device, all measurements, and their spread, as in ``run.json``."""
    return [
        {"dtype": setting[1], "threads": setting[2]}
        | asdict(conditions.rooflines[setting])
        | {"spread": compute_spread([roofline for _, roofline in inspections])}
        | {"looks": [{"when": when} | asdict(roofline) for when, roofline in inspections]}
        for setting, inspections in conditions.inspections.items()
        if setting[0] == device
    ]


def explain_implausible(
    flops: float | None, bytes_moved: int | None, seconds: float, config: CaseConfig, conditions: Conditions
) -> str | None:
    """Why a call cannot have been this fast, with both rates; None if it can, or without a roofline.

    As the machine may have been slow when it was measured, it is measured again before a case is rejected.
    """
    setting = config.device, config.dtype, config.threads
    if setting not in conditions.inspections or bytes_moved is None:
        return None
    while reason := _compare_with_roofline(flops or 0.0, bytes_moved, seconds, conditions.rooflines[setting], config):
        if sum(when == "again" for when, _ in conditions.inspections[setting]) >= MAX_RECHECKS:
            return reason
        if "failed" in measure_roofline(config.device, [(config.dtype, config.threads)], conditions, "again"):
            return reason
    return None


def _compare_with_roofline(
    flops: float, bytes_moved: int, seconds: float, roofline: Roofline, config: CaseConfig
) -> str | None:
    cold = config.cache == "cold"
    compute_s = flops / roofline.gemm_flops_per_s
    read_s = roofline.estimate_read_seconds(bytes_moved, cold=cold)
    if max(compute_s, read_s) <= MAX_ROOFLINE_SHARE * seconds:
        return None
    if compute_s >= read_s:
        verb, unit, work, limit_s, source = "computes", "GFLOP/s", flops, compute_s, roofline.gemm_by
    else:
        verb, unit, work, limit_s = "reads", "GB/s", bytes_moved, read_s
        source = roofline.find_memory_level(bytes_moved, cold=cold)
    message = f"faster than this machine {verb}: at least {work / seconds / 1e9:.4g} {unit}"
    message += f", the roofline is {work / limit_s / 1e9:.4g}{f' ({source})' if source else ''}"
    return f"{message}, and {MAX_ROOFLINE_SHARE} times that is allowed"
