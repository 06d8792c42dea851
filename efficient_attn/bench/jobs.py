"""What workers do: prepare a cell's cases, take a sitting of its rounds, judge fidelity, look at the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import torch

from ..contract.capacity import longest_context
from ..contract.mask import Mask
from ..contract.state import state_bytes
from ..engines.local import Board, limit_memory
from ..errors import UnsupportedError, UsageError
from ..instruments.ceilings import Ceiling, ceiling
from ..instruments.disturbance import Watch
from ..instruments.energy import joules_a_call, meter
from ..instruments.environment.gpu import sensors
from ..instruments.guard import Globals, Meddled, watched
from ..instruments.memory import canary
from ..instruments.timing import Pace, TooSlow, Turn, calibrate, first_call, sitting
from ..results.rows import Record, Row, Status, finite
from ..tasks.activations import Activations
from ..tasks.fidelity import fidelity, relative_error
from .case import Case, Cell
from .gate import TOLERANCE, Invalid, gate
from .workload import Workload

BACKWARD = 2.5  # a backward pass does five matrix products where the forward does two
STAGES = (
    "its inputs were made",
    "it was compiled",
    "its first call ran",
    "it was compared with its oracle",
    "its memory was counted",
    "it was calibrated",
    "it was timed",
    "its fidelity was measured",
)
MAKING, COMPILING, FIRST, GATE, MEMORY, CALIBRATING, TIMING, FIDELITY = range(len(STAGES))


@dataclass
class Prepared:
    """A case that has passed its gate: its row so far, and its pace."""

    row: Row
    pace: Pace
    samples: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Of:
    """Something told of one case, by its place among the job's cases, with the seconds that it took."""

    case: int
    what: Prepared | Record
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Take each case to where it can be timed, or to the record that says why not. Tells an `Of` for each."""

    cell: Cell
    cases: tuple[Case, ...]
    activations: str
    timeout_s: float
    memory_bytes: int | None

    def run(self, board: Board, tell: Callable[[Any], None]) -> None:
        _set_threads(self.cell)
        for place, case in enumerate(self.cases):
            start = time.perf_counter()
            overdue = time.monotonic() + self.timeout_s

            def at(stage: int, seconds: float | None = None, *, place: int = place, overdue: float = overdue) -> None:
                left = overdue - time.monotonic()
                board.at(place, stage, left if seconds is None else min(seconds, left))

            at(MAKING)
            limit_memory(self.memory_bytes)
            what = self._one(case, at)
            tell(Of(place, what, time.perf_counter() - start))

    def _one(self, case: Case, at: Callable[..., None]) -> Prepared | Record:
        row = case.row()
        row.threads = torch.get_num_threads()
        try:
            if self.cell.task == "fidelity":
                at(FIDELITY)
                return _fidelity(case, row, self.activations)
            return _prepare(case, row, at)
        except Exception as error:
            return failed(row, error)


@dataclass(frozen=True)
class Sat:
    """One round of a sitting, by the case's place among the job's cases."""

    samples: Mapping[int, list[float]]
    waited: Mapping[int, int]
    failed: Mapping[int, tuple[Status, str]]


@dataclass(frozen=True)
class Ended:
    """The end of a sitting: why its numbers may be disturbed, if they may, and what was seen of it."""

    disturbed: str | None
    seen: dict[str, Any]
    graph_breaks: Mapping[int, int]
    energy_j: Mapping[int, float | None]


@dataclass(frozen=True, kw_only=True)
class Sit:
    """Measure some rounds of prepared cases together. Tells a `Sat` for each round, then `Ended`."""

    cell: Cell
    cases: tuple[Case, ...]
    turns: tuple[Turn, ...]
    rounds: tuple[int, ...]
    seed: int
    timeout_s: tuple[float, ...]
    memory_bytes: int | None
    energy: bool  # measured too, where the device tells

    def run(self, board: Board, tell: Callable[[Any], None]) -> None:
        threads, device = _set_threads(self.cell), self.cell.device
        limit_memory(self.memory_bytes)
        works: list[Workload] = []
        for place, case in enumerate(self.cases):
            board.at(place, MAKING, self.timeout_s[place])
            works.append(Workload(case))
            works[-1].warm()
        before, watch = Globals.now(), Watch()
        rounds = sitting(
            {str(i): work.subject() for i, work in enumerate(works)},
            {str(i): turn for i, turn in enumerate(self.turns)},
            {str(i): count for i, count in enumerate(self.rounds)},
            seed=self.seed,
            device=device,
            alone=threads == 1 and device == "cpu",
            at=lambda name: board.at(int(name), TIMING, self.timeout_s[int(name)]),
            after=lambda: _check(before),
        )
        for r in rounds:
            ends = {int(n): how_it_failed(e) for n, e in r.failed.items()}
            tell(Sat(_placed(r.samples), _placed(r.waited), ends))
        seen, waits = watch.lap(), threads if device == "cpu" else None  # for a GPU a thread may well wait
        told = asdict(seen) | ({"gpu": {n: str(v) for n, v in sensors().items()}} if device == "cuda" else {})
        tell(Ended(seen.reason(waits), told, {i: w.graph_breaks for i, w in enumerate(works)}, self._energy(works)))

    def _energy(self, works: Sequence[Workload]) -> dict[int, float | None]:
        read = meter(self.cell.device) if self.energy else None
        if read is None:
            return {}
        calls = [turn.pace.calls for turn in self.turns]
        return {i: joules_a_call(w.subject(), calls[i], read, device=self.cell.device) for i, w in enumerate(works)}


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Look at the machine before a run: does the memory counter tell the truth, and how fast could anything be?"""

    device: str
    settings: tuple[tuple[str, int | None], ...]  # dtype and threads
    limit_s: float

    def run(self, board: Board, tell: Callable[[Any], None]) -> None:
        board.at(0, MAKING, self.limit_s)
        tell(canary(self.device))
        default = _default_threads()
        for dtype, threads in self.settings:
            found: Ceiling = ceiling(self.device, dtype, threads or default)
            tell((dtype, threads, found))


