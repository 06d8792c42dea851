"""Which rows a claim is about: conditions on columns, and what a column's values may be."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from ...errors import UsageError, unknown
from ...results.rows import COLUMNS, Row

Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Scalar: TypeAlias = StrictBool | StrictInt | StrictFloat | StrictStr


class Range(BaseModel):
    """Numbers from one to another, both included; either end may be open."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_least: Number | None = None
    at_most: Number | None = None

    @model_validator(mode="after")
    def _hold_something(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("a range needs at_least, at_most or both")
        if None not in (self.at_least, self.at_most) and self.low > self.high:
            raise ValueError(f"no number is at least {self.low:g} and at most {self.high:g}")
        return self

    @property
    def low(self) -> float:
        return -math.inf if self.at_least is None else self.at_least

    @property
    def high(self) -> float:
        return math.inf if self.at_most is None else self.at_most


Condition: TypeAlias = Range | Scalar | list[Scalar]
Query: TypeAlias = dict[str, Condition]

KINDS = {field.name: str(field.type).split(" ")[0] for field in fields(Row) if field.name != "extra"}
SHARES = ("accuracy", "total_variation", "missed_mass", "agreement", "attention_share", "sink_mass", "own_sink_mass")
SIGNED = ("cosine_similarity", "gradient_cosine")
FREE = ("margin", "time_exponent", "memory_exponent", "memory_low", "time_low", "time_high", "memory_high")


def matches(cells: Mapping[str, Any], query: Query) -> bool:
    """Whether a row's cells meet every condition. An empty cell meets none."""
    return all(_meets(cells.get(column), condition) for column, condition in query.items())


def _meets(cell: Any, condition: Condition) -> bool:
    if cell is None:
        return False
    if isinstance(condition, Range):
        return not isinstance(cell, bool | str) and condition.low <= cell <= condition.high
    if isinstance(condition, list):
        return any(_meets(cell, one) for one in condition)
    if isinstance(condition, str) and "*" in condition:
        return isinstance(cell, str) and _pattern(condition).fullmatch(cell) is not None
    return cell == condition and isinstance(cell, bool) == isinstance(condition, bool)


def _pattern(text: str) -> re.Pattern[str]:
    """A text in which a ``*`` stands for anything."""
    return re.compile(".*".join(map(re.escape, text.split("*"))))  # re keeps what it compiled


def check_columns(columns: Iterable[str]) -> None:
    """`UsageError` for a column that no row has. What tasks add, ``task.name``, is checked where tasks are known."""
    for column in columns:
        if "." not in column and column not in KINDS:
            raise unknown("column", column, COLUMNS)


def check_conditions(query: Query) -> None:
    """`UsageError` for a condition that no cell of its column could meet, because it holds something else."""
    for column, condition in query.items():
        kind = KINDS.get(column)
        for one in condition if isinstance(condition, list) else [condition]:
            said = "float" if isinstance(one, Range) else type(one).__name__
            if kind is not None and _sort(kind) != _sort(said):
                raise UsageError(f"{column} holds {_sort(kind)}, which {one!r} is not")


def _sort(kind: str) -> str:
    return {"str": "texts", "Status": "texts", "bool": "true or false"}.get(kind, "numbers")


def find_bounds(column: str) -> tuple[float, float]:
    """Between what a column's values always lie. `UsageError` for one that holds no numbers."""
    if _sort(KINDS.get(column, "float")) != "numbers":
        raise UsageError(f"{column} holds {_sort(KINDS[column])}, which no rule can compare")
    name = column.rpartition(".")[2]
    if name in SIGNED:
        return -1.0, 1.0
    if name in FREE:
        return -math.inf, math.inf
    return 0.0, 1.0 if name in SHARES else math.inf
