"""A check, how it is defined and run, and its outcome."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..errors import UnsupportedError, describe_exception, make_deprecated_alias
from ..instruments.global_state import use_threads
from .probing import is_refused_size
from .subject import Subject

Status = Literal["passed", "failed", "not_claimed"]
Reason = Callable[[Subject], str | None]  # why a check does not apply to a mechanism; None if it does


class CheckFailure(AssertionError):
    """A property does not hold. traits: declarations that would be correct instead, such as ``grouped=False``. lines:
    of Python, to write into the class."""

    def __init__(self, message: str, traits: tuple[str, ...] = (), lines: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.traits, self.lines = traits, lines


@dataclass(frozen=True)
class Check:
    """One property that mechanisms are verified for.

    name: for display and test ids. meaning: one sentence. run: raises AssertionError with the input, the position and
    the size of a difference; may return a sentence about cases that it did not test. needs, unless: traits that must
    be declared, or must not, for the property to apply. skip_reason: any further reason why it does not apply.
    """

    name: str
    meaning: str
    run: Callable[[Subject], str | None]
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    skip_reason: Reason = lambda subject: None

    ask = make_deprecated_alias("ask", "skip_reason")
    switches = make_deprecated_alias("switches", "opt_outs")

    def why_not(self, subject: Subject) -> str | None:
        """Why the property does not apply to the mechanism; None if it does."""
        for trait in self.needs:
            if not getattr(subject.traits, trait):
                return f"{trait} is not claimed"
        for trait in self.unless:
            if getattr(subject.traits, trait):
                return f"{trait} is claimed"
        return self.skip_reason(subject)

    @property
    def opt_outs(self) -> tuple[str, ...]:
        """The declarations with which the property would not apply."""
        return (*(f"{trait}=False" for trait in self.needs), *(f"{trait}=True" for trait in self.unless))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check.

    reason: what failed and for which input, why the check does not apply, or which cases it did not test. advice: how
    to correct a failure. lines: the lines of Python to write, if they are known.
    """

    check: Check
    status: Status
    reason: str = ""
    advice: str = ""
    lines: tuple[str, ...] = ()


def check(
    *, needs: str = "", unless: str = "", skip_reason: Reason = lambda subject: None, ask: Reason | None = None
) -> Callable[[Callable[[Subject], str | None]], Check]:
    """Decorator that makes a check of a function. The first paragraph of the function's docstring is the meaning.

    needs, unless: names of traits, separated by spaces. skip_reason: see `Check`. ask: its deprecated name.
    """
    if ask is not None:
        warnings.warn("check(ask=..) is now check(skip_reason=..); version 0.3 removes ask", DeprecationWarning, 2)
        skip_reason = ask

    def decorate(fn: Callable[[Subject], str | None]) -> Check:
        meaning = " ".join((inspect.getdoc(fn) or "").partition("\n\n")[0].split())
        return Check(fn.__name__, meaning, fn, tuple(needs.split()), tuple(unless.split()), skip_reason)

    return decorate


def run_check(check: Check, subject: Subject) -> Outcome:
    """Verify one property of a mechanism. An exception that the check raises is a failure, except the refusal of sizes:
    those do not apply. Runs with one torch thread: beside other programs, more of them wait for each other in every
    operation, which made checks ten times slower."""
    try:
        with use_threads(1):
            if reason := check.why_not(subject):
                return Outcome(check, "not_claimed", reason)
            return Outcome(check, "passed", check.run(subject) or "")
    except UnsupportedError as error:
        if is_refused_size(subject, error):
            return Outcome(check, "not_claimed", str(error))
        return make_failure(check, error)
    except SystemExit as error:
        return make_failure(check, CheckFailure(f"it ended the program: {describe_exception(error)}"))
    except Exception as error:
        return make_failure(check, error)


def make_failure(check: Check, error: Exception) -> Outcome:
    """The outcome of a check that raised an exception."""
    lines = error.lines if isinstance(error, CheckFailure) else ()
    return Outcome(check, "failed", explain(error), _advise(check, error), lines)


def explain(error: Exception) -> str:
    """What failed: the message of an assertion, or the description of another exception."""
    is_described = isinstance(error, AssertionError) and str(error)  # a mechanism's own assertions may have no message
    return str(error) if is_described else describe_exception(error)


def _advise(check: Check, error: Exception) -> str:
    """The property to satisfy, and the traits that do not require it."""
    opt_outs = dict.fromkeys((*(error.traits if isinstance(error, CheckFailure) else ()), *check.opt_outs))
    advice = f"property: {check.meaning}"
    if not opt_outs:
        return advice
    return f"{advice} If the property is not intended, declare {' or '.join(f'`{trait}`' for trait in opt_outs)}."
