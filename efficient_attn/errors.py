"""The two ways to say no, and the sentence that names the nearest valid choice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Bad input: one line that says what is wrong, where, and what to do. The command line ends with exit code 2."""


class UnsupportedError(RuntimeError):
    """A mechanism, backend or device that cannot do what was asked of it, and why. Nothing falls back silently."""


def unknown(what: str, name: object, choices: Iterable[str], *, where: str = "") -> UsageError:
    """The error for a name that does not exist: it names the place, the nearest choice and, when few, all of them."""
    known = sorted(choices)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    named = ", ".join(repr(choice) if "," in choice else choice for choice in known)
    listing = f" (choices: {named or 'none'})" if len(known) <= 12 or not near else ""
    return UsageError(f"{where + ': ' if where else ''}unknown {what} {str(name)!r}{hint}{listing}")
