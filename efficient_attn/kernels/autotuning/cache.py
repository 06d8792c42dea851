"""Timings shared by processes: a file for each operation, machine, torch version and number of threads.

In ``$XDG_CACHE_HOME/efficient-attn/choices``, or ``~/.cache``. A damaged file, or one of another machine, is ignored.
Nothing here fails: where a file cannot be written, timings last as long as the process.
"""

import hashlib
import json
import os
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ...instruments.environment.identity import identify_machine
from ...results import durable
from ...results.user_cache import user_folder
from .candidates import TimingTable, Tunable

# settings of torch's libraries besides the processor
VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")


@cache
def describe_environment() -> dict[str, str]:
    """What a timing depends on: the machine, torch, and their settings."""
    identity = identify_machine()
    variables = " ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ)
    build = f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}"
    onednn = "with oneDNN" if torch.backends.mkldnn.is_available() else "without oneDNN"
    return {"machine": f"{identity['name']}#{identity['digest']}", "torch": f"{build} {onednn} {variables}".strip()}


def folder() -> Path:
    """The folder of the files."""
    return user_folder() / "choices"


def find_file(tunable: Tunable, threads: int) -> Path:
    """The file with the timings of an operation."""
    environment = describe_environment()
    candidates = [name for name in tunable.implementations if tunable.is_available(name)]
    key_parts = [environment, tunable.version, tunable.points, candidates]
    key = hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()[:12]
    machine = "".join(c if c.isalnum() or c in "-." else "_" for c in environment["machine"].partition("#")[0])
    return folder() / f"{machine}-{threads}t-{tunable.name}-{key}.json"


def read(tunable: Tunable, threads: int) -> TimingTable:
    """The timings stored for this machine; empty, with the reason as `source`, for an invalid file."""
    try:
        path = find_file(tunable, threads)
        text = path.read_text()
    except FileNotFoundError:
        return TimingTable()
    except (OSError, RuntimeError, UnicodeDecodeError) as error:  # RuntimeError: no home at all
        return TimingTable(source=f"not read: {_format_error(error)}")
    try:
        body, separator, crc = text.rpartition(" #")
        if not separator or zlib.crc32(body.encode()) != int(crc):
            return TimingTable(source=f"{path.name} is torn")
        contents: dict[str, Any] = json.loads(body)
        if contents["place"] != describe_environment():
            return TimingTable(source=f"{path.name} is from another machine: {contents['place']['machine']}")
        return TimingTable.from_json(contents, f"from {path.name}", cached=True)
    except (ValueError, KeyError, TypeError) as error:
        return TimingTable(source=f"{path.name} cannot be read: {_format_error(error)}")


def write(tunable: Tunable, threads: int, table: TimingTable, *, previous: TimingTable) -> TimingTable:
    """Store a table, and describe the outcome in its source; if another process was first, use its table. previous: the
    result of `read` for the file that this replaces."""
    concurrent = read(tunable, threads)
    if concurrent.timings:
        return concurrent
    note = f"; {previous.source}, and replaced" if previous.source else ""
    body = json.dumps({"place": describe_environment()} | table.as_json())
    try:
        path = find_file(tunable, threads)
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.replace(path, f"{body} #{zlib.crc32(body.encode())}".encode(), sync=False)
    except (OSError, RuntimeError) as error:
        return replace(table, source=f"measured now, not stored: {_format_error(error)}")
    return replace(table, source=f"measured now, stored in {path.name}{note}", cached=not note)


def _format_error(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
