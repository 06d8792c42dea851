"""Queries for the rows of a claim: conditions on columns, and the ranges of column values."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from ...errors import UsageError, make_unknown_error
from ...results.rows import COLUMN_TYPES, COLUMNS

Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Scalar: TypeAlias = StrictBool | StrictInt | StrictFloat | StrictStr


class Range(BaseModel):
    """A closed interval of numbers; either end may be unbounded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_least: Number = -math.inf
    at_most: Number = math.inf

    @model_validator(mode="after")
    def _validate_range(self) -> Self:
        if (self.at_least, self.at_most) == (-math.inf, math.inf):
            raise ValueError("a range needs at_least, at_most or both")
        if self.at_least > self.at_most:
            raise ValueError(f"no number is at least {self.at_least:g} and at most {self.at_most:g}")
        return self


Condition: TypeAlias = Range | Scalar | list[Scalar]
Query: TypeAlias = dict[str, Condition]

LOSS_COLUMN, PERPLEXITY_COLUMN = "swap.loss", "swap.perplexity"  # the second is computed from the first
SHARE_METRICS = ("accuracy", "total_variation", "missed_mass", "agreement", "attention_share", "sink_mass")
SHARE_METRICS += ("own_sink_mass",)
SIGNED_METRICS = ("cosine_similarity", "gradient_cosine")
UNBOUNDED_METRICS = ("margin", "time_exponent", "memory_exponent", "memory_low", "time_low", "time_high", "memory_high")


def matches(values: Mapping[str, Any], query: Query) -> bool:
    """Whether a row's values satisfy all conditions. A missing value satisfies none."""
    return all(_satisfies(values.get(column), condition) for column, condition in query.items())


def _satisfies(value: Any, condition: Condition) -> bool:
    if value is None:
        return False
    if isinstance(condition, Range):
        return not isinstance(value, bool | str) and condition.at_least <= value <= condition.at_most
    if isinstance(condition, list):
        return any(_satisfies(value, option) for option in condition)
    if isinstance(condition, str) and "*" in condition:
        pattern = ".*".join(map(re.escape, condition.split("*")))  # an asterisk matches any text
        return isinstance(value, str) and re.fullmatch(pattern, value) is not None
    return value == condition and isinstance(value, bool) == isinstance(condition, bool)


def check_columns(columns: Iterable[str]) -> None:
    """Raise `UsageError` for an unknown column. Columns of tasks are checked by `check_task_columns`."""
    for column in columns:
        if "." not in column and column not in COLUMN_TYPES:
            raise make_unknown_error("column", column, COLUMNS)


def check_conditions(query: Query) -> None:
    """Raise `UsageError` for a condition of another type than its column."""
    for column, condition in query.items():
        kind = COLUMN_TYPES.get(column)
        for option in condition if isinstance(condition, list) else [condition]:
            type_name = "float" if isinstance(option, Range) else type(option).__name__
            if kind is not None and _name_value_kind(kind) != _name_value_kind(type_name):
                raise UsageError(f"{column} holds {_name_value_kind(kind)}, but the condition is {option!r}")


def _name_value_kind(kind: str) -> str:
    return {"str": "strings", "Status": "strings", "bool": "true or false"}.get(kind, "numbers")


def find_bounds(column: str) -> tuple[float, float]:
    """Return the bounds of a column's values. Raises `UsageError` for a column without numbers."""
    if _name_value_kind(COLUMN_TYPES.get(column, "float")) != "numbers":
        raise UsageError(f"{column} holds {_name_value_kind(COLUMN_TYPES[column])}, which rules cannot compare")
    name = column.rpartition(".")[2]
    if name in SIGNED_METRICS:
        return -1.0, 1.0
    if name in UNBOUNDED_METRICS:
        return -math.inf, math.inf
    return 0.0, 1.0 if name in SHARE_METRICS else math.inf
