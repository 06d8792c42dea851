"""Timing: interleaved samples of all mechanisms of a group in random order, so that a slow moment affects all of them.

A sample repeats a call for some milliseconds. A round has samples of all mechanisms in random order, and gives one
value for each, their median. A process run is the rounds that one process measures.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter, process_time  # bound here, before any plug-in could replace them
from typing import Generic, NamedTuple, TypeVar

import torch

from ..garbage import garbage_collection_disabled
from .global_state import GlobalStateChanged

SAMPLES_PER_ROUND = 3  # least number of samples of a mechanism in a round, unless the budget does not allow it
MAX_SAMPLES_PER_ROUND = 15
MIN_SAMPLE_S = 0.002  # a sample repeats a fast call until it takes this long, far longer than reading the clock
MIN_ROUND_S = 0.25  # rounds of fast groups get more samples until they take this long
SLOW_CALL_S = 0.1  # a call that takes this long is timed once to plan its samples
SELF_WARMING_S = 1.0  # a call that takes this long needs no separate warm-up
DISTURBED_RATIO = 1.05  # wall time over processor time from which another program has used this processor
MAX_RETRIES = 2  # largest number of repeated samples of a mechanism in a round
MAX_PARALLEL_REPEATS = 3  # of a sample in which more than the one requested thread seems to have worked
PARALLEL_RATIO = 1.25  # processor time over wall time above which more than one thread has worked, provided that
MIN_PARALLEL_S = 0.001  # the difference over a sample exceeds so many seconds

Name = TypeVar("Name", bound=Hashable)  # of a subject


@dataclass
class TimedCall:
    """A subject of timing. run(count): makes min_calls <= count <= max_calls calls. reset(count): called before each
    sample, untimed. settle, verify: called one after the other after one random sample of each round, untimed; they
    raise an exception if work goes on after the calls, and for a wrong result. release: called after the other samples;
    releases their results.
    """

    run: Callable[[int], None]
    reset: Callable[[int], None] = lambda count: None
    settle: Callable[[], object] = lambda: None
    verify: Callable[[], object] = lambda: None
    release: Callable[[], None] = lambda: None
    max_calls: int = 1_000_000
    min_calls: int = 1


@dataclass(frozen=True)
class SampleCost:
    """The cost of a sample of a subject: calls, the seconds that they take, and the seconds of `TimedCall.reset`."""

    calls: int
    calls_s: float
    reset_s: float = 0.0

    @property
    def sample_s(self) -> float:
        """Seconds of a sample with its reset."""
        return self.calls_s + self.reset_s

    @property
    def warm_up_s(self) -> float:
        """Seconds of warming it up in each process."""
        return self.sample_s if self.calls_s < SELF_WARMING_S else 0.0


@dataclass(frozen=True)
class RoundPlan:
    """A subject's part in a round."""

    cost: SampleCost
    samples: int

    def count_affordable_rounds(self, remaining_s: float) -> int:
        """The number of rounds in another process run that fit into so many seconds."""
        return max(0, int((remaining_s - self.cost.warm_up_s) / (self.samples * self.cost.sample_s)))


@dataclass
class RoundSamples(Generic[Name]):
    """Milliseconds a call by subject, one number for each sample; the number of disturbed samples; exceptions.

    gpu: milliseconds a call between two events on the GPU, before and after the calls of a sample; empty elsewhere.
    """

    samples: dict[Name, list[float]] = field(default_factory=dict)
    gpu: dict[Name, list[float]] = field(default_factory=dict)
    disturbed: dict[Name, int] = field(default_factory=dict)
    errors: dict[Name, Exception] = field(default_factory=dict)


class TooSlow(Exception):
    """A single call takes longer than the budget."""


def time_first_call(subject: TimedCall, *, budget_s: float, device: str) -> float:
    """Seconds of a first call. Raises `TooSlow` when it does not fit the budget."""
    seconds = _time_sample(subject, 1, device).wall
    if seconds > budget_s:
        raise TooSlow(f"one call takes {seconds:.3g} s, the budget is {budget_s:.3g} s")
    return seconds


def calibrate(subject: TimedCall, *, budget_s: float, device: str) -> SampleCost:
    """Determine the number of calls in a sample of a warm subject, and its cost."""
    start = perf_counter()
    call_s = _time_sample(subject, 1, device).wall
    reset_s = perf_counter() - start - call_s
    if call_s < budget_s / 4 and call_s < SLOW_CALL_S:
        call_s = min(call_s, _time_sample(subject, 1, device).wall)
    call_s = max(call_s, 1e-7)  # a coarse clock may measure zero
    calls = max(subject.min_calls, min(math.ceil(MIN_SAMPLE_S / call_s), subject.max_calls))
    return SampleCost(calls, call_s * calls, reset_s)


def plan_samples(
    costs: Mapping[str, SampleCost], *, rounds: int, processes: int, budget_s: float
) -> dict[str, RoundPlan]:
    """The number of samples of each subject in a round, so that rounds are long enough within each budget."""
    round_s = sum(cost.sample_s for cost in costs.values())
    target = math.ceil(MIN_ROUND_S / round_s) if round_s else SAMPLES_PER_ROUND
    target = min(MAX_SAMPLES_PER_ROUND, max(SAMPLES_PER_ROUND, target))
    plans = {}
    for name, cost in costs.items():
        affordable = int((budget_s - processes * cost.warm_up_s) / cost.sample_s / rounds)
        plans[name] = RoundPlan(cost, max(1, min(target, affordable)))
    return plans


