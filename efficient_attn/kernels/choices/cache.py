"""Timings kept from one process to the next: a file for each contest, machine, torch and number of threads.

In ``$XDG_CACHE_HOME/efficient-attn/choices``, or ``~/.cache``. A file that is torn, or that another machine wrote, is
as good as none. Nothing here fails: where a file cannot be kept, timings last as long as their process.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ...instruments.environment.identity import identify
from ...results import durable
from .contest import Contest, Point, Table

# what steers torch's libraries besides the processor
VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")


@cache
def this_place() -> dict[str, str]:
    """What a timing holds for: the machine, torch, and what torch was told to use of both."""
    identity = identify()
    said = " ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ)
    built = f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}"
    onednn = "with oneDNN" if torch.backends.mkldnn.is_available() else "without oneDNN"
    return {"machine": f"{identity['name']}#{identity['digest']}", "torch": f"{built} {onednn} {said}".strip()}


def folder() -> Path:
    """Where the files lie."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "efficient-attn" / "choices"


def find_file(contest: Contest, threads: int) -> Path:
    """The file of a contest."""
    place = this_place()
    key = hashlib.sha256(json.dumps([place, contest.version, contest.points]).encode()).hexdigest()[:12]
    machine = "".join(c if c.isalnum() or c in "-." else "_" for c in place["machine"].partition("#")[0])
    return folder() / f"{machine}-{threads}t-{contest.name}-{key}.json"


def read(contest: Contest, threads: int) -> Table:
    """The timings kept for this machine. None of them, and the reason as `source`, where the file is no good."""
    try:
        path = find_file(contest, threads)
        text = path.read_text()
    except FileNotFoundError:
        return Table()
    except (OSError, RuntimeError, UnicodeDecodeError) as error:  # RuntimeError: no home at all
        return Table(source=f"not read: {_line(error)}")
    try:
        body, mark, crc = text.rpartition(" #")
        if not mark or zlib.crc32(body.encode()) != int(crc):
            return Table(source=f"{path} is torn")
        found: dict[str, Any] = json.loads(body)
        if found["place"] != this_place():
            return Table(source=f"{path} is from another machine: {found['place']['machine']}")
        timings = tuple((Point(kind, tuple(sizes)), dict(times)) for kind, sizes, times in found["timings"])
        return Table(timings, f"from {path}", found["seconds"], kept=True)
    except (ValueError, KeyError, TypeError) as error:
        return Table(source=f"{path} cannot be read: {_line(error)}")


def write(contest: Contest, threads: int, table: Table, *, before: Table) -> Table:
    """Keep a table, and say in its source whether that went well; where another process was first, take its table.

    before: what `read` said of the file that this replaces.
    """
    first = read(contest, threads)
    if first.timings:
        return first
    why = f"; {before.source}, and replaced" if before.source else ""
    timings = [[point.kind, point.sizes, times] for point, times in table.timings]
    body = json.dumps({"place": this_place(), "seconds": table.seconds, "timings": timings})
    try:
        path = find_file(contest, threads)
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.replace(path, f"{body} #{zlib.crc32(body.encode())}".encode(), sync=False)
    except (OSError, RuntimeError) as error:
        return replace(table, source=f"measured now, not kept: {_line(error)}")
    return replace(table, source=f"measured now, kept in {path}{why}", kept=not why)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
