"""What a check is, how one is made and run, and its outcome."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .subject import Subject

Status = Literal["passed", "failed", "not_claimed"]


@dataclass(frozen=True)
class Check:
    """One property that mechanisms are held to.

    name: for people and test ids. meaning: one sentence. run: raises AssertionError with what, where and how far off.
    needs, unless: traits that must be claimed, or must not, for the property to be promised at all.
    ask: any further reason why it is not promised.
    """

    name: str
    meaning: str
    run: Callable[[Subject], None]
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    ask: Callable[[Subject], str | None] = lambda subject: None

    def why_not(self, subject: Subject) -> str | None:
        """Why the mechanism does not promise this; None when it does."""
        for trait in self.needs:
            if not getattr(subject.traits, trait):
                return f"it does not claim {trait}"
        for trait in self.unless:
            if getattr(subject.traits, trait):
                return f"it declares {trait}"
        return self.ask(subject)


@dataclass(frozen=True)
class Outcome:
    """What came of a check; ``reason`` says why it failed or was not claimed."""

    check: Check
    status: Status
    reason: str = ""


def check(
    *, needs: str = "", unless: str = "", ask: Callable[[Subject], str | None] = lambda subject: None
) -> Callable[[Callable[[Subject], None]], Check]:
    """Decorator: a function becomes a check, named after itself, its docstring's first line its meaning."""

    def made(fn: Callable[[Subject], None]) -> Check:
        meaning = (inspect.getdoc(fn) or "").partition("\n")[0]
        return Check(fn.__name__, meaning, fn, tuple(needs.split()), tuple(unless.split()), ask)

    return made


def run_check(check: Check, subject: Subject) -> Outcome:
    """Hold a mechanism to one property. Whatever goes wrong inside is the outcome, not an exception."""
    if reason := check.why_not(subject):
        return Outcome(check, "not_claimed", reason)
    try:
        check.run(subject)
    except AssertionError as error:
        return Outcome(check, "failed", str(error))
    except Exception as error:
        return Outcome(check, "failed", f"{type(error).__name__}: {error}")
    return Outcome(check, "passed")
