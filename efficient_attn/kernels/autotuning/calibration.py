"""Time candidates interleaved, for at most `LIMIT_S`: the best time of each at every point."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from .candidates import Candidates, TimingTable, Tunable, TuningPoint

LIMIT_S = 0.9  # of one selection; there are three, which take at most three seconds together
ROUNDS = 5
ELIMINATION_RATIO = 3.0  # times the fastest: a candidate this slow in its second call is dropped
MIN_SAMPLE_S = 2e-4  # a candidate is repeated until a sample takes this long


def calibrate(tunable: Tunable, threads: int) -> TimingTable:
    """Time a selection's candidates at its points. Points for which time does not suffice are left out, the last first.

    In a separate thread, which the caller's modes (autocast, transforms, devices) do not affect.
    """
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
