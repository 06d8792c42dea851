"""One cell measured: its cases prepared, then timed together in several processes, then a record for every case."""

from __future__ import annotations

from collections.abc import Sequence

from ..engines.local import Died, carry_out
from ..instruments.timing import turns
from ..results.rows import Record
from .case import Case, Cell
from .jobs import Prepare, Prepared
from .sittings import Entrant, Setting, Sittings, died, ended


def measure(cell: Cell, cases: Sequence[Case], setting: Setting) -> list[Record]:
    """Exactly one record for every case. A case that fails becomes a row that says why; the others go on."""
    if reason := absent(cell.device):
        return [ended(case, "skipped", reason) for case in cases]
    records: dict[str, Record] = {}
    entrants: dict[str, Entrant] = {}
    prepared = _prepare_all(cell, cases, setting)
    paces = {key: found.pace for key, (found, _) in prepared.items() if isinstance(found, Prepared)}
    takes = turns(paces, rounds=cell.rounds, processes=cell.processes, budget_s=cell.budget_s)
    for case in cases:
        found, seconds = prepared[case.key]
        if isinstance(found, Record):
            records[case.key] = found
        else:
            left = setting.timeout_s - seconds
            entrants[case.key] = Entrant(
                case, found.row, found.samples, takes[case.key], min(cell.budget_s, left), left
            )
    if entrants:
        records |= Sittings(cell, entrants, setting).run()
    return [records[case.key] for case in cases]


def absent(device: str) -> str | None:
    """Why a device cannot be used here; None when it can."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return "no CUDA device on this machine"
    if device == "mps" and not torch.backends.mps.is_available():
        return "no MPS device on this machine"
    return None


# -- preparing -----------------------------------------------------------------------------------------------------


def _prepare_all(cell: Cell, cases: Sequence[Case], setting: Setting) -> dict[str, tuple[Prepared | Record, float]]:
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
            activations=setting.activations,
            timeout_s=setting.timeout_s,
            memory_bytes=setting.memory_bytes,
        )
        try:
            for told in carry_out(job, method=setting.method, account=setting.account):
                done[batch[told.case].key] = told.what, told.seconds
        except Died as death:
            done |= {c.key: (died(c, death, setting), 0.0) for c in batch if death.case < 0}
            if death.case == 0 or (death.case > 0 and death.status == "timeout"):
                done[batch[death.case].key] = died(batch[death.case], death, setting), 0.0
            solo = death.case > 0
        waiting = [case for case in waiting if case.key not in done]
    return done
