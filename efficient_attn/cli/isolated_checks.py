"""Conformance tests in a process of their own: one that hangs, crashes, exits or takes all memory is a failure."""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

from ..engines.descendants import end_forked_copy
from ..engines.job import StageBoard, WorkerDied
from ..engines.local import LocalEngine
from ..engines.worker import limit_forks, limit_memory
from ..errors import OUT_OF_MEMORY, UnsupportedError, UsageError, describe_exception
from ..instruments.allocator import use_new_pages
from ..testing import CHECKS, Check, Outcome, Subject
from ..testing.check import CheckFailure, make_failure, run_check
from ..testing.checks.size_design import list_coverage, sizes_and_pairs
from ..testing.conformance import declared_traits
from ..units import size

LIMIT_S, THOROUGH_LIMIT_S = 60.0, 1800.0  # of a check
TRAITS_LIMIT_S = 600.0  # of finding the traits of a mechanism that declares none
MEMORY_BYTES = 4 * 2**30  # of all checks, beyond an idle process
MAX_DEATHS = 5  # checks that end their process, after which the others are left out
LISTING = 1  # the stage in which coverage is listed
KEPT_CHARACTERS = 1000  # of what a check prints
ALL = {check.name: check for check in (declared_traits, *CHECKS)}
PRELOAD = ("efficient_attn.testing", "efficient_attn.cli.isolated_checks")

CoverageRow = tuple[str, str, str, str, int]  # of `list_coverage`


@dataclass
class CheckResults:
    """The results of the checks of a mechanism.

    limits: what its traits exclude. printed: the number of checks that printed text. left_out: the number of checks
    that did not run because earlier ones ended their process. coverage: the pairs of levels in compared calls; None if
    they were not requested or not computed, for which no_coverage is the reason.
    """

    outcomes: list[Outcome]
    limits: tuple[str, ...] = ()
    printed: int = 0
    left_out: int = 0
    coverage: list[CoverageRow] | None = None
    no_coverage: str = f"{sizes_and_pairs.name} did not finish"


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A message: a check has finished. fields: those of its outcome, except its check, whose function cannot be
    pickled. limits: see `CheckResults`."""

    fields: dict[str, Any]
    printed: bool = False
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Covered:
    """A message: the pairs of levels in the compared calls, or why they could not be computed."""

    rows: list[CoverageRow] | None = None
    reason: str = ""


class _Beginning(io.StringIO):
    """Keeps the beginning of what is written, and cannot be closed."""

    def write(self, s: str, /) -> int:
        super().write(s[: max(KEPT_CHARACTERS - self.tell(), 0)])
        return len(s)

    def close(self) -> None:
        """Do nothing, so that mechanisms that close the standard output do not end the checks."""


@dataclass(frozen=True, kw_only=True)
class RunChecks:
    """Sends `Finished` for each named check, or the error of creating the mechanism, and with `coverage` also `Covered`
    as soon as the calls have been compared."""

    subject: Subject
    names: Sequence[str]
    limit_s: float
    coverage: bool = False

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Run the checks."""
        pid = os.getpid()
        limit_forks(pid)
        board.set_stage(0, 0, TRAITS_LIMIT_S)
        use_new_pages()  # kept ones have holes, which count against the limit
        limit_memory(MEMORY_BYTES)
        error = None
        with redirect_stdout(_Beginning()):
            try:
                _ = self.subject.attn
            except BaseException as exception:
                error = exception
        end_forked_copy(pid)
        if error is not None:
            is_refusal = isinstance(error, (UsageError, UnsupportedError))
            send(error if is_refusal else _finish(_fail(declared_traits, error)))
            return
        for number, name in enumerate(self.names):
            board.set_stage(number, 0, TRAITS_LIMIT_S if name == declared_traits.name else self.limit_s)
            message = self._run_check(name)
            end_forked_copy(pid)
            send(message)
            if name == declared_traits.name and message.fields["status"] == "failed":
                return
            if name == sizes_and_pairs.name and self.coverage:
                board.set_stage(number, LISTING, self.limit_s)
                covered = self._list_coverage()
                end_forked_copy(pid)
                send(covered)

    def _run_check(self, name: str) -> Finished:
        limits = ()
        with redirect_stdout(_Beginning()) as printed:
            try:
                outcome = run_check(ALL[name], self.subject)
                if name == declared_traits.name and outcome.status != "failed":
                    limits = self.subject.traits.unclaimed
            except BaseException as error:  # Ctrl-C is ignored in workers, so the mechanism raised it
                outcome = _fail(ALL[name], error)
        if outcome.status == "failed":
            gc.collect()  # its tensors, so that later checks have memory
            if any(text in outcome.reason for text in OUT_OF_MEMORY):
                outcome = replace(outcome, reason=f"{outcome.reason} (checks may take {size(MEMORY_BYTES)})")
        if text := " ".join(printed.getvalue().split()):
            outcome = replace(outcome, reason="; ".join(filter(None, (outcome.reason, f"it printed {text[:60]!r}"))))
        return _finish(outcome, printed=bool(text), limits=limits)

    def _list_coverage(self) -> Covered:
        try:
            with redirect_stdout(_Beginning()):
                return Covered(rows=list(list_coverage(self.subject)))
        except BaseException as error:
            return Covered(reason=f"listing the pairs failed: {describe_exception(error)}")


