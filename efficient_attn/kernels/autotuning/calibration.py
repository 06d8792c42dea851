"""Forms timed against each other, in turns, for at most `LIMIT_S`: the best time of each at every point."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread

import torch

from .candidates import Candidates, TimingTable, Tunable, TuningPoint

LIMIT_S = 0.9  # of one contest; there are three, and a first use of all of them takes no more than three seconds
ROUNDS = 5
ELIMINATION_RATIO = 3.0  # times the fastest: a form that is as slow as that on its second call has lost
MIN_SAMPLE_S = 2e-4  # a form is called again until a turn takes as long


def calibrate(tunable: Tunable, threads: int) -> TimingTable:
    """Time a contest's forms at its points. Points that the time does not suffice for are left out, the last first.

    In a thread of its own: whatever modes the caller is in, autocast, transforms, devices, do not reach there.
    """
    timings: list[tuple[TuningPoint, dict[str, float]]] = []
    errors: list[BaseException] = []
    start = time.perf_counter()

    def time_points() -> None:
        try:
            torch.set_num_threads(threads)
            with torch.no_grad():
                for point in tunable.points:
                    if time.perf_counter() - start > LIMIT_S:
                        break
                    timings.append((point, _time_candidates(tunable.make_candidates(point))))
        except Exception as error:  # of a thread it would be printed and lost
            errors.append(error)

    thread = Thread(target=time_points, name="efficient-attn-calibration")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return TimingTable(tuple(timings), "measured now", time.perf_counter() - start)


def _time_candidates(candidates: Candidates) -> dict[str, float]:
    """The best seconds of each call, of several turns. What is far behind at first takes no further part."""
    first_times = {}
    for name, call in candidates.items():
        call()
        first_times[name] = _time(call, 1)
    finalists = {
        name: call
        for name, call in candidates.items()
        if first_times[name] <= ELIMINATION_RATIO * min(first_times.values())
    }
    counts = {name: max(1, int(MIN_SAMPLE_S / max(first_times[name], 1e-9))) for name in finalists}
    rounds = [{name: _time(call, counts[name]) for name, call in finalists.items()} for _ in range(ROUNDS)]
    return first_times | {name: min(times[name] for times in rounds) for name in finalists}


def _time(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count