def run_rounds(
    subjects: Mapping[Name, TimedCall],
    plans: Mapping[Name, RoundPlan],
    rounds: Mapping[Name, int],
    *,
    seed: int,
    device: str,
    single_thread: bool = False,
    before_sample: Callable[[Name], None] = lambda name: None,
    after_clock: Callable[[Name], None] = lambda name: None,
    after_sample: Callable[[Name], None] = lambda name: None,
) -> Iterator[RoundSamples[Name]]:
    """Warm up every subject and measure the rounds, each in a new random order from the seed.

    rounds: the number in which each subject takes part. single_thread: whether one CPU thread is measured; wall time
    beyond its processor time then means that another program ran, and such samples are counted and repeated.
    before_sample, after_clock, after_sample: called with the name of the subject, before every sample and warm-up, when
    its clock has stopped, and after its verification. A subject that raises an exception, or for which ``after_sample``
    does, is dropped and the others continue.
    """
    order_rng, verify_rng, dropped = random.Random(seed), random.Random(seed + 1), set[Name]()
    sampler = _Sampler(subjects, plans, device, single_thread, before_sample, after_clock, after_sample)
    with garbage_collection_disabled():
        result = RoundSamples(errors=sampler.warm_up())
        for round_index in range(max(rounds.values(), default=0)):
            dropped |= result.errors.keys()
            samples = {name: plans[name].samples for name, count in rounds.items() if round_index < count}
            until_verify = {name: verify_rng.randrange(count) for name, count in samples.items()}
            names = [name for name, count in samples.items() for _ in range(count)]
            order_rng.shuffle(names)
            for name in names:
                if name not in dropped:
                    until_verify[name] -= 1
                    sampler.add_sample(result, name, verify=until_verify[name] == -1)
                    dropped |= result.errors.keys()
            yield result
            result = RoundSamples()


class _Sampler(NamedTuple, Generic[Name]):
    """How samples are taken: see `run_rounds`."""

    subjects: Mapping[Name, TimedCall]
    plans: Mapping[Name, RoundPlan]
    device: str
    single_thread: bool
    before_sample: Callable[[Name], None]
    after_clock: Callable[[Name], None]
    after_sample: Callable[[Name], None]

    def warm_up(self) -> dict[Name, Exception]:
        """Take a sample of each subject that needs it, without a result. Returns exceptions by subject."""
        errors: dict[Name, Exception] = {}
        for name, subject in self.subjects.items():
            if self.plans[name].cost.warm_up_s:
                self.before_sample(name)
                try:
                    _time_sample(subject, self.plans[name].cost.calls, self.device)
                    self.after_clock(name)
                    self.after_sample(name)
                except Exception as error:
                    errors[name] = error
                    self._end_failed_turn(name)
        return errors

    def add_sample(self, result: RoundSamples[Name], name: Name, *, verify: bool) -> None:
        """Take one sample, and repeat it up to `MAX_RETRIES` times in a round if it was disturbed.

        A sample in which several threads seem to have worked is discarded and repeated, because the operating system
        may account processor time late, and another mechanism's thread may still be running. If that also holds for
        `MAX_PARALLEL_REPEATS` repeats, it is an error.
        """
        self.before_sample(name)
        subject, calls, samples = self.subjects[name], self.plans[name].cost.calls, result.samples.setdefault(name, [])
        n_parallel = 0
        while True:
            try:
                elapsed = _time_sample(subject, calls, self.device)
                self.after_clock(name)
                if verify:
                    subject.settle()
                    self.after_sample(name)
                    subject.verify()
                    self.after_clock(name)
                    verify = False
                else:
                    subject.release()
                self.after_sample(name)
                if self.single_thread and _is_parallel(elapsed, calls):
                    if n_parallel == MAX_PARALLEL_REPEATS:
                        processors = f"{elapsed.cpu / elapsed.wall:.1f} processors"
                        raise GlobalStateChanged(f"{processors} worked at once for it, where one thread is requested")
                    n_parallel += 1
                    continue
            except Exception as error:
                result.errors[name] = error
                self._end_failed_turn(name)
                return
            samples.append(elapsed.wall * 1e3)
            if elapsed.gpu is not None:
                result.gpu.setdefault(name, []).append(elapsed.gpu * 1e3)
            if not self.single_thread or elapsed.wall <= DISTURBED_RATIO * elapsed.cpu:
                return
            result.disturbed[name] = result.disturbed.get(name, 0) + 1
            if result.disturbed[name] > MAX_RETRIES:
                return

    def _end_failed_turn(self, name: Name) -> None:
        """Undo what a subject changed before it failed, so that it is not attributed to the next one."""
        with suppress(GlobalStateChanged):  # it has failed already
            self.after_sample(name)


class Elapsed(NamedTuple):
    """Seconds a call, by the clock and of the processor; on a GPU also between two of its events."""

    wall: float
    cpu: float
    gpu: float | None = None


def _is_parallel(elapsed: Elapsed, calls: int) -> bool:
    """Whether several threads worked at once in a sample, by its processor time."""
    return elapsed.cpu > PARALLEL_RATIO * elapsed.wall and (elapsed.cpu - elapsed.wall) * calls > MIN_PARALLEL_S


def _time_sample(subject: TimedCall, calls: int, device: str) -> Elapsed:
    subject.reset(calls)
    synchronize(device)
    first_event = _record_event(device)
    cpu, start = process_time(), perf_counter()
    subject.run(calls)
    last_event = _record_event(device)
    synchronize(device)
    wall, cpu = perf_counter() - start, process_time() - cpu
    gpu = first_event.elapsed_time(last_event) / 1e3 / calls if first_event and last_event else None
    return Elapsed(wall / calls, cpu / calls, gpu)


def _record_event(device: str) -> torch.cuda.Event | None:
    """Have the GPU note the time when it has finished what it was given so far."""
    if device != "cuda":
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def synchronize(device: str) -> None:
    """Wait until the device has finished."""
    if device == "cuda":
        torch.cuda.synchronize()
