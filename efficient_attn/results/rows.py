"""The row: the result of one planned case. Its columns are a contract with everyone who reads results."""

from __future__ import annotations

import json
import math
import numbers
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from operator import itemgetter
from typing import Any, Literal, TypeAlias, get_args

from .migrations import MIGRATIONS
from .sanitize import sanitize_line

SCHEMA_VERSION = 10
MAX_LINE_BYTES = 2**24  # of a record; the longest published one has 20 kB

Status = Literal["ok", "skipped", "unsupported", "invalid", "oom", "timeout", "crashed", "interrupted", "error"]
STATUSES: tuple[str, ...] = get_args(Status)
NO_FAILURE = ("ok", "skipped", "unsupported")
OVER_BUDGET = "one call takes longer than its budget"  # start of the reason of a case that is too slow to time

Value: TypeAlias = float | int | str | bool | None  # added by a task


@dataclass(kw_only=True, slots=True)  # with a dictionary each, a million rows would take 0.9 GB more
class Row:
    """The result of one case. Columns that do not apply are None. Times are in ms, sizes in bytes, rates per second.

    variant: the mechanism with its given options; options: all its options, defaults included, as JSON. seq_len: N, or
    the context when decoding; kv_len: M. mode: forward, forward_backward, prefill, decode or train; None for tasks that
    time nothing. latency_ms: the median over rounds with its 95% interval; speedup: the paired ratio baseline / variant
    with its 95% interval. pairs: query-key pairs of one head; flops: of the whole call. peak_memory_bytes: above what
    existed before the call, with the output and without the inputs. relative_error: against exact softmax;
    oracle_error: against the mechanism's reference (ratios of Frobenius norms). clamped_rows: rows whose sum of weights
    was moved away from zero before the division; None where that cannot happen. saved_bytes: kept for the backward
    pass; workspace_bytes: the rest of the peak; retained_bytes: still allocated after the call. stop_reason: why
    sampling ended (half_width, rounds or budget). cache: warm or cold. rounds, processes: the numbers measured.
    contaminated: rounds disturbed by something else on the machine. energy_j: joules per call, where the device counts
    them. bytes_moved: the least that any implementation must read and write per call; when decoding, what a step reads
    of the state. read_from: where these bytes are, ``memory`` or the name of a cache; bandwidth_share: the least time
    to read them from there, divided by the measured time. Up to schema 6 it was always relative to memory, and above 1
    where a cache held them. memory_budget_bytes: for decode states, if one was set; longest_context: the most positions
    whose state fits it; None with a budget if the state does not grow. backend: the requested one, if any;
    backend_used: the one that ran. part: of the suite. baseline: the variant that the group is compared with, if known.
    gate_len: the length at which the result was verified against the reference. fill: how much of a batch is not
    padding (full, half, drawn or packed); seq_len is the longest possible row. choices: the implementations that the
    call used, ``half=float32 products=batched``. budget: what the options were fitted to, keys per query, ``128``, or
    the state of a layer, ``192KiB``. kernels: torch's fused kernels that a call ran, by name. kept_between_calls_bytes:
    what two calls leave allocated after their results are released; part of the peak. process_peak_bytes: growth of
    resident memory during one call in a new process, a cross-check of the counted peak; when decoding, what a context
    and a step leave resident. gpu_ms: a GPU's time for a call, between two of its events around a sample. launches: the
    kernels, copies and fills that a call has a GPU run; gpu_busy_ms: how long at least one of them runs. launch_bound:
    whether a GPU waits for the host, ``gpu_busy_ms`` below half of ``gpu_ms``. idle_watts: power of the idle GPU, which
    is subtracted from ``energy_j``, and was not before schema 10. extra: the task's own columns, named
    ``task.name`` in frames.
    """

    run_id: str | None = None
    suite: str | None = None
    case_key: str = ""
    variant: str = ""
    backend: str | None = None
    family: str | None = None
    options: str | None = None
    device: str | None = None
    dtype: str | None = None
    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    seq_len: int | None = None
    kv_len: int | None = None
    head_dim: int | None = None
    causal: bool | None = None
    mode: str | None = None
    status: Status = "ok"
    reason: str | None = None
    threads: int | None = None
    compiled: bool | None = None
    machine: str | None = None
    backend_used: str | None = None
    latency_ms: float | None = None
    latency_ms_low: float | None = None
    latency_ms_high: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    tokens_per_s: float | None = None
    flops: float | None = None
    tflops_per_s: float | None = None
    roofline_share: float | None = None
    pairs: int | None = None
    pairs_computed: int | None = None
    peak_memory_bytes: int | None = None
    output_bytes: int | None = None
    saved_bytes: int | None = None
    workspace_bytes: int | None = None
    state_bytes: int | None = None
    task: str | None = None
    inputs: str | None = None
    layer: int | None = None
    relative_error: float | None = None
    oracle_error: float | None = None
    cosine_similarity: float | None = None
    total_variation: float | None = None
    missed_mass: float | None = None
    effective_keys: float | None = None
    metric: str | None = None
    accuracy: float | None = None
    loss: float | None = None
    steps: int | None = None
    parameters: int | None = None
    seed: int | None = None
    stop_reason: str | None = None
    cache: str | None = None
    cuda_graph: bool | None = None
    graph_breaks: int | None = None
    retained_bytes: int | None = None
    rounds: int | None = None
    processes: int | None = None
    contaminated: int | None = None
    energy_j: float | None = None
    clamped_rows: int | None = None
    bytes_moved: int | None = None
    bandwidth_share: float | None = None
    memory_budget_bytes: int | None = None
    longest_context: int | None = None
    part: str | None = None
    baseline: str | None = None
    gate_len: int | None = None
    read_from: str | None = None
    fill: str | None = None
    choices: str | None = None
    budget: str | None = None
    kernels: str | None = None
    kept_between_calls_bytes: int | None = None
    process_peak_bytes: int | None = None
    gpu_ms: float | None = None
    launches: int | None = None
    gpu_busy_ms: float | None = None
    launch_bound: bool | None = None
    idle_watts: float | None = None
    extra: dict[str, Value] = field(default_factory=dict)
    schema: int = SCHEMA_VERSION

    @property
    def is_baseline(self) -> bool:
        """Whether it was paired with itself, and so is the baseline of its group."""
        return self.speedup == self.speedup_low == self.speedup_high == 1


