"""What the machine allows: its ceilings, looked at before, during and after a run, and times held against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...engines.job import Died
from ...instruments.disturbance import Disturbance
from ...instruments.roofline import Ceiling, highest, spread
from ..config import Place
from .conditions import Conditions, Setting
from .jobs import Inspect

TOO_FAST = 1.25  # times the highest ceiling measured: what no error of the ceiling explains
AGAIN = 3  # looks that are taken before a case is refused, for all cases of a setting together
LIMIT_S = 300.0


def look(device: str, settings: Sequence[tuple[str, int | None]], conditions: Conditions, when: str) -> dict[str, Any]:
    """Look at the machine for each dtype and number of threads; the highest rates are left with the conditions.

    Returns what was ``seen`` of the machine meanwhile, and what the memory's counter said (``canary``), which is asked
    ``before`` the run. Raises `Died` like every job.
    """
    told: dict[str, Any] = {}
    job = Inspect(device=device, settings=tuple(settings), limit_s=LIMIT_S, canary=when == "before")
    for found in conditions.engine.carry_out(job):
        if isinstance(found, dict):
            told["canary"] = found
        elif isinstance(found, Disturbance):
            told["seen"] = asdict(found)
        else:
            dtype, threads, best = found
            note((device, dtype, threads), when, best, conditions)
    return told


def note(setting: Setting, when: str, found: Ceiling, conditions: Conditions) -> None:
    """Keep a look at the machine."""
    known = conditions.ceilings.get(setting)
    conditions.looks.setdefault(setting, []).append((when, found))
    conditions.ceilings[setting] = highest([known, found]) if known else found


def list_ceilings(device: str, conditions: Conditions) -> list[dict[str, Any]]:
    """For each setting of a device the highest rates, each look that they are of, and how far these lie apart."""
    return [
        {"dtype": dtype, "threads": threads}
        | asdict(conditions.ceilings[on, dtype, threads])
        | {"spread": spread([found for _, found in looks])}
        | {"looks": [{"when": when} | asdict(found) for when, found in looks]}
        for (on, dtype, threads), looks in conditions.looks.items()
        if on == device
    ]


def explain_impossible(
    flops: float | None, bytes_moved: int | None, seconds: float, place: Place, conditions: Conditions
) -> str | None:
    """Why a call cannot have taken so few seconds, with both numbers; None where it can, or no ceiling was measured.

    A machine may have been slow when it was looked at: it is looked at again before anyone is refused.
    """
    setting = place.device, place.dtype, place.threads
    if setting not in conditions.ceilings or bytes_moved is None:
        return None
    while reason := _compare(flops or 0.0, bytes_moved, seconds, conditions.ceilings[setting], place):
        if sum(when == "again" for when, _ in conditions.looks.get(setting, ())) >= AGAIN:
            return reason
        try:
            look(place.device, [(place.dtype, place.threads)], conditions, "again")
        except Died:
            return reason
    return None


def _compare(flops: float, bytes_moved: int, seconds: float, best: Ceiling, place: Place) -> str | None:
    cold = place.cache == "cold"
    arithmetic, reading = flops / best.gemm_flops_per_s, best.read_seconds(bytes_moved, cold=cold)
    if max(arithmetic, reading) <= TOO_FAST * seconds:
        return None
    if arithmetic >= reading:
        rates, by = (flops / seconds / 1e9, best.gemm_flops_per_s / 1e9), best.gemm_by
        unit, did = "GFLOP/s", "computes"
    else:
        rates, by = (bytes_moved / seconds / 1e9, bytes_moved / reading / 1e9), best.find_holder(bytes_moved, cold=cold)
        unit, did = "GB/s", "reads"
    said = f"faster than this machine {did}: at least {rates[0]:.4g} {unit}, the highest ceiling is {rates[1]:.4g}"
    return f"{said}{f' ({by})' if by else ''}, and {TOO_FAST} times that is allowed"
