"""An operation with several implementations, of which shape and machine determine the fastest, and their timing."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import torch

LIMIT_S = 0.9  # of one selection, of which a run makes six
ROUNDS = 5
ELIMINATION_RATIO = 3.0  # times the fastest: a candidate this slow in its second call is dropped
GRADIENTS = " gradients"  # suffix of kinds of calls that autograd follows
MIN_SAMPLE_S = 2e-4  # a candidate is repeated until a sample takes this long


class TuningPoint(NamedTuple):
    """Where candidates are timed: the kind of call, such as a dtype, and its sizes."""

    kind: str
    sizes: tuple[int, ...]


Candidates = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Tunable:
    """An operation and its candidates. implementations: names of the candidates; compiled code uses the first. points:
    where calibration times all candidates. make_candidates: the calls to time at a point; a candidate that does not
    support it is missing. rule: the candidate without timings, from processor features. is_available: whether this
    machine has a candidate. version: increased when older timings no longer apply."""

    name: str
    implementations: tuple[str, ...]
    points: tuple[TuningPoint, ...]
    make_candidates: Callable[[TuningPoint], Candidates]
    rule: Callable[[TuningPoint], str]
    is_available: Callable[[str], bool] = lambda name: True
    version: int = 1


@dataclass(frozen=True)
class TimingTable:
    """Seconds of each candidate at the points of an operation. source: where they come from, or why there are none.
    seconds: of timing. cached: whether they are stored in a file."""

    timings: tuple[tuple[TuningPoint, Mapping[str, float]], ...] = ()
    source: str = ""
    seconds: float = 0.0
    cached: bool = False

    @classmethod
    def from_json(cls, contents: Mapping[str, Any], source: str, *, cached: bool = False) -> Self:
        """The table that `as_json` describes."""
        timings = tuple((TuningPoint(kind, tuple(sizes)), dict(times)) for kind, sizes, times in contents["timings"])
        return cls(timings, source, contents["seconds"], cached)

    def as_json(self) -> dict[str, Any]:
        """The seconds and timings."""
        timings = [[point.kind, list(point.sizes), dict(times)] for point, times in self.timings]
        return {"seconds": self.seconds, "timings": timings}


def format_kind(dtype: torch.dtype, *, trains: bool) -> str:
    """The kind of a call in a dtype, whose gradients are required or not."""
    return str(dtype).removeprefix("torch.") + GRADIENTS * trains


def make_calls(
    point: TuningPoint, sizes: Iterable[Sequence[int]], computations: Mapping[str, Callable[..., torch.Tensor]]
) -> Candidates:
    """Candidates that compute with tensors of these sizes, in the dtype of a kind of `format_kind`, and the gradients
    of them all if it has them."""
    trains, dtype = point.kind.endswith(GRADIENTS), getattr(torch, point.kind.removesuffix(GRADIENTS))
    inputs = [torch.ones(*size, dtype=dtype, requires_grad=trains) for size in sizes]

    def call(compute: Callable[..., torch.Tensor]) -> None:
        with torch.set_grad_enabled(trains):
            out = compute(*inputs)
            if trains:
                torch.autograd.grad(out, inputs, out)

    return {name: partial(call, compute) for name, compute in computations.items()}


def calibrate(tunable: Tunable, threads: int) -> TimingTable:
    """Time a selection's candidates at its points. Points for which time does not suffice are left out, the last first.
    In a separate thread, which the caller's modes (autocast, transforms, devices) do not affect."""
    timings: list[tuple[TuningPoint, dict[str, float]]] = []
    start = time.perf_counter()

    def time_points() -> None:
        torch.set_num_threads(threads)
        with torch.no_grad():
            for point in tunable.points:
                if time.perf_counter() - start > LIMIT_S:
                    break
                timings.append((point, _time_candidates(tunable.make_candidates(point))))

    with ThreadPoolExecutor(1, thread_name_prefix="efficient-attn-calibration") as executor:
        executor.submit(time_points).result()
    return TimingTable(tuple(timings), "measured now", time.perf_counter() - start)


def _time_candidates(candidates: Candidates) -> dict[str, float]:
    """The best seconds of each call, over several samples. Slow candidates are dropped after the first."""
    first_times = {}
    for name, call in candidates.items():
        call()
        first_times[name] = _time(call, 1)
    limit = ELIMINATION_RATIO * min(first_times.values())
    finalists = {name: call for name, call in candidates.items() if first_times[name] <= limit}
    counts = {name: max(1, int(MIN_SAMPLE_S / max(first_times[name], 1e-9))) for name in finalists}
    rounds = [{name: _time(call, counts[name]) for name, call in finalists.items()} for _ in range(ROUNDS)]
    return first_times | {name: min(times[name] for times in rounds) for name in finalists}


def _time(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count
