"""Records of older schemas: the values of the columns that each schema added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ADDED_IN_2 = ("cuda_graph", "graph_breaks", "retained_bytes", "rounds", "processes", "contaminated", "energy_j")
_ADDED_IN_4 = ("bytes_moved", "bandwidth_share", "memory_budget_bytes", "longest_context")
_ADDED_IN_9 = ("kernels", "kept_between_calls_bytes", "process_peak_bytes")
_ADDED_IN_10 = ("gpu_ms", "launches", "gpu_busy_ms", "launch_bound", "idle_watts")
# for each schema, the values of the columns that it added in a record of the preceding one
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    2: lambda body: {**dict.fromkeys(_ADDED_IN_2), "cache": None if body.get("mode") is None else "warm"},
    3: lambda body: {"clamped_rows": None},
    4: lambda body: dict.fromkeys(_ADDED_IN_4),
    5: lambda body: {"part": _find_part(str(body.get("case_key") or "")), "baseline": None, "extra": {}},
    6: lambda body: {"gate_len": None, "read_from": None, "fill": "full"},
    7: lambda body: {"choices": None},
    8: lambda body: {"budget": None},
    9: lambda body: {
        **dict.fromkeys(_ADDED_IN_9),
        "kernels": _join_kernels(body.get("samples")),
        "extra": _judge_upper_bounds(body.get("extra")),
    },
    10: lambda body: dict.fromkeys(_ADDED_IN_10),
}


def _judge_upper_bounds(extra: Any) -> Any:
    """The columns of a sweep with verdicts on upper bounds: before schema 9 slower growth contradicted a claim.

    Rows do not have the suite's tolerance: an interval that ends above the claimed exponent stays inconclusive.
    """
    if not isinstance(extra, dict):
        return extra
    changed = {}
    for quantity in ("time", "memory"):
        verdict, high, claimed = (extra.get(f"{quantity}_{name}") for name in ("verdict", "high", "claimed"))
        if verdict == "contradicted: grows more slowly":
            changed[f"{quantity}_verdict"] = "reproduced: grows more slowly"
        elif verdict == "inconclusive" and isinstance(high, int | float) and isinstance(claimed, int | float):
            changed[f"{quantity}_verdict"] = "reproduced" if high <= claimed else verdict
    return extra | changed


def _join_kernels(samples: Any) -> str | None:
    """The kernels that a call ran, which records of schemas before 9 have only in their samples."""
    kernels = samples.get("kernels") if isinstance(samples, dict) else None
    return " ".join(map(str, kernels)) if isinstance(kernels, list) and kernels else None


def _find_part(case_key: str) -> str | None:
    """The part of the suite in a case's key, where rows of schemas before 5 have it."""
    return next(iter(case_key.split("/")[1:2]), None)
