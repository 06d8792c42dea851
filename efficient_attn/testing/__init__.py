"""The conformance kit: holds a mechanism to what its `Traits` claim, and itself to the bugs that it must catch.

    from efficient_attn import testing
    for outcome in testing.run_checks("sliding_window:window=64"):
        print(outcome.status, outcome.check.name, outcome.reason)

It needs no test framework. A factory ``(dims, seed, backend) -> Attention`` serves where there is no registered name.
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
