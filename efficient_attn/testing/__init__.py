"""Conformance tests: verify that a mechanism satisfies its `Traits`, and that the tests detect planted bugs.

    from efficient_attn import testing
    for outcome in testing.run_checks("sliding_window:window=64"):
        print(outcome.status, outcome.check.name, outcome.reason)

They need no test framework, and accept a spec or a factory ``(dims, seed, backend) -> Attention``.
"""

from .check import Check, Outcome, check, run_check
from .checks import CHECKS
from .conformance import run_checks, sum_up
from .mutants import MUTANTS, Kill, kill_matrix
from .planting import Mutant
from .subject import Call, Subject

__all__ = [
    "CHECKS",
    "MUTANTS",
    "Call",
    "Check",
    "Kill",
    "Mutant",
    "Outcome",
    "Subject",
    "check",
    "kill_matrix",
    "run_check",
    "run_checks",
    "sum_up",
]
