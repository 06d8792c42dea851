"""Forms timed against each other, in turns, for at most `LIMIT_S`: the best time of each at every point."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread

import torch

from .contest import Calls, Contest, Point, Table

LIMIT_S = 0.9  # of one contest; there are three, and a first use of all of them takes no more than three seconds
TURNS = 5
FAR = 3.0  # times the fastest: a form that is as slow as that on its second call has lost
SHORTEST_S = 2e-4  # a form is called again until a turn takes as long


def calibrate(contest: Contest, threads: int) -> Table:
    """Time a contest's forms at its points. Points that the time does not suffice for are left out, the last first.

    In a thread of its own: whatever modes the caller is in, autocast, transforms, devices, do not reach there.
    """
    found: list[tuple[Point, dict[str, float]]] = []
    failed: list[BaseException] = []
    start = time.perf_counter()

    def work() -> None:
        try:
            torch.set_num_threads(threads)
            with torch.no_grad():
                for point in contest.points:
                    if time.perf_counter() - start > LIMIT_S:
                        break
                    found.append((point, _time_forms(contest.prepare(point))))
        except Exception as error:  # of a thread it would be printed and lost
            failed.append(error)

    thread = Thread(target=work, name="efficient-attn-calibration")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return Table(tuple(found), "measured now", time.perf_counter() - start)


def _time_forms(calls: Calls) -> dict[str, float]:
    """The best seconds of each call, of several turns. What is far behind at first takes no further part."""
    first = {}
    for form, call in calls.items():
        call()
        first[form] = _time(call, 1)
    close = {form: call for form, call in calls.items() if first[form] <= FAR * min(first.values())}
    counts = {form: max(1, int(SHORTEST_S / max(first[form], 1e-9))) for form in close}
    turns = [{form: _time(call, counts[form]) for form, call in close.items()} for _ in range(TURNS)]
    return first | {form: min(turn[form] for turn in turns) for form in close}


def _time(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count
