"""Timing: all mechanisms of a cell in interleaved, shuffled rounds, so that a slow moment hits them all alike."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from ..results.stats import Estimate, typical

PASSES = 3  # shuffled passes a round; a round's value is their median
BLOCK_S = 0.002  # a pass repeats a fast call until it takes this long, far above the timer's own cost


@dataclass
class Subject:
    """Something to time. run(count) makes least <= count <= limit calls; reset, untimed, goes before each pass."""

    run: Callable[[int], None]
    reset: Callable[[], None] = lambda: None
    limit: int = 1_000_000
    least: int = 1


@dataclass
class Timing:
    """What timing one subject came to: milliseconds a call, a list of passes for every round."""

    calls: int
    passes: int
    rounds: int
    stop_reason: str
    samples: list[list[float]] = field(default_factory=list)

    @property
    def medians(self) -> list[float]:
        """One value a round."""
        return [sorted(passes)[len(passes) // 2] for passes in self.samples]

    @property
    def latency(self) -> Estimate:
        """The median over rounds with a t-interval, milliseconds a call."""
        medians = self.medians
        value, low, high = sorted(medians)[len(medians) // 2], *typical(medians)[1:]
        return Estimate(value, low and min(low, value), high and max(high, value))


class TooSlow(Exception):
    """One call alone takes longer than the budget."""


def calibrate(subject: Subject, *, rounds: int, budget_s: float, device: str) -> Timing:
    """Warm up and decide how many calls, passes and rounds fit the budget; fewer are said so in ``stop_reason``.

    Raises `TooSlow` when a single call does not fit.
    """
    first = _timed(subject, 1, device)
    if first > budget_s:
        raise TooSlow(f"one call takes {first:.3g} s, the budget is {budget_s:.3g} s")
    once = min(_timed(subject, 1, device) for _ in range(2)) if first < budget_s / 4 else first
    once = max(once, 1e-7)  # a coarse clock may see nothing at all
    calls = max(subject.least, min(math.ceil(BLOCK_S / once), subject.limit))
    affordable = budget_s / (once * calls)  # passes in all
    if affordable >= rounds:
        passes = int(min(PASSES, affordable // rounds))
        return Timing(calls, passes, rounds, "rounds" if passes == PASSES else "budget")
    return Timing(calls, 1, max(1, int(affordable)), "budget")


def interleave(
    subjects: Mapping[str, Subject], timings: Mapping[str, Timing], *, seed: int, device: str
) -> dict[str, Exception]:
    """Fill the timings' samples, round by round, in an order that is shuffled anew each round from the seed.

    A subject that raises drops out and the others go on; returns the errors of those that did.
    """
    order = random.Random(seed)
    failed: dict[str, Exception] = {}
    with _quiet():
        for number in range(max((t.rounds for t in timings.values()), default=0)):
            turns = [name for name, t in timings.items() if number < t.rounds for _ in range(t.passes)]
            order.shuffle(turns)
            taken: dict[str, list[float]] = {name: [] for name in turns}
            for name in turns:
                if name in failed:
                    continue
                try:
                    taken[name].append(_timed(subjects[name], timings[name].calls, device) * 1e3)
                except Exception as error:
                    failed[name] = error
            for name in taken.keys() - failed.keys():
                timings[name].samples.append(taken[name])
    return failed


def _timed(subject: Subject, calls: int, device: str) -> float:
    """Seconds a call."""
    subject.reset()
    synchronize(device)
    start = time.perf_counter()
    subject.run(calls)
    synchronize(device)
    return (time.perf_counter() - start) / calls


def synchronize(device: str) -> None:
    """Wait until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


@contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection in the middle of a measurement."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
