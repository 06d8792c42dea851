"""One cell measured: each mechanism gated, then all of them timed together, then a record for every case."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch

from ..errors import UnsupportedError
from ..mask import Mask
from ..results.rows import Record, Row, Status, finite
from ..results.stats import paired_ratio
from ..state import state_bytes
from ..tasks.activations import Activations
from ..tasks.fidelity import fidelity, relative_error
from .case import Case, Cell
from .gate import TOLERANCE, Invalid, gate
from .memory import peak_memory
from .timing import Subject, Timing, TooSlow, calibrate, interleave
from .workload import Workload

BACKWARD = 2.5  # a backward pass does five matrix products where the forward does two


@dataclass
class Entrant:
    """A case on its way through a cell."""

    case: Case
    row: Row
    subject: Subject
    timing: Timing
    samples: dict[str, Any]


def measure(cell: Cell, cases: Sequence[Case], *, activations: str) -> list[Record]:
    """Exactly one record for every case. A case that fails becomes a row that says why; the others go on."""
    if reason := absent(cell.device):
        return [_ended(case.row(), "skipped", reason) for case in cases]
    default = _default_threads()  # asked first: what one cell sets must not become the next one's default
    torch.set_num_threads(cell.threads or default)
    if cell.task == "fidelity":
        return [_attempt(case, lambda row, case=case: _fidelity(case, row, activations)) for case in cases]
    return _speed(cell, cases)


@cache
def _default_threads() -> int:
    return torch.get_num_threads()


def absent(device: str) -> str | None:
    """Why a device cannot be used here; None when it can."""
    if device == "cuda" and not torch.cuda.is_available():
        return "no CUDA device on this machine"
    if device == "mps" and not torch.backends.mps.is_available():
        return "no MPS device on this machine"
    return None


def _attempt(case: Case, work: Callable[[Row], Record]) -> Record:
    """The record of some work on a case, or of the way in which it failed."""
    row = case.row()
    row.threads = torch.get_num_threads()
    try:
        return work(row)
    except Exception as error:
        return _failed(row, error)


def _failed(row: Row, error: Exception) -> Record:
    """The record of a case that raised, by what it raised."""
    if isinstance(error, UnsupportedError):
        return _ended(row, "unsupported", str(error))
    if isinstance(error, Invalid):
        return _ended(row, "invalid", str(error))
    if isinstance(error, TooSlow):
        return _ended(row, "timeout", str(error))
    # torch reports a failed CPU allocation as a plain RuntimeError
    unnamed = isinstance(error, RuntimeError) and ("not enough memory" in str(error) or "can't allocate" in str(error))
    out_of_memory = unnamed or isinstance(error, MemoryError | torch.OutOfMemoryError)
    return _ended(row, "oom" if out_of_memory else "error", _one_line(error))


def _ended(row: Row, status: Status, reason: str) -> Record:
    row.status, row.reason = status, reason
    return Record(row)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


# -- speed and memory ----------------------------------------------------------------------------------------------


def _speed(cell: Cell, cases: Sequence[Case]) -> list[Record]:
    entrants: dict[str, Entrant] = {}
    records: dict[str, Record] = {}
    for case in cases:
        records[case.key] = _attempt(case, lambda row, case=case: _prepare(case, row, entrants))
    seed = zlib.crc32(repr(cell).encode())
    subjects = {key: e.subject for key, e in entrants.items()}
    timings = {key: e.timing for key, e in entrants.items()}
    for key, error in interleave(subjects, timings, seed=seed, device=cell.device).items():
        records[key] = _failed(entrants.pop(key).row, error)
    baseline = next((e for e in entrants.values() if e.case.variant == cell.baseline), None)
    for entrant in entrants.values():
        _finish(entrant, baseline, seed)
    return [records[case.key] for case in cases]


def _prepare(case: Case, row: Row, entrants: dict[str, Entrant]) -> Record:
    """Gate a case, measure its memory and calibrate its timing; what is left to do is the timing itself."""
    cell = case.cell
    workload = Workload(case)
    row.oracle_error = finite(gate(workload))
    row.seed, row.parameters = cell.seed, sum(p.numel() for p in workload.attn.parameters())
    row.backend_used, row.machine = workload.attn.backend, None
    _count_work(workload, row)
    if cell.memory:
        peak = peak_memory(getattr(workload, str(cell.mode)), device=cell.device)
        row.peak_memory_bytes, row.reason = peak.bytes, peak.reason
    subject = workload.subject()
    timing = calibrate(subject, rounds=cell.rounds, budget_s=cell.budget_s, device=cell.device)
    record = Record(row)
    entrants[case.key] = Entrant(case, row, subject, timing, record.samples)
    return record


def _count_work(workload: Workload, row: Row) -> None:
    s, attn, decoding = workload.shape, workload.attn, workload.case.cell.mode == "decode"
    n, causal = (1, True) if decoding else (s.n, workload.case.cell.causal)
    row.pairs, row.pairs_computed = attn.pairs(n, s.m, causal), attn.pairs_computed(n, s.m, causal)
    work = attn.growth.cost(n, s.m, causal) * 2 * (s.head_dim + s.value_dim) * s.batch * s.heads
    row.flops = work * (1 + BACKWARD) if row.mode == "forward_backward" else work
    if decoding:
        row.steps = 1
        row.state_bytes = state_bytes(workload.after_context(s.m))
    elif row.mode == "forward":
        row.output_bytes = s.batch * s.heads * s.n * s.value_dim * workload.sample.q.element_size()


def _finish(entrant: Entrant, baseline: Entrant | None, seed: int) -> None:
    row, timing = entrant.row, entrant.timing
    row.latency_ms, row.latency_ms_low, row.latency_ms_high = timing.latency
    row.stop_reason = timing.stop_reason
    seconds = row.latency_ms / 1e3
    positions = 1 if row.mode == "decode" else entrant.case.cell.seq_len
    row.tokens_per_s = entrant.case.cell.batch * positions / seconds
    row.tflops_per_s = None if row.flops is None else row.flops / seconds / 1e12
    if baseline is not None:
        row.speedup, row.speedup_low, row.speedup_high = paired_ratio(baseline.timing.medians, timing.medians)
    entrant.samples |= {"latency_ms": timing.samples, "calls": timing.calls, "order_seed": seed}


# -- fidelity ------------------------------------------------------------------------------------------------------


def _fidelity(case: Case, row: Row, activations: str) -> Record:
    cell = case.cell
    assert cell.layer is not None
    arrays = Activations.find(activations).layer(cell.layer)
    q, k, v = (torch.from_numpy(x).to(device=cell.device, dtype=getattr(torch, cell.dtype)) for x in arrays)
    attn, mask = case.create(), Mask(causal=cell.causal)
    with torch.no_grad():
        error = relative_error(attn(q, k, v, mask), case.create(backend="dense")(q, k, v, mask))
    if error > TOLERANCE[cell.dtype]:
        raise Invalid(f"the output is not the oracle's: relative error {error:.2e}")
    found: Mapping[str, float] = asdict(fidelity(attn, q, k, v, mask))
    row.oracle_error, row.backend_used, row.seed = error, attn.backend, cell.seed
    row.parameters = sum(p.numel() for p in attn.parameters())
    for name, value in found.items():
        if name != "mean_value_error":
            setattr(row, name, finite(value))
    return Record(row, {"mean_value_error": found["mean_value_error"]})
