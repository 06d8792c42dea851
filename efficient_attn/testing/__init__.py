"""Conformance tests: verify that a mechanism satisfies its `Traits`.

    from efficient_attn import testing
    for outcome in testing.run_checks("sliding_window:window=64"):
        print(outcome.status, outcome.check.name, outcome.reason)

They need no test framework, and accept a spec or a factory ``(dims, seed, backend) -> Attention``.
"""

from typing import Any

from .check import Check, Outcome, check, run_check
from .checks import CHECKS
from .conformance import run_checks, sum_up
from .mechanism_call import Call
from .subject import Subject

__all__ = [
    "CHECKS",
    "Call",
    "Check",
    "Outcome",
    "Subject",
    "check",
    "run_check",
    "run_checks",
    "sum_up",
]

_MOVED = ("MUTANTS", "Kill", "Mutant", "kill_matrix")


def __getattr__(name: str) -> Any:
    """The planted bugs of version 0.1, which are no part of an installation any more."""
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise ImportError(
        f"efficient_attn.testing.{name} is now in planted_bugs, in tests/helpers of the repository; "
        "version 0.3 removes this message"
    )
