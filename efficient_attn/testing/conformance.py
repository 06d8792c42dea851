"""Verify a mechanism against all of its traits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from ..contract.traits import Traits
from ..errors import UnsupportedError
from ..instruments.environment.devices import describe_absence
from .check import Check, Outcome, run_check
from .checks import CHECKS
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
    """Verify a mechanism, by its spec or a factory ``(dims, seed, backend) -> Attention``, against all of its traits.

    dtype: of all calls; with float64, the default, checks of dtypes test the others as well. seed: of random sizes and
    cuts. Raises the exceptions of creating the mechanism (`UsageError`, `UnsupportedError`), and `UnsupportedError` for
    a device that does not exist; failures inside checks are outcomes.
    """
    if reason := describe_absence(torch.device(device).type):
        raise UnsupportedError(f"check: {reason}; leave --device out to check on the CPU")
    kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if isinstance(source, Subject):
        subject = source
    else:
        subject = Subject(source, backend=backend, device=device, dtype=kind, seed=seed)
    _ = subject.attn
    return [run_check(c, subject) for c in (CHECKS if checks is None else checks)]


def sum_up(outcomes: Sequence[Outcome], traits: Traits) -> str:
    """The outcome of all checks in a line: never a plain ok for a mechanism to which few checks apply."""
    counts = Counter(o.status for o in outcomes)
    words = {"passed": "passed", "failed": "failed", "not_claimed": "do not apply"}
    counts_text = ", ".join(f"{counts[status]} {word}" for status, word in words.items() if counts[status])
    return f"{counts_text}; claims {', '.join(traits.unclaimed)}" if traits.unclaimed else counts_text
