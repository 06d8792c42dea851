"""Parts of a plan for machines without a common engine: files that ``run --plan-part`` takes; ``merge`` joins the runs.

A part has whole groups, whose cases are timed together, and whole chains of trainings, of which one depends on the
results of another.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...errors import UsageError
from ...instruments.roofline import Roofline
from ...results.schema import MAX_RUN_FILE_BYTES, parse_json
from ..case import Case
from ..measuring.parallel import identify_unit
from .cost_estimate import estimate_cost

MOST_PARTS = 10_000
# of a core, so that a plan is split alike on every machine: 100 GFLOP/s and 10 GB/s
NOMINAL_RATES = Roofline(1e11, 1e10)
OTHER_DEVICE_S = 1.0  # a case of a device that this machine does not have, of which the time is not estimated

Digest = Annotated[str, Field(pattern="^[0-9a-f]{12}$")]


class PlanPart(BaseModel):
    """A part of a plan. arguments: of ``efficient-attn plan``, which make the plan again. part, of: its number, from 1,
    and that of all parts. cases: the digests of its cases. order: those of the whole plan."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    arguments: tuple[str, ...]
    part: Annotated[int, Field(ge=1)]
    of: Annotated[int, Field(ge=1, le=MOST_PARTS)]
    cases: tuple[Digest, ...]
    order: tuple[Digest, ...]

    @property
    def plan(self) -> str:
        """The digest of the whole plan."""
        return digest_plan(self.order)

    def select(self, cases: Sequence[Case], path: Path) -> list[Case]:
        """The cases of this part. path: of its file. Raises `UsageError` if they are those of another plan."""
        order = [case.digest for case in cases]
        if digest_plan(order) != self.plan:
            differing = len({*order} ^ {*self.order})
            reason = f"{differing} cases differ" if differing else "their order differs"
            message = f"the suite or its mechanisms are not those of the plan ({reason})"
            raise UsageError(f"{path}: {message}; use the same version and files, or split the plan again")
        members = {*self.cases}
        return [case for case in cases if case.digest in members]


def digest_plan(order: Sequence[str]) -> str:
    """A digest of the cases of a plan, by theirs."""
    return hashlib.sha256(json.dumps(list(order)).encode()).hexdigest()[:12]


def split_plan(cases: Sequence[Case], count: int, arguments: Sequence[str]) -> list[PlanPart]:
    """Split a plan into parts of about the same estimated time. Raises `UsageError` for more parts than can be made."""
    units: dict[Hashable, list[Case]] = defaultdict(list)
    for case in cases:
        units[identify_unit(case)].append(case)
    if not 1 <= count <= len(units):
        each = "groups of cases that run together"
        raise UsageError(f"plan: --split {count}: the plan has {len(units)} {each}; give at most {len(units)}")
    costs = estimate_cost(cases, best=NOMINAL_RATES).cases
    seconds = {key: sum(costs.get(case.key, (OTHER_DEVICE_S, 0))[0] for case in unit) for key, unit in units.items()}
    parts: list[list[Case]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for key in sorted(units, key=lambda key: -seconds[key]):  # the longest first, each to the part with least
        least = min(range(count), key=lambda number: (loads[number], number))
        parts[least] += units[key]
        loads[least] += seconds[key]
    order = tuple(case.digest for case in cases)
    positions = {digest: number for number, digest in enumerate(order)}
    return [
        PlanPart(
            arguments=tuple(arguments),
            part=number,
            of=count,
            cases=tuple(sorted((case.digest for case in members), key=positions.__getitem__)),
            order=order,
        )
        for number, members in enumerate(parts, 1)
    ]


def read_part(path: Path) -> PlanPart:
    """Read a part. Raises `UsageError` for a file that is none."""
    try:
        if (size := path.stat().st_size) > MAX_RUN_FILE_BYTES:
            raise ValueError(f"it has {size} bytes, more than {MAX_RUN_FILE_BYTES}")
        return PlanPart.model_validate(parse_json(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: not a part of a plan: {where}: {first['msg']}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not a part of a plan: {error}") from error
