"""What pydantic finds wrong with a TOML file, in one line: the place, the problem, the nearest valid choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .errors import UsageError, unknown

if TYPE_CHECKING:
    from pydantic import ValidationError


def in_one_line(file: str, error: ValidationError, keys_of: Callable[[list[int | str]], Iterable[str]]) -> UsageError:
    """One problem of a file. keys_of: the keys that a table may have, by the way that leads to it."""
    # a misspelt key leaves another one missing: the misspelling is what helps
    problem = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    loc = [x for x in problem["loc"] if "[" not in str(x)]  # what pydantic calls its own functions is no place
    where = ".".join(map(str, loc))
    if problem["type"] == "extra_forbidden":
        *table, key = loc
        return unknown("key", key, keys_of(table), where=f"{file}: {'.'.join(map(str, table)) or 'top level'}")
    if problem["type"] == "literal_error":
        choices = problem.get("ctx", {}).get("expected", "").replace(" or ", ", ").replace("'", "").split(", ")
        return unknown("value", problem["input"], choices, where=f"{file}: {where}")
    if problem["type"] == "missing":
        return UsageError(f"{file}: {where} is missing")
    if problem["type"] == "value_error":  # our own words
        return UsageError(": ".join(filter(None, (file, where, str(problem.get("ctx", {})["error"])))))
    return UsageError(f"{file}: {where}: {problem['msg']}, got {problem['input']!r}")
