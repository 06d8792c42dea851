"""The growth that plug-ins declare is verified before a run, by counts of operations in a worker."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..engines.job import StageBoard, WorkerDied
from ..engines.local import LocalEngine
from ..errors import UnsupportedError, UsageError
from ..registry import class_of, names
from ..spec import Spec, Union
from .case import Case

LIMIT_S = 20.0  # of counting; a mechanism that takes longer is not verified


@dataclass(frozen=True)
class CountWork:
    """Count the work of a mechanism, in at most so many seconds, and compare it with its growth."""

    spec: str
    limit_s: float

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Send why its growth is wrong with the line to write, or could not be compared; and whether it is wrong."""
        board.set_stage(0, 0, self.limit_s)
        from ..testing import Subject, run_check
        from ..testing.checks.growth_claims import growth_is_measured, published_cost

        for check in (published_cost, growth_is_measured):
            outcome = run_check(check, Subject(self.spec))
            if outcome.lines:
                line = "".join(outcome.lines).replace("    ", " ").replace("( ", "(").replace(",)", ")")
                send((f"{outcome.reason}; as counted: {line}", True))
                return
            if outcome.status == "failed":
                send((outcome.reason, False))
                return


def check_growth(cases: Iterable[Case], engine: LocalEngine) -> None:
    """Raise `UsageError` for a plug-in's mechanism whose own growth contradicts itself or the work of its calls.

    A mechanism that fails while its work is counted, or takes too long, is not refused, but warned of.
    """
    for spec in {str(case.variant): case.variant for case in cases}.values():
        if not _has_own_growth(spec):
            continue
        try:
            reason, is_wrong = next(engine.run(CountWork(str(spec), LIMIT_S)), ("", False))
        except (WorkerDied, UnsupportedError, UsageError) as error:
            is_late = isinstance(error, WorkerDied) and error.status == "timeout"
            reason, is_wrong = f"counting its work takes over {LIMIT_S:g} s" if is_late else str(error), False
        if is_wrong:
            raise UsageError(f"{spec}: wrong growth: {reason}")
        if reason:
            warnings.warn(f"{spec}: growth not checked: {reason}", stacklevel=2)


def _has_own_growth(variant: Spec | Union) -> bool:
    if isinstance(variant, Union) or variant.name not in names():
        return False
    owner = next(cls for cls in class_of(variant.name).__mro__ if "growth" in vars(cls))
    return not owner.__module__.startswith("efficient_attn.")
