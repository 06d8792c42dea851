"""Suites: TOML files that say what to measure, checked so that a typing error is an error and names its place."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ..errors import UsageError, unknown
from ..registry import load_plugin
from ..shipped import suite_names, suites_folder
from ..units import parse_size

Measure = Literal["forward", "forward_backward", "prefill", "decode", "peak_memory", "fidelity"]
Count = Annotated[int, Field(ge=1, strict=True)]
Size = Annotated[int, BeforeValidator(lambda value: parse_size(str(value)))]
T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Field(min_length=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axes(_Table):
    """What varies: every combination is measured. Each is a list; one value fixes it."""

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


class DimsTable(_Table):
    """Sizes that do not vary."""

    batch: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None


class Variant(_Table):
    """A mechanism with its options; ``name`` may also be a whole spec such as ``performer:n_features=256``."""

    name: str
    options: dict[str, Any] = {}
    backend: str | None = None


class _Grid(_Table):
    measure: tuple[Measure, ...] | None = Field(default=None, min_length=1)
    baseline: str | None = None
    axes: Axes = Axes()
    dims: DimsTable = DimsTable()
    variant: tuple[Variant, ...] | None = Field(default=None, min_length=1)


class Part(_Grid):
    """One grid of a suite. What it leaves out it takes from the top level; axes and dims are merged key by key."""

    name: str


class Suite(_Grid):
    """A suite as its file says it. Without ``[[part]]`` it is one grid.

    rounds: interleaved rounds a cell, at least; max_rounds: at most (default: three times as many). processes: over
    which the rounds are spread, at least. half_width: of the speedups' intervals, at which measuring stops, relative.
    budget_s: seconds of measuring a variant and cell may take. timeout_s: what a case may take with everything before
    it is given up. seed: of all inputs. memory_budget: a size such as ``16GB``, for which decode rows say the longest
    context whose state fits it.
    activations: the file of captured queries, keys and values that fidelity uses. plugins: what registers further
    mechanisms: Python files (``.py``) beside the suite's own, or modules by their dotted path.
    """

    title: str
    description: str = ""
    rounds: Annotated[int, Field(ge=2, strict=True)] = 8
    max_rounds: Annotated[int, Field(ge=2, strict=True)] | None = None
    processes: Annotated[int, Field(ge=1, strict=True)] = 4
    half_width: Annotated[float, Field(gt=0, lt=1)] = 0.02
    budget_s: Annotated[float, Field(gt=0)] = 60.0
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    memory_budget: Size | None = None
    activations: str = "minilm"
    plugins: tuple[str, ...] = ()
    part: tuple[Part, ...] = ()

    def parts(self) -> tuple[Part, ...]:
        """The grids, each with what it takes from the top level filled in."""
        given = self.part or (Part(name="all"),)
        return tuple(
            Part(
                name=p.name,
                measure=p.measure or self.measure,
                baseline=p.baseline or self.baseline,
                axes=self.axes.model_copy(update=p.axes.model_dump(exclude_none=True)),
                dims=self.dims.model_copy(update=p.dims.model_dump(exclude_none=True)),
                variant=p.variant or self.variant,
            )
            for p in given
        )


class Loaded(_Table):
    """A suite with its name and the text of its file, which is kept beside the results."""

    name: str
    text: str
    suite: Suite


def load_suite(name: str) -> Loaded:
    """Read a built-in suite by name, or any suite by the path of its ``.toml`` file."""
    path = Path(name) if name.endswith(".toml") else suites_folder() / f"{name}.toml"
    if not path.is_file():
        if name.endswith(".toml"):
            raise UsageError(f"{name}: no such file")
        raise unknown("suite", name, suite_names())
    try:
        text = path.read_text(encoding="utf-8")
        suite = Suite.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name}: not valid TOML: {error}") from error
    except ValidationError as error:
        raise _in_one_line(path.name, error) from error
    for part in suite.parts():
        if not part.measure or not part.variant:
            lacks = "variant" if part.measure else "measure"
            raise UsageError(f"{path.name}: part {part.name!r} has no {lacks}; add it there or at the top level")
    for plugin in suite.plugins:
        load_plugin(str(path.parent / plugin) if plugin.endswith(".py") else plugin)
    return Loaded(name=path.stem, text=text, suite=suite)


def _in_one_line(file: str, error: ValidationError) -> UsageError:
    """One problem of a suite file: the place, what is wrong, and the nearest valid choice."""
    # a misspelt key leaves another one missing: the misspelling is what helps
    problem = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    where = ".".join(str(x) for x in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *table, key = problem["loc"]
        return unknown("key", key, _keys_of(table), where=f"{file}: {'.'.join(map(str, table)) or 'top level'}")
    if problem["type"] == "literal_error":
        choices = problem.get("ctx", {}).get("expected", "").replace(" or ", ", ").replace("'", "").split(", ")
        return unknown("value", problem["input"], choices, where=f"{file}: {where}")
    if problem["type"] == "missing":
        return UsageError(f"{file}: {where} is missing")
    if problem["type"] == "value_error":  # our own words
        return UsageError(f"{file}: {where}: {problem.get('ctx', {})['error']}")
    return UsageError(f"{file}: {where}: {problem['msg']}, got {problem['input']!r}")


def _keys_of(table: list[int | str]) -> list[str]:
    names = [x for x in table if isinstance(x, str)]
    kinds: dict[str, type[BaseModel]] = {"axes": Axes, "dims": DimsTable, "variant": Variant, "part": Part}
    return list((kinds[names[-1]] if names else Suite).model_fields)
