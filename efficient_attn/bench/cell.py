"""One cell measured: its cases taken to their task, those that are timed in turns, then a record for every case."""

from __future__ import annotations

from collections.abc import Sequence

from ..engines.job import Died
from ..instruments.environment.devices import why_absent
from ..instruments.timing import share_turns
from ..results.rows import Record
from .case import Case
from .conditions import Conditions
from .endings import end_case, end_dead
from .jobs import Prepare, Prepared
from .place import Cell
from .sittings import Entrant, Sittings


def measure(cell: Cell, cases: Sequence[Case], conditions: Conditions) -> list[Record]:
    """Exactly one record for every case. A case that fails becomes a row that says why; the others go on."""
    if reason := why_absent(cell.place.device):
        return [end_case(case, "skipped", reason) for case in cases]
    records: dict[str, Record] = {}
    entrants: dict[str, Entrant] = {}
    prepared, effort = _prepare_all(cell, cases, conditions), cell.effort
    paces = {key: found.pace for key, (found, _) in prepared.items() if isinstance(found, Prepared)}
    takes = share_turns(paces, rounds=effort.rounds, processes=effort.processes, budget_s=effort.budget_s)
    for case in cases:
        found, seconds = prepared[case.key]
        if isinstance(found, Record):
            records[case.key] = found
        else:
            left = conditions.timeout_s - seconds
            entrants[case.key] = Entrant(
                case, found.row, found.samples, takes[case.key], min(effort.budget_s, left), left
            )
    if entrants:
        records |= Sittings(cell, entrants, conditions).run()
    return [records[case.key] for case in cases]


def _prepare_all(
    cell: Cell, cases: Sequence[Case], conditions: Conditions
) -> dict[str, tuple[Prepared | Record, float]]:
    """Every case, prepared or failed, with the seconds that it took.

    A worker that dies takes only one case with it: the one that it was at, if that one kills a worker of its own too,
    or hangs. Otherwise an earlier one did the damage, and this one goes on.
    """
    done: dict[str, tuple[Prepared | Record, float]] = {}
    waiting, solo = list(cases), False
    while waiting:
        batch = waiting[:1] if solo else waiting
        solo = False
        job = Prepare(
            cell=cell,
            cases=tuple(batch),
            timeout_s=conditions.timeout_s,
            memory_bytes=conditions.memory_bytes,
            choices=conditions.choices,
        )
        try:
            for told in conditions.engine.carry_out(job):
                done[batch[told.case].key] = told.what, told.seconds
        except Died as death:
            done |= {c.key: (end_dead(c, death, conditions), 0.0) for c in batch if death.case < 0}
            if death.case == 0 or (death.case > 0 and death.status == "timeout"):
                done[batch[death.case].key] = end_dead(batch[death.case], death, conditions), 0.0
            solo = death.case > 0
        waiting = [case for case in waiting if case.key not in done]
    return done