def _placed(by_name: Mapping[str, Any]) -> dict[int, Any]:
    return {int(name): value for name, value in by_name.items()}


def _set_threads(cell: Cell) -> int:
    default = _default_threads()  # asked first: where jobs share a process, one's setting is not the next one's default
    torch.set_num_threads(cell.threads or default)
    return torch.get_num_threads()


@cache
def _default_threads() -> int:
    return torch.get_num_threads()


def _check(before: Globals) -> None:
    if reason := before.changed():
        before.restore()
        raise Meddled(reason)


# -- how a case fails ----------------------------------------------------------------------------------------------


def how_it_failed(error: BaseException) -> tuple[Status, str]:
    """The status and the reason of a case that raised."""
    if isinstance(error, UnsupportedError):
        return "unsupported", str(error)
    if isinstance(error, Invalid | Meddled):
        return "invalid", str(error)
    if isinstance(error, TooSlow):
        return "timeout", str(error)
    # torch reports a failed CPU allocation as a plain RuntimeError
    unnamed = isinstance(error, RuntimeError) and ("not enough memory" in str(error) or "can't allocate" in str(error))
    out_of_memory = unnamed or isinstance(error, MemoryError | torch.OutOfMemoryError)
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
    return "oom" if out_of_memory else "error", text


def failed(row: Row, error: BaseException) -> Record:
    row.status, row.reason = how_it_failed(error)
    if row.device == "cuda" and row.status == "oom":
        torch.cuda.empty_cache()
    return Record(row)


# -- speed and memory ----------------------------------------------------------------------------------------------


