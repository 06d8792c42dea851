"""A check, how it is defined and run, and its outcome."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .subject import Subject

Status = Literal["passed", "failed", "not_claimed"]


class CheckFailure(AssertionError):
    """A property that does not hold. traits: those to be declared differently, for example ``grouped=False``."""

    def __init__(self, message: str, traits: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.traits = traits


@dataclass(frozen=True)
class Check:
    """One property that mechanisms are verified for.

    name: for display and test ids. meaning: one sentence. run: raises AssertionError with what, where and how far off;
    may return a sentence about what it left out. needs, unless: traits that must be declared, or must not, for the
    property to apply. ask: any further reason why it does not apply.
    """

    name: str
    meaning: str
    run: Callable[[Subject], str | None]
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    ask: Callable[[Subject], str | None] = lambda subject: None

    def why_not(self, subject: Subject) -> str | None:
        """Why the mechanism does not promise this; None when it does."""
        for trait in self.needs:
            if not getattr(subject.traits, trait):
                return f"{trait} is not claimed"
        for trait in self.unless:
            if getattr(subject.traits, trait):
                return f"it is {trait.replace('_', ' ')}" if trait == "positional" else f"it {trait.replace('_', ' ')}"
        return self.ask(subject)

    @property
    def switches(self) -> tuple[str, ...]:
        """The declarations without which the property would not apply."""
        return (*(f"{trait}=False" for trait in self.needs), *(f"{trait}=True" for trait in self.unless))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check.

    reason: what failed and for which input, why the check does not apply, or what it left out. advice: what to do.
    """

    check: Check
    status: Status
    reason: str = ""
    advice: str = ""


def check(
    *, needs: str = "", unless: str = "", ask: Callable[[Subject], str | None] = lambda subject: None
) -> Callable[[Callable[[Subject], str | None]], Check]:
    """Decorator: a function becomes a check, named after itself, its docstring's first paragraph its meaning."""

    def made(fn: Callable[[Subject], str | None]) -> Check:
        meaning = " ".join((inspect.getdoc(fn) or "").partition("\n\n")[0].split())
        return Check(fn.__name__, meaning, fn, tuple(needs.split()), tuple(unless.split()), ask)

    return made


def run_check(check: Check, subject: Subject) -> Outcome:
    """Verify one property of a mechanism. Any exception inside becomes the outcome."""
    try:
        if reason := check.why_not(subject):
            return Outcome(check, "not_claimed", reason)
        return Outcome(check, "passed", check.run(subject) or "")
    except Exception as error:
        reason = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return Outcome(check, "failed", reason, _advise(check, error))


def _advise(check: Check, error: Exception) -> str:
    """Satisfy the property, or withdraw the trait that requires it."""
    switches = tuple(dict.fromkeys((*(error.traits if isinstance(error, CheckFailure) else ()), *check.switches)))
    law = f"property: {check.meaning}"
    return (
        f"{law} If the property is not intended, declare {' or '.join(f'`{s}`' for s in switches)}."
        if switches
        else law
    )
