"""Errors of pydantic in one line: the location, the problem, and the nearest valid choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

from pydantic import BaseModel, ValidationError

from ...errors import UsageError, make_unknown_error

Table = list[int | str]  # the location of a table: keys, and indices in lists


def format_problem(file: str, error: ValidationError, keys_of: Callable[[Table], Iterable[str]]) -> UsageError:
    """The most helpful of several errors. keys_of: the keys that a table may have."""
    # a misspelled key leaves another one missing
    problem = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    loc = [x for x in problem["loc"] if "[" not in str(x)]  # pydantic's function names are not locations
    location = ".".join(map(str, loc))
    if problem["type"] == "extra_forbidden":
        *table, key = loc
        return make_unknown_error(
            "key", key, keys_of(table), where=f"{file}: {'.'.join(map(str, table)) or 'top level'}"
        )
    if problem["type"] == "literal_error":
        choices = problem.get("ctx", {}).get("expected", "").replace(" or ", ", ").replace("'", "").split(", ")
        return make_unknown_error("value", problem["input"], choices, where=f"{file}: {location}")
    if problem["type"] == "missing":
        return UsageError(f"{file}: {location} is missing")
    if problem["type"] == "value_error":  # raised by validators of this package
        return UsageError(": ".join(filter(None, (file, location, str(problem.get("ctx", {})["error"])))))
    return UsageError(f"{file}: {location}: {problem['msg']}, got {problem['input']!r}")


def list_nested_keys(model: type[BaseModel], table: Table) -> list[str]:
    """The keys of a task's nested table, or of a model in its annotation, ``dict[str, Claim]``."""
    if not table:
        return list(model.model_fields)
    arguments = get_args(model.model_fields[str(table[0])].annotation)
    return [key for argument in arguments for key in getattr(argument, "model_fields", ())]