def _prepare(case: Case, row: Row, at: Callable[..., None]) -> Prepared:
    """Gate a case, count its memory and find its pace."""
    cell = case.cell
    workload = Workload(case)
    with watched(workload.drawn):
        at(COMPILING if cell.compiled else FIRST, None if cell.compiled else cell.budget_s)
        workload.warm()
        at(FIRST, cell.budget_s)
        subject = workload.subject()
        first_call(subject, budget_s=cell.budget_s, device=cell.device)
        at(GATE)
        row.oracle_error = finite(gate(workload))
        row.seed, row.parameters = cell.seed, sum(p.numel() for p in workload.attn.parameters())
        row.backend_used, row.clamped_rows = workload.attn.backend, workload.clamped_rows()
        row.bytes_moved = workload.bytes_moved
        _count_work(workload, row)
        at(MEMORY)
        samples = _count_memory(workload, row)
        at(CALIBRATING)
        pace = calibrate(subject, budget_s=cell.budget_s, device=cell.device)
    return Prepared(row, pace, samples | {"bytes_moved": row.bytes_moved})


def _count_memory(workload: Workload, row: Row) -> dict[str, Any]:
    """One call under the profiler: the kernels that it really ran, and its bytes where the suite asks for them."""
    found = workload.footprint()
    if workload.case.cell.memory:
        row.peak_memory_bytes, row.retained_bytes, row.reason = found.peak, found.retained, found.reason
        row.output_bytes, row.saved_bytes, row.workspace_bytes = found.output, found.saved, found.workspace
    return {"kernels": list(found.kernels)}


def _count_work(workload: Workload, row: Row) -> None:
    s, attn, decoding = workload.shape, workload.attn, workload.case.cell.mode == "decode"
    n, causal = (1, True) if decoding else (s.n, workload.case.cell.causal)
    row.pairs, row.pairs_computed = attn.pairs(n, s.m, causal), attn.pairs_computed(n, s.m, causal)
    pairs = attn.growth.step_cost(s.m) if decoding else attn.growth.cost(n, s.m, causal)
    work = pairs * 2 * (s.head_dim + s.value_dim) * s.batch * s.heads
    row.flops = work * (1 + BACKWARD) if row.mode == "forward_backward" else work
    if decoding:
        row.steps = 1
        row.state_bytes = state_bytes(workload.after_context(s.m))
        _count_capacity(workload, row)
    elif row.mode == "forward":
        row.output_bytes = s.batch * s.heads * s.n * s.value_dim * workload.sample.q.element_size()


def _count_capacity(workload: Workload, row: Row) -> None:
    """How long a context may be until its state is over the budget, if there is one; else the reason is told."""
    budget, dtype = workload.case.cell.memory_budget, workload.sample.q.dtype
    if budget is None:
        return
    try:
        row.longest_context = longest_context(workload.attn, budget, batch=workload.shape.batch, dtype=dtype)
        row.memory_budget_bytes = budget
    except UsageError as error:  # a state that only its first step allocates cannot be counted ahead
        row.reason = str(error)


# -- fidelity ------------------------------------------------------------------------------------------------------


def _fidelity(case: Case, row: Row, activations: str) -> Record:
    cell = case.cell
    assert cell.layer is not None
    arrays = Activations.find(activations).layer(cell.layer)
    q, k, v = (torch.from_numpy(x).to(device=cell.device, dtype=getattr(torch, cell.dtype)) for x in arrays)
    attn, mask = case.create(), Mask(causal=cell.causal)
    with torch.no_grad(), watched((q, k, v)):
        error = relative_error(attn(q, k, v, mask), case.create(backend="dense")(q, k, v, mask))
        if error > TOLERANCE[cell.dtype]:
            raise Invalid(f"the output is not the oracle's: relative error {error:.2e}")
        found: Mapping[str, float] = asdict(fidelity(attn, q, k, v, mask))
    row.oracle_error, row.backend_used, row.seed = error, attn.backend, cell.seed
    row.clamped_rows = attn.clamped_rows(q, k, v, mask)
    row.parameters = sum(p.numel() for p in attn.parameters())
    for name, value in found.items():
        if name != "mean_value_error":
            setattr(row, name, finite(value))
    return Record(row, {"mean_value_error": found["mean_value_error"]})