COLUMNS = tuple(f.name for f in fields(Row))
COLUMN_TYPES = {f.name: str(f.type).split(" ")[0] for f in fields(Row) if f.name != "extra"}  # ``str``, ``int``, ...
TEXT_COLUMNS = tuple(name for name, type_name in COLUMN_TYPES.items() if type_name in ("str", "Status"))
_CASE_COLUMNS = ("batch", "heads", "kv_heads", "seq_len", "kv_len", "head_dim", "causal", "threads", "compiled", "seed")
# texts that many rows share, which are stored once
REPEATED_COLUMNS = tuple(name for name in TEXT_COLUMNS if name not in ("case_key", "reason"))
_get_values = itemgetter(*COLUMNS)
_RECORD_KEYS = {*COLUMNS, "samples"}


class NewerSchemaError(ValueError):
    """A record of a later version: it is valid, and must not be changed."""


@dataclass
class Record:
    """A row with its raw samples: ``samples`` maps a name to numbers (times in ms, one list for each round).

    Texts, which come from plug-ins, exceptions and file names, are sanitized.
    """

    row: Row
    samples: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _clean_texts(self.row)

    def to_line(self) -> str:
        """One line of JSON that ends in a checksum of the rest. Raises `ValueError` for what `from_line` refuses."""
        _clean_texts(self.row)
        body = {name: getattr(self.row, name) for name in COLUMNS} | {"samples": self.samples}
        _check_extra(self.row.extra)
        text = json.dumps(body, allow_nan=False, separators=(",", ":"), default=_to_python_number)
        parse_json, check = _get_schema()
        check(parse_json(text))  # what is written can be read
        line = f'{text[:-1]},"crc":{zlib.crc32(text.encode())}}}\n'
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"a record of {len(line)} characters; at most {MAX_LINE_BYTES}: store fewer samples")
        return line

    def as_failure(self, reason: str) -> Record:
        """The record of the same case with status ``error``, without what was measured."""
        identity: dict[str, Any] = {name: getattr(self.row, name) for name in (*TEXT_COLUMNS, *_CASE_COLUMNS)}
        identity |= {"status": "error", "reason": reason}
        return Record(Row(**identity))

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Read a line, also of an older schema. Raises `ValueError` for broken, altered or newer lines."""
        text, separator, crc = line.rstrip("\n").rpartition(',"crc":')
        if not separator or crc[-1:] != "}" or not (crc.isascii() and crc[:-1].isdecimal()):
            raise ValueError("not a complete record")
        if zlib.crc32((text + "}").encode()) != int(crc[:-1]):
            raise ValueError("the checksum does not match: the record was altered")
        parse_json, check = _get_schema()
        body = _migrate(parse_json(text + "}"))
        if body.keys() != _RECORD_KEYS:
            name = min(body.keys() ^ _RECORD_KEYS)
            raise ValueError(f"{'unknown' if name in body else 'missing'} column {name}")
        _check_extra(body["extra"])
        check(body)
        samples = body.pop("samples")
        # the parser's own names, which are other objects, would take four times as long to match with the columns
        row = Row(**dict(zip(COLUMNS, _get_values(body), strict=True)))
        for name in REPEATED_COLUMNS:
            if text := getattr(row, name):
                setattr(row, name, sys.intern(text))
        return cls(row, samples)


@cache
def _get_schema() -> tuple[Callable[[str], Any], Callable[[Mapping[str, Any]], None]]:
    """The parser, and the check of a record, which import pydantic: verbs that read no rows start without it."""
    from .schema import make_record_check, parse_json

    return parse_json, make_record_check(COLUMN_TYPES, STATUSES)


def _clean_texts(row: Row) -> None:
    for name in TEXT_COLUMNS:
        text = getattr(row, name)
        if isinstance(text, str) and not text.isprintable():
            setattr(row, name, sanitize_line(text))
    if isinstance(row.extra, dict) and row.extra:  # other types are refused later
        row.extra = {_clean_value(name): _clean_value(value) for name, value in row.extra.items()}


def _clean_value(value: Any) -> Any:
    return sanitize_line(value) if isinstance(value, str) else value


def _to_python_number(value: Any) -> int | float:
    """Convert NumPy numbers, which plug-ins use, to Python numbers. Raises `TypeError` for other types."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be stored in a row")


def _check_extra(extra: Any) -> None:
    """Raise `ValueError` for names and values that cannot be columns."""
    if not isinstance(extra, dict):
        raise ValueError(f"extra is not a table of names and values, but {extra!r}")
    for name, value in extra.items():
        if not isinstance(name, str) or not isinstance(value, float | int | str | None):
            raise ValueError(f"extra: {name!r} is neither a number, nor text, nor true or false: {value!r}")


def _migrate(body: Any) -> dict[str, Any]:
    """A record's keys and values in the present schema."""
    schema = body.get("schema") if isinstance(body, dict) else None
    if type(schema) is not int:
        raise ValueError("no schema: not a record")
    if schema > SCHEMA_VERSION:
        message = f"schema {schema} is newer than this version reads ({SCHEMA_VERSION})"
        raise NewerSchemaError(f"{message}; upgrade efficient-attn")
    if schema < 1:
        raise ValueError(f"unknown schema {schema}")
    for newer in range(schema + 1, SCHEMA_VERSION + 1):
        body = body | MIGRATIONS[newer](body) | {"schema": newer}
    return body


def finite_or_none(value: float) -> float | None:
    """The number, or None where it is not finite and so cannot be stored."""
    return value if math.isfinite(value) else None
