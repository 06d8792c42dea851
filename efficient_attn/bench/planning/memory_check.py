"""The expected memory of a plan, compared with what the machine has."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ... import units
from ...errors import UsageError
from ...instruments.environment import find_available_memory, find_total_memory
from ...instruments.roofline import Roofline
from ...layers.named import find_baseline
from ...registry import class_of
from ..case import Case, group_cases
from ..task_registry import find_task
from .cost_estimate import CostEstimate, estimate_cost

LARGE_SHARE = 0.5  # of the available memory, above which a plan gets a warning
MAX_NAMED = 3  # groups in a message
ANY_RATES = Roofline(1.0, 1.0)  # the estimate of memory does not depend on them


def check_memory(cases: Sequence[Case]) -> None:
    """Raise `UsageError` if cases are expected to need more than the machine's memory. Mechanisms of plug-ins are
    ignored, as their code only runs in workers."""
    built_in = [case for case in cases if _is_built_in(case)]
    estimate, total = estimate_cost(built_in, best=ANY_RATES), find_total_memory()
    if total is not None and (large := _describe_large(built_in, estimate, total)):
        remedy = "select other lengths or mechanisms, or give --memory-limit SIZE, at which a case is stopped"
        raise UsageError(f"run: {large}, and this machine has {units.rough_size(total)}; {remedy}")
    warn_of_memory(built_in, estimate)


def warn_of_memory(cases: Sequence[Case], estimate: CostEstimate) -> None:
    """Warn of cases that are expected to need more than half of the available memory."""
    available = find_available_memory()
    if available is not None and (large := _describe_large(cases, estimate, LARGE_SHARE * available)):
        warnings.warn(f"{large}; {units.rough_size(available)} are available", stacklevel=2)


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


def _is_built_in(case: Case) -> bool:
    if not find_task(case.group.target).mechanisms or (case.group.of_blocks and find_baseline(case.variant)):
        return True
    return all(class_of(name).__module__.startswith("efficient_attn.") for name in case.variant.names)
