"""Verify a mechanism against all of its traits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from ..contract.traits import Traits
from ..errors import UnsupportedError, UsageError
from ..instruments.environment import describe_absence
from .check import Check, Outcome, make_failure, run_check
from .checks import CHECKS
from .declarations import declared_traits
from .subject import Factory, Subject


def run_checks(
    source: str | Factory | Subject,
    *,
    checks: Iterable[Check] | None = None,
    backend: str | None = None,
    device: str = "cpu",
    dtype: torch.dtype | str = torch.float64,
    seed: int = 0,
) -> list[Outcome]:
    """Verify that a mechanism satisfies its traits.

    source: a spec, or a factory ``(dims, seed, backend) -> Attention``. dtype: of all calls; with float64, the default,
    checks of dtypes test the others as well. seed: of random sizes and splits. Raises `UsageError` and
    `UnsupportedError` of creating the mechanism, and `UnsupportedError` for a device that does not exist; other
    exceptions are outcomes. A mechanism without traits has one outcome, with the lines to write.
    """
    if reason := describe_absence(torch.device(device).type):
        raise UnsupportedError(f"check: {reason}; leave --device out to check on the CPU")
    if isinstance(source, Subject):
        subject = source
    else:
        torch_dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        subject = Subject(source, backend=backend, device=device, dtype=torch_dtype, seed=seed)
    try:
        _ = subject.attn
    except (UsageError, UnsupportedError):
        raise
    except Exception as error:
        return [make_failure(declared_traits, error)]
    declared = run_check(declared_traits, subject)
    if declared.status == "failed":
        return [declared]
    return [run_check(c, subject) for c in (CHECKS if checks is None else checks)]


def sum_up(outcomes: Sequence[Outcome], traits: Traits | None = None) -> str:
    """The number of checks by outcome, and what the traits exclude, in one line."""
    counts = Counter(o.status for o in outcomes)
    labels = {"passed": "passed", "failed": "failed", "not_claimed": "do not apply"}
    text = ", ".join(f"{counts[status]} {label}" for status, label in labels.items() if counts[status])
    return f"{text}; limits: {', '.join(traits.unclaimed)}" if traits and traits.unclaimed else text
