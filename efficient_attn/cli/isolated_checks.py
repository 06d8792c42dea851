"""Conformance tests in a process of their own: one that hangs, crashes, exits or takes all memory is a failure."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

from ..engines.job import StageBoard, WorkerDied
from ..engines.local import LocalEngine
from ..engines.worker import limit_memory
from ..errors import OUT_OF_MEMORY, UnsupportedError, UsageError
from ..testing import CHECKS, Outcome, Subject
from ..testing.check import CheckFailure, make_failure, run_check
from ..testing.conformance import declared_traits
from ..units import size

LIMIT_S, THOROUGH_LIMIT_S = 60.0, 1800.0  # of a check
TRAITS_LIMIT_S = 600.0  # of finding the traits of a mechanism that declares none
MEMORY_BYTES = 4 * 2**30  # of all checks, beyond an idle process
MAX_DEATHS = 5  # checks that end their process, after which the others are left out
ALL = {check.name: check for check in (declared_traits, *CHECKS)}
PRELOAD = ("efficient_attn.testing", "efficient_attn.cli.isolated_checks")


@dataclass(frozen=True, kw_only=True)
class RunChecks:
    """Sends the outcome of each named check, without its check, or the error of creating the mechanism, and at the end
    the compared calls."""

    subject: Subject
    names: Sequence[str]
    limit_s: float

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Run the checks."""
        board.set_stage(0, 0, TRAITS_LIMIT_S)
        limit_memory(MEMORY_BYTES)
        try:
            _ = self.subject.attn
        except (UsageError, UnsupportedError) as error:
            send(error)
            return
        except Exception as error:
            send(_as_message(make_failure(declared_traits, error)))
            return
        for number, name in enumerate(self.names):
            board.set_stage(number, 0, TRAITS_LIMIT_S if name == declared_traits.name else self.limit_s)
            with redirect_stdout(io.StringIO()) as printed:
                outcome = run_check(ALL[name], self.subject)
            if outcome.status == "failed":
                gc.collect()  # its tensors, so that later checks have memory
                if any(text in outcome.reason for text in OUT_OF_MEMORY):
                    outcome = replace(outcome, reason=f"{outcome.reason} (checks may take {size(MEMORY_BYTES)})")
            if text := " ".join(printed.getvalue().split()):
                outcome = replace(
                    outcome, reason="; ".join(filter(None, (outcome.reason, f"it printed {text[:60]!r}")))
                )
            send(_as_message(outcome))
            if name == declared_traits.name and outcome.status == "failed":
                return
        send(list(self.subject.met))


def _as_message(outcome: Outcome) -> dict[str, Any]:
    """The fields of an outcome except its check, whose function cannot be pickled."""
    return {name: getattr(outcome, name) for name in ("status", "reason", "advice", "lines")}


def run_isolated_checks(
    subject: Subject, *, names: Sequence[str] = tuple(ALL)[1:], limit_s: float | None = None
) -> list[Outcome]:
    """The outcomes of checks, or that of `declared_traits` if it failed. limit_s: seconds of a check. Raises
    `UsageError` and `UnsupportedError` of creating the mechanism."""
    limit_s = limit_s or (THOROUGH_LIMIT_S if subject.thorough else LIMIT_S)
    names, engine, outcomes, deaths = (declared_traits.name, *names), LocalEngine(preload=PRELOAD), list[Outcome](), 0
    while left := names[len(outcomes) :]:
        try:
            for message in engine.run(RunChecks(subject=replace(subject), names=left, limit_s=limit_s)):
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, list):
                    subject.met.extend(message)
                else:
                    outcomes.append(Outcome(ALL[names[len(outcomes)]], **message))
            break
        except WorkerDied as death:
            deaths += 1
            reason, others = _explain(death, limit_s), len(names) - len(outcomes) - 1
            if deaths == MAX_DEATHS and others:
                reason += f"; {others} further checks are left out"
            outcomes.append(make_failure(ALL[names[len(outcomes)]], CheckFailure(reason)))
            if deaths == MAX_DEATHS or len(outcomes) == 1:
                break
    return outcomes[1:] if len(outcomes) > 1 else outcomes


def _explain(death: WorkerDied, limit_s: float) -> str:
    if death.status == "timeout":
        return f"it did not end within {limit_s:g} s: {death.reason}"
    limit = f" (checks may take {size(MEMORY_BYTES)})" if death.status == "oom" else ""
    return f"its process ended: {death.reason}{limit}"
