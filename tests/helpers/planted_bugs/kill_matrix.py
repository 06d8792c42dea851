"""Planted bugs: each must be caught in every mechanism that declares the trait it breaks.

A mutant overrides methods of one instance's class, only for the fast implementation, so that the reference stays
correct. The bugs are typical of attention code: a leak of one position, the wrong alignment, a group assigned
incorrectly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from efficient_attn.testing.check import Check, run_check
from efficient_attn.testing.checks import CHECKS
from efficient_attn.testing.subject import Factory, Subject

from . import MUTANTS
from .planting import Mutant


@dataclass(frozen=True)
class Kill:
    """The result of one mutant in one mechanism; ``by``: the check that caught it, or why it did not apply."""

    mutant: str
    kind: str
    mechanism: str
    status: Literal["caught", "missed", "not_applicable"]
    by: str = ""


def kill_matrix(
    sources: Iterable[str | Factory | Subject],
    *,
    mutants: Iterable[Mutant] | None = None,
    checks: Iterable[Check] | None = None,
) -> list[Kill]:
    """Plant every mutant in every mechanism and report which check caught it first."""
    all_checks = tuple(CHECKS if checks is None else checks)
    subjects = [s if isinstance(s, Subject) else Subject(s) for s in sources]
    return [_kill(mutant, s, all_checks) for s in subjects for mutant in (MUTANTS if mutants is None else mutants)]


def _kill(mutant: Mutant, subject: Subject, checks: tuple[Check, ...]) -> Kill:
    if reason := mutant.why_not(subject):
        return Kill(mutant.name, mutant.kind, subject.label, "not_applicable", reason)
    planted = mutant.planted(subject)
    for check in sorted(checks, key=lambda c: c.name not in mutant.suspects):
        if run_check(check, planted).status == "failed":
            return Kill(mutant.name, mutant.kind, subject.label, "caught", check.name)
    return Kill(mutant.name, mutant.kind, subject.label, "missed")
