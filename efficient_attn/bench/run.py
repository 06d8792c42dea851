"""A run: the plan carried out cell by cell, every record kept as soon as its cell is measured."""

from __future__ import annotations

import datetime as dt
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..results.rows import NO_FAILURE, Record
from ..results.store import Writer
from .case import Case
from .cell import measure
from .environment import environment
from .plan import Overrides, cells
from .suite import Loaded


@dataclass
class Outcome:
    """How a run ended: its folder, and how many of the planned cases came to what, earlier sessions included."""

    folder: Path
    statuses: Counter[str]

    @property
    def failed(self) -> int:
        return sum(count for status, count in self.statuses.items() if status not in NO_FAILURE)


def default_folder(suite: str, *, now: dt.datetime | None = None) -> Path:
    """``results/local/<suite>-<time>`` under the current folder."""
    return Path("results/local") / f"{suite}-{(now or dt.datetime.now()):%Y%m%d-%H%M%S}"


def run(
    loaded: Loaded,
    cases: Sequence[Case],
    folder: Path,
    *,
    overrides: Overrides,
    resume: bool = False,
    progress: Callable[[Record, int, int], Any] = lambda record, done, total: None,
) -> Outcome:
    """Measure the cases into a folder. With ``resume``, only those that the folder does not hold yet.

    progress is told each record with the number of cases done and planned. A cell is measured whole even when some
    of its cases are there already, because speedups are paired; what was written stays as it is.
    """
    with Writer(folder, resume=resume) as writer:
        missing = [(cell, members) for cell, members in cells(cases) if any(c.key not in writer.done for c in members)]
        about = _about(loaded)
        if missing:
            writer.describe(about)
        done = sum(case.key in writer.done for case in cases)
        for cell, members in missing:
            for record in measure(cell, members, activations=overrides.activations or loaded.suite.activations):
                if record.row.case_key in writer.done:
                    continue
                record.row.run_id, record.row.machine = about["run_id"], about["environment"]["machine"]
                writer.write(record)
                done += 1
                progress(record, done, len(cases))
        if missing:
            writer.describe(about | {"finished": _now()})
        return Outcome(folder, Counter(writer.done[case.key] for case in cases))


def _about(loaded: Loaded) -> dict[str, Any]:
    now = dt.datetime.now(dt.UTC)
    return {
        "run_id": f"{loaded.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        "suite": {"name": loaded.name, "title": loaded.suite.title, "baseline": loaded.suite.baseline},
        "suite_text": loaded.text,
        "command": ["efficient-attn", *sys.argv[1:]],
        "version": version("efficient-attn"),
        "started": _now(),
        "finished": None,
        "environment": environment(),
    }


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
