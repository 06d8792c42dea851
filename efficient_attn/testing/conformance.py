"""A mechanism held to all that it claims."""

from __future__ import annotations

from collections.abc import Iterable

from .checking import Check, Outcome, run_check
from .checks import CHECKS
from .subject import Factory, Subject


def run_checks(
    source: str | Factory | Subject,
    *,
    checks: Iterable[Check] | None = None,
    backend: str | None = None,
    device: str = "cpu",
) -> list[Outcome]:
    """Hold a mechanism, by its spec or a factory ``(dims, seed, backend) -> Attention``, to all that it claims.

    Raises what creating the mechanism raises (`UsageError`, `UnsupportedError`); failures inside checks are outcomes.
    """
    subject = source if isinstance(source, Subject) else Subject(source, backend=backend, device=device)
    _ = subject.attn
    return [run_check(c, subject) for c in (CHECKS if checks is None else checks)]
