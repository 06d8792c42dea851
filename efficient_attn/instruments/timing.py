"""Timing: all mechanisms of a cell in interleaved, shuffled passes, so that a slow moment hits them all alike.

A *pass* repeats a call for some milliseconds; a *round* holds the passes of all mechanisms in a shuffled order and
gives one value each, their median; a *sitting* is the rounds that one process measures.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter, process_time  # bound here, before any plug-in could replace them
from typing import NamedTuple

import torch

from .garbage import no_collection
from .global_state import Meddled

PASSES = 3  # passes of a mechanism in a round, at least, unless the budget does not allow it
MOST_PASSES = 15
BLOCK_S = 0.002  # a pass repeats a fast call until it takes this long, far above the timer's own cost
ROUND_S = 0.25  # rounds of fast cells get more passes until they take this long: shorter ones see one moment only
WARM_S = 1.0  # a call that takes this long needs no other one to warm it up
WAITED = 1.05  # wall over processor time, from which on something else has used this processor
RETRIES = 2  # passes that are repeated in a round for each mechanism, at most
AT_ONCE = 1.25  # processor over wall time, from which on more than one thread has worked, if for
LEAST_S = 0.001  # so many seconds of the pass at least


@dataclass
class Timed:
    """Something to time. run(count) makes least <= count <= limit calls; reset(count), untimed, goes before each pass.

    judge, untimed too, goes after a pass of each round that is drawn: it raises where a call was not what it should be.
    forget goes after the others: nothing that a pass gave is held until the next one.
    """

    run: Callable[[int], None]
    reset: Callable[[int], None] = lambda count: None
    judge: Callable[[], object] = lambda: None
    forget: Callable[[], None] = lambda: None
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


def first_call(subject: Timed, *, budget_s: float, device: str) -> float:
    """Seconds of a first call. Raises `TooSlow` when it does not fit the budget."""
    seconds = _time(subject, 1, device).wall
    if seconds > budget_s:
        raise TooSlow(f"one call takes {seconds:.3g} s, the budget is {budget_s:.3g} s")
    return seconds


def calibrate(subject: Timed, *, budget_s: float, device: str) -> Pace:
    """Find out how many calls make a pass. The subject is warm already."""
    begun = perf_counter()
    once = _time(subject, 1, device).wall
    reset = perf_counter() - begun - once
    if once < budget_s / 4 and once < WARM_S:
        once = min(once, _time(subject, 1, device).wall)
    once = max(once, 1e-7)  # a coarse clock may see nothing at all
    calls = max(subject.least, min(math.ceil(BLOCK_S / once), subject.limit))
    return Pace(calls, once * calls, reset)


def share_turns(paces: Mapping[str, Pace], *, rounds: int, processes: int, budget_s: float) -> dict[str, Turn]:
    """Every subject's part in a round, so that rounds are long enough and each one's own budget holds."""
    together = sum(pace.pass_s for pace in paces.values())
    wanted = min(MOST_PASSES, max(PASSES, math.ceil(ROUND_S / together))) if together else PASSES
    found = {}
    for name, pace in paces.items():
        fitting = int((budget_s - processes * pace.warm_up_s) / pace.pass_s / rounds)
        found[name] = Turn(pace, max(1, min(wanted, fitting)))
    return found


def take_rounds(
    subjects: Mapping[str, Timed],
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
    order, drawn, out = random.Random(seed), random.Random(seed + 1), set()
    with no_collection():
        failed = _warm_up(subjects, takes, device, at)
        for number in range(max(rounds.values(), default=0)):
            result = Round(failed=failed)
            out |= failed.keys()
            names = [n for n, count in rounds.items() if number < count for _ in range(takes[n].passes)]
            order.shuffle(names)
            judged = {name: drawn.randrange(takes[name].passes) for name in sorted(set(names))}
            for name in names:
                if name not in out:
                    at(name)
                    judged[name] -= 1
                    _one_pass(name, subjects[name], takes[name], result, device, alone, after, judged[name] == -1)
                    out |= result.failed.keys()
            failed = {}
            yield result


def _warm_up(
    subjects: Mapping[str, Timed], takes: Mapping[str, Turn], device: str, at: Callable[[str], None]
) -> dict[str, Exception]:
    failed: dict[str, Exception] = {}
    for name, subject in subjects.items():
        if takes[name].pace.warm_up_s:
            at(name)
            try:
                _time(subject, takes[name].pace.calls, device)
            except Exception as error:
                failed[name] = error
    return failed


def _one_pass(
    name: str,
    subject: Timed,
    turn: Turn,
    result: Round,
    device: str,
    alone: bool,
    after: Callable[[], None],
    judged: bool,
) -> None:
    """One pass, and another one for as long as the processor was taken away meanwhile and repeats are left."""
    taken = result.samples.setdefault(name, [])
    while True:
        try:
            took = _time(subject, turn.pace.calls, device)
            if judged:
                subject.judge()
                judged = False
            else:
                subject.forget()
            after()
            if alone:
                _check_threads(took, turn.pace.calls)
        except Exception as error:
            result.failed[name] = error
            return
        taken.append(took.wall * 1e3)
        if not alone or took.wall <= WAITED * took.cpu:
            return
        result.waited[name] = result.waited.get(name, 0) + 1
        if result.waited[name] > RETRIES:
            return


class Took(NamedTuple):
    """Seconds a call, by the clock and of the processor."""

    wall: float
    cpu: float


def _check_threads(took: Took, calls: int) -> None:
    """`Meddled` where several threads worked at once and one was asked for."""
    if took.cpu > AT_ONCE * took.wall and (took.cpu - took.wall) * calls > LEAST_S:
        raise Meddled(f"{took.cpu / took.wall:.1f} processors worked at once for it, where one thread is asked for")


def _time(subject: Timed, calls: int, device: str) -> Took:
    subject.reset(calls)
    synchronize(device)
    cpu, start = process_time(), perf_counter()
    subject.run(calls)
    synchronize(device)
    wall, cpu = perf_counter() - start, process_time() - cpu
    return Took(wall / calls, cpu / calls)


def synchronize(device: str) -> None:
    """Wait until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()