def _fail(check: Check, error: BaseException) -> Outcome:
    """The failure of a check with any exception, those that end programs included."""
    if isinstance(error, Exception):
        return make_failure(check, error)
    return make_failure(check, CheckFailure(f"it ended the program: {describe_exception(error)}"))


def _finish(outcome: Outcome, *, printed: bool = False, limits: tuple[str, ...] = ()) -> Finished:
    fields = {name: getattr(outcome, name) for name in ("status", "reason", "advice", "lines")}
    return Finished(fields=fields, printed=printed, limits=limits)


def run_isolated_checks(
    subject: Subject, *, names: Sequence[str] = tuple(ALL)[1:], limit_s: float | None = None, coverage: bool = False
) -> CheckResults:
    """Run checks. If `declared_traits` fails, its outcome is the only one. limit_s: seconds of a check. coverage:
    whether to list the pairs of levels in the compared calls. Raises `UsageError` and `UnsupportedError` of creating
    the mechanism."""
    limit_s = limit_s or (THOROUGH_LIMIT_S if subject.thorough else LIMIT_S)
    names, engine, deaths = (declared_traits.name, *names), LocalEngine(preload=PRELOAD), 0
    results, outcomes = CheckResults(outcomes=[]), list[Outcome]()
    while left := names[len(outcomes) :]:
        job = RunChecks(subject=replace(subject), names=left, limit_s=limit_s, coverage=coverage)
        try:
            for message in engine.run(job):
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, Covered):
                    results.coverage, results.no_coverage = message.rows, message.reason
                    continue
                outcomes.append(Outcome(ALL[names[len(outcomes)]], **message.fields))
                results.printed += message.printed
                results.limits += message.limits
            break
        except WorkerDied as death:
            reason = _explain(death, limit_s)
            if death.stage == LISTING:
                results.no_coverage = f"listing the pairs failed: {reason}"
                continue
            deaths += 1
            others = len(names) - len(outcomes) - 1
            reason += f" (seed {subject.seed})"
            if deaths == MAX_DEATHS and others:
                reason += f"; {others} further checks are left out"
                results.left_out = others
            outcomes.append(make_failure(ALL[names[len(outcomes)]], CheckFailure(reason)))
            if deaths == MAX_DEATHS or len(outcomes) == 1:
                break
    results.outcomes = outcomes[1:] if len(outcomes) > 1 else outcomes
    return results


def _explain(death: WorkerDied, limit_s: float) -> str:
    if death.status == "timeout":
        return f"it did not end within {limit_s:g} s: {death.reason}"
    limit = f" (checks may take {size(MEMORY_BYTES)})" if death.status == "oom" else ""
    return f"its process ended: {death.reason}{limit}"
