"""The tables of a suite's file: axes, sizes, variants, parts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Count = Annotated[int, Field(ge=1, strict=True)]
T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Field(min_length=1)]
Word = Annotated[str, StringConstraints(strip_whitespace=True)]


class _SuiteTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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

    @property
    def varied(self) -> tuple[str, ...]:
        """Those with several values."""
        return tuple(name for name, values in self.model_dump(exclude_none=True).items() if len(set(values)) > 1)


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
