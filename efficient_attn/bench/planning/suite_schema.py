"""The tables of a suite's file: axes, sizes, variants, parts; and errors of pydantic in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from ...errors import UsageError, make_unknown_error

Count = Annotated[int, Field(ge=1, le=2**40, strict=True)]  # products fit into 64 bits or a float
T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Field(min_length=1)]
Word = Annotated[str, StringConstraints(strip_whitespace=True)]


class _SuiteTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def given(self) -> dict[str, Any]:
        """The keys that have a value."""
        return self.model_dump(exclude_none=True)


class AxesTable(_SuiteTable):
    """The axes: every combination is measured. Each is a list; one value fixes it."""

    seq_len: Listed[Count] | None = None
    causal: Listed[bool] | None = None
    dtype: Listed[Literal["float32", "float64", "float16", "bfloat16"]] | None = None
    device: Listed[Literal["cpu", "cuda", "mps"]] | None = None
    threads: Listed[Count] | None = None
    batch: Listed[Count] | None = None
    heads: Listed[Count] | None = None
    kv_heads: Listed[Count] | None = None
    head_dim: Listed[Count] | None = None
    cache: Listed[Literal["warm", "cold"]] | None = None
    compiled: Listed[bool] | None = None
    cuda_graph: Listed[bool] | None = None
    fill: Listed[Literal["full", "half", "drawn", "packed"]] | None = None
    budget: Listed[Word] | None = None  # of keys a query, "128" or "N/16", or of a layer's state, "192KiB"


class DimsTable(_SuiteTable):
    """Sizes that do not vary."""

    batch: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None


class ShapeTable(DimsTable):
    """Sizes that belong together. The part's dims and axes set the rest."""

    seq_len: Count | None = None


class DesignTable(_SuiteTable):
    """A few points out of all combinations of the axes, which separate the main effects.

    seed: of the choice. most_flops: excludes points at which a call of exact attention needs more operations;
    operations, not seconds, so that every machine has the same points.
    """

    points: Annotated[int, Field(ge=2, strict=True)]
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    most_flops: Annotated[float, Field(gt=0)] | None = None


class VariantTable(_SuiteTable):
    """A mechanism with its options; ``name`` may also be a whole spec such as ``performer:n_features=256``. In
    ``block``, a layer with that mechanism inside, or a baseline such as ``gru``."""

    name: str
    options: dict[str, Any] = {}
    backend: str | None = None


class GridTable(_SuiteTable):
    """A table ``[[grid]]``: all combinations of its axes."""

    measure: tuple[str, ...] | None = Field(default=None, min_length=1)
    baseline: str | None = None
    axes: AxesTable = AxesTable()
    quick: AxesTable = AxesTable()
    dims: DimsTable = DimsTable()
    shapes: Listed[ShapeTable] | None = None
    design: DesignTable | None = None
    variant: tuple[VariantTable, ...] | None = Field(default=None, min_length=1)
    block: tuple[VariantTable, ...] | None = Field(default=None, min_length=1)


class SuitePart(GridTable):
    """One grid of a suite. Missing keys come from the top level; axes and dims are merged key by key.

    shapes: every combination of the axes is measured at each of them, instead of every combination of sizes.
    """

    name: str


TABLES: dict[str, type[BaseModel]] = {
    **{"part": SuitePart, "axes": AxesTable, "quick": AxesTable, "dims": DimsTable, "shapes": ShapeTable},
    **{"design": DesignTable, "variant": VariantTable, "block": VariantTable},
}


# -- errors: the location, the problem, and the nearest valid choice --------------------------------------------------

Table = list[int | str]  # the location of a table: keys, and indices in lists


def format_problem(file: str, error: ValidationError, keys_of: Callable[[Table], Iterable[str]]) -> UsageError:
    """The most helpful of several errors. keys_of: the keys that a table may have."""
    # a misspelled key leaves another one missing
    problem = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    loc = [x for x in problem["loc"] if "[" not in str(x)]  # pydantic's function names are not locations
    location = ".".join(map(str, loc))
    if problem["type"] == "extra_forbidden":
        *table, key = loc
        where = f"{file}: {'.'.join(map(str, table)) or 'top level'}"
        return make_unknown_error("key", key, keys_of(table), where=where)
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
