"""What a record and a session of run.json may contain: types, ranges and sizes, checked where files are read and before
records are written, because rows may come from anyone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json
from typing_extensions import TypedDict

from .sanitize import sanitize_json

MAX_RUN_FILE_BYTES = 2**26  # of a run.json; the longest published one has 100 kB
MAX_TEXT = 2**16  # characters
MAX_NUMBER = 1e60  # products and squares of numbers, and of their inverses, stay finite

_Text = Annotated[str, Field(strict=True, max_length=MAX_TEXT)]
_Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
_Size = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
_Integer = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
_Number = Annotated[float, Field(strict=True, ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(strict=True, ge=0, le=MAX_NUMBER, allow_inf_nan=False)]
_Positive = Annotated[float, Field(strict=True, ge=1 / MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
_Bool = Annotated[bool, Field(strict=True)]

BYTE_DIFFERENCES = (
    *("saved_bytes", "workspace_bytes", "retained_bytes"),
    *("kept_between_calls_bytes", "process_peak_bytes"),
)
# the kinds of columns by type, and those of columns that allow less or more
KINDS: dict[str, Any] = {"str": _Text, "int": _Count, "float": _NotNegative, "bool": _Bool}
KINDS_BY_COLUMN: dict[str, Any] = {
    **dict.fromkeys(("batch", "heads", "kv_heads", "seq_len", "head_dim", "threads"), _Size),
    **dict.fromkeys(("seed", "layer", *BYTE_DIFFERENCES), _Integer),
    **dict.fromkeys(("latency_ms", "latency_ms_low", "latency_ms_high"), _Positive),
    **dict.fromkeys(("speedup", "speedup_low", "speedup_high"), _Positive),
    **dict.fromkeys(("cosine_similarity", "missed_mass", "accuracy", "loss"), _Number),
}
BOUNDED = ("latency_ms", "speedup")  # columns with an interval
_Value = _Bool | _Integer | _Number | _Text | None


# columns with text of the built-in tasks, by task; their others are numbers, or true or false
_CLAIMS = (f"{quantity}_{kind}" for quantity in ("time", "memory", "weights") for kind in ("claim", "verdict"))
TASK_TEXTS = {
    "complexity": frozenset(("of", "along", "stopped", "source", *_CLAIMS)),
    "distributed": frozenset(("scheme", "note")),
    "fidelity": frozenset(),
    "hybrid": frozenset(("rule", "own", "mechanism")),
    "longest": frozenset(("ended",)),
    "retrieval": frozenset(("needles",)),
    "swap": frozenset(),
    "train": frozenset(("way", "caveat", "note", "attempt", "conversion")),
}


class Samples(TypedDict, total=False):
    """The raw samples that readers use; tasks add others."""

    __pydantic_config__ = ConfigDict(extra="allow")  # pyright: ignore[reportGeneralTypeIssues]

    alignment: list[list[_Number]] | None
    calls: _Size | None
    depth: list[_Number | None]
    kernels: list[_Text] | None
    latency_ms: list[Annotated[list[_Positive], Field(min_length=1)]] | None
    layers: list[_Count]
    losses: list[_Number]
    process: list[_Count] | None
    started: list[_Number] | None
    steps: list[_Count]
    summary: Annotated[list[_NotNegative], Field(min_length=3, max_length=3)]
    validation: list[_Number | None]


class _Suite(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="allow")  # pyright: ignore[reportGeneralTypeIssues]

    name: _Text | None
    title: _Text | None
    baseline: _Text | None


class _Git(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="allow")  # pyright: ignore[reportGeneralTypeIssues]

    revision: _Text | None
    changed: _Bool | None
    digest: _Text | None


class _Environment(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="allow")  # pyright: ignore[reportGeneralTypeIssues]

    machine: _Text | None
    cpu: _Text | None
    torch: _Text | None
    threads_default: _Count | None
    gpus: list[Any] | None
    git: _Git | None
    variables: dict[_Text, _Text] | None


class Session(TypedDict, total=False):
    """What readers use of a session in run.json; it contains more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # pyright: ignore[reportGeneralTypeIssues]

    run_id: _Text | None
    suite: _Suite | None
    suite_text: Annotated[str, Field(strict=True, max_length=2**20)] | None
    command: list[_Text] | None
    protocol: _Count | None
    started: _Text | None
    finished: _Text | None
    environment: _Environment | None
    repository: _Git | None
    trial: list[_Text] | None
    order: list[_Text] | None
    seed: _Integer | None
    jobs: _Count | None


class RunFile(TypedDict):
    """A run.json."""

    sessions: list[Session]


@cache
def get_run_file_adapter() -> TypeAdapter[Any]:
    """The schema of run.json."""
    return TypeAdapter(RunFile)


def parse_json(text: str | bytes) -> Any:
    """Read JSON. Raises ValueError for invalid or deeply nested text, and for numbers that are not finite."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        as_text = text if isinstance(text, str) else text.decode(errors="replace")
        if "\\ud" not in as_text.lower():  # half a character, which earlier versions wrote
            raise
    try:
        content = sanitize_json(json.loads(text))
        json.dumps(content, allow_nan=False)
        return content
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def make_record_check(types: Mapping[str, str], statuses: Sequence[str]) -> Callable[[Mapping[str, Any]], None]:
    """A check of records of the present schema, which raises ValueError for the first value that does not fit. types:
    of the columns."""
    columns = {name: KINDS_BY_COLUMN.get(name) or KINDS.get(kind, _Text) for name, kind in types.items()}
    required = {"case_key", "variant", "status"}
    columns = {name: kind if name in required else kind | None for name, kind in columns.items()}
    columns |= {"status": Literal[*statuses], "extra": dict[_Text, _Value], "samples": Samples}
    adapter = TypeAdapter[Any](TypedDict("Body", columns))  # pyright: ignore[reportArgumentType]

    def check(body: Mapping[str, Any]) -> None:
        validate(adapter, body)
        for name in BOUNDED:
            value, low, high = body[name], body[f"{name}_low"], body[f"{name}_high"]
            if not (value is None or low is None or high is None or low <= value <= high):
                raise ValueError(f"{name}: {value:g} is not within its interval, {low:g} to {high:g}")

        for name, value in body["extra"].items():
            task, dot, column = name.partition(".")  # names that tasks share have the task's, or ``train``
            texts = TASK_TEXTS.get(task if dot else body["task"])
            column = column if dot else name
            if texts is not None and value is not None and isinstance(value, str) != (column in texts):
                raise ValueError(f"extra.{name}: {'not a text' if column in texts else 'not a number'}")
        rounds, processes = body["samples"].get("latency_ms"), body["samples"].get("process")
        if rounds and processes and len(rounds) != len(processes):
            raise ValueError(f"samples: {len(rounds)} rounds in latency_ms, {len(processes)} in process")

    return check


def validate(adapter: TypeAdapter[Any], value: Any) -> None:
    """Raise ValueError with the first value that does not fit, and where it is."""
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in problem["loc"] if not str(part).startswith(("function", "constrained")))
        raise ValueError(f"{place}: {problem['msg'].removeprefix('Input ')}") from error
