"""Timing: all mechanisms of a cell in interleaved, shuffled passes, so that a slow moment hits them all alike.

A *pass* repeats a call for some milliseconds; a *round* holds the passes of all mechanisms in a shuffled order and
gives one value each, their median; a *sitting* is the rounds that one process measures.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from .collection import no_collection

PASSES = 3  # passes of a mechanism in a round, at least, unless the budget does not allow it
MOST_PASSES = 15
BLOCK_S = 0.002  # a pass repeats a fast call until it takes this long, far above the timer's own cost
ROUND_S = 0.25  # rounds of fast cells get more passes until they take this long: shorter ones see one moment only
WARM_S = 1.0  # a call that takes this long needs no other one to warm it up
WAITED = 1.05  # wall over processor time, from which on something else has used this processor
RETRIES = 2  # passes that are repeated in a round for each mechanism, at most


@dataclass
class Subject:
    """Something to time. run(count) makes least <= count <= limit calls; reset, untimed, goes before each pass."""

    run: Callable[[int], None]
    reset: Callable[[], None] = lambda: None
    limit: int = 1_000_000
    least: int = 1


@dataclass(frozen=True)
class Pace:
    """How fast a subject is: calls a pass, the seconds that these take, and those that setting them up takes."""

    calls: int
    block_s: float
    reset_s: float = 0.0

    @property
    def pass_s(self) -> float:
        return self.block_s + self.reset_s

    @property
    def warm_up_s(self) -> float:
        """What making it warm costs in each process."""
        return self.pass_s if self.block_s < WARM_S else 0.0


@dataclass(frozen=True)
class Turn:
    """A subject's part in a round."""

    pace: Pace
    passes: int

    def affordable(self, left_s: float) -> int:
        """Rounds of one more sitting that fit into so many seconds."""
        return max(0, int((left_s - self.pace.warm_up_s) / (self.passes * self.pace.pass_s)))


@dataclass
class Round:
    """Milliseconds a call by subject, one number a pass; how many passes waited for the processor; what failed."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)


class TooSlow(Exception):
    """One call alone takes longer than the budget."""


def first_call(subject: Subject, *, budget_s: float, device: str) -> float:
    """Seconds of a first call. Raises `TooSlow` when it does not fit the budget."""
    seconds = _timed(subject, 1, device)[0]
    if seconds > budget_s:
        raise TooSlow(f"one call takes {seconds:.3g} s, the budget is {budget_s:.3g} s")
    return seconds


def calibrate(subject: Subject, *, budget_s: float, device: str) -> Pace:
    """Find out how many calls make a pass. The subject is warm already."""
    begun = time.perf_counter()
    once = _timed(subject, 1, device)[0]
    reset = time.perf_counter() - begun - once
    if once < budget_s / 4 and once < WARM_S:
        once = min(once, _timed(subject, 1, device)[0])
    once = max(once, 1e-7)  # a coarse clock may see nothing at all
    calls = max(subject.least, min(math.ceil(BLOCK_S / once), subject.limit))
    return Pace(calls, once * calls, reset)


def turns(paces: Mapping[str, Pace], *, rounds: int, processes: int, budget_s: float) -> dict[str, Turn]:
    """Every subject's part in a round, so that rounds are long enough and each one's own budget holds."""
    together = sum(pace.pass_s for pace in paces.values())
    wanted = min(MOST_PASSES, max(PASSES, math.ceil(ROUND_S / together))) if together else PASSES
    found = {}
    for name, pace in paces.items():
        fitting = int((budget_s - processes * pace.warm_up_s) / pace.pass_s / rounds)
        found[name] = Turn(pace, max(1, min(wanted, fitting)))
    return found


def sitting(
    subjects: Mapping[str, Subject],
    takes: Mapping[str, Turn],
    rounds: Mapping[str, int],
    *,
    seed: int,
    device: str,
    alone: bool = False,
    at: Callable[[str], None] = lambda name: None,
    after: Callable[[], None] = lambda: None,
) -> Iterator[Round]:
    """Warm every subject up and take the rounds, each in an order shuffled anew from the seed.

    rounds: how many each one takes part in. alone: one thread of a CPU, where wall time beyond processor time means
    that something else ran; such passes are kept, counted and repeated. at: told whose turn it is. after: called
    after every pass. A subject that raises, or after which ``after`` does, drops out and the others go on.
    """
    order, out = random.Random(seed), set()
    with no_collection():
        failed = _warm_up(subjects, takes, device, at)
        for number in range(max(rounds.values(), default=0)):
            result = Round(failed=failed)
            out |= failed.keys()
            names = [n for n, count in rounds.items() if number < count for _ in range(takes[n].passes)]
            order.shuffle(names)
            for name in names:
                if name not in out:
                    at(name)
                    _one_pass(name, subjects[name], takes[name], result, device, alone, after)
                    out |= result.failed.keys()
            failed = {}
            yield result


def _warm_up(
    subjects: Mapping[str, Subject], takes: Mapping[str, Turn], device: str, at: Callable[[str], None]
) -> dict[str, Exception]:
    failed: dict[str, Exception] = {}
    for name, subject in subjects.items():
        if takes[name].pace.warm_up_s:
            at(name)
            try:
                _timed(subject, takes[name].pace.calls, device)
            except Exception as error:
                failed[name] = error
    return failed


def _one_pass(
    name: str, subject: Subject, turn: Turn, result: Round, device: str, alone: bool, after: Callable[[], None]
) -> None:
    """One pass, and another one for as long as the processor was taken away meanwhile and repeats are left."""
    taken = result.samples.setdefault(name, [])
    while True:
        try:
            wall, cpu = _timed(subject, turn.pace.calls, device)
            after()
        except Exception as error:
            result.failed[name] = error
            return
        taken.append(wall * 1e3)
        if not alone or wall <= WAITED * cpu:
            return
        result.waited[name] = result.waited.get(name, 0) + 1
        if result.waited[name] > RETRIES:
            return


def _timed(subject: Subject, calls: int, device: str) -> tuple[float, float]:
    """Seconds a call, by the clock and of the processor."""
    subject.reset()
    synchronize(device)
    cpu, start = time.process_time(), time.perf_counter()
    subject.run(calls)
    synchronize(device)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    return wall / calls, cpu / calls


def synchronize(device: str) -> None:
    """Wait until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()
