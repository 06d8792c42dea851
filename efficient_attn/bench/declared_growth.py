"""The growth that plug-ins declare is verified before a run, by counts of operations in a worker."""

from __future__ import annotations

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
        """Send why its growth is wrong, and the line to write."""
        board.set_stage(0, 0, self.limit_s)
        from ..testing import Subject, run_check
        from ..testing.checks.growth_claims import growth_is_measured, published_cost

        for check in (published_cost, growth_is_measured):
            outcome = run_check(check, Subject(self.spec))
            if outcome.lines:
                line = "".join(outcome.lines).replace("    ", " ").replace("( ", "(").replace(",)", ")")
                send(f"{outcome.reason}; as counted: {line}")
                return


def check_growth(cases: Iterable[Case], engine: LocalEngine) -> None:
    """Raise `UsageError` for a plug-in's mechanism whose own growth contradicts itself or the work of its calls.

    A mechanism that fails while its work is counted is not refused: its cases report the failure.
    """
    for spec in {str(case.variant): case.variant for case in cases}.values():
        if not _has_own_growth(spec):
            continue
        try:
            wrong = next(engine.run(CountWork(str(spec), LIMIT_S)), None)
        except (WorkerDied, UnsupportedError, UsageError):
            continue
        if wrong:
            raise UsageError(f"{spec}: wrong growth: {wrong}")


def _has_own_growth(variant: Spec | Union) -> bool:
    if isinstance(variant, Union) or variant.name not in names():
        return False
    owner = next(cls for cls in class_of(variant.name).__mro__ if "growth" in vars(cls))
    return not owner.__module__.startswith("efficient_attn.")
