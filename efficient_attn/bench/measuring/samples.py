"""What is timed: passes of calls on inputs that change, and a look at one call of those that were timed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import sleep
from typing import Any

import torch
from torch import Tensor

from ...contract.shapes import Sample
from ...errors import UnsupportedError
from ...instruments.global_state import Meddled
from ...instruments.timing import Timed
from ..config import RESERVE
from .inputs import SETS, Feed, feed
from .output_comparison import Invalid, check_call, check_gradients, check_step
from .verification import as_results, check_plain, gate
from .workload import Workload

FLUSH = 512 * 2**20  # bytes written to drive everything else out of the caches
SETTLING = 2  # decode steps after a new state that are not timed: they find the caches full of what made it
LEAST_STEPS = 16  # decode steps a pass at least
SETTLE_S = 0.002  # after a pass that is looked at: what a call left to others to do is done by then, or begun
GRAPHS = 3  # captured graphs read where they were captured: so many sets of inputs


def make_subject(workload: Workload, *, seed: int) -> Timed:
    """What a workload's mode times, under the conditions that its cell asks for. seed: of all that is drawn for it."""
    place = workload.case.cell.place
    passes = Steps(workload, seed) if place.mode == "decode" else Calls(workload, seed)
    limits = {"limit": RESERVE - SETTLING, "least": LEAST_STEPS} if place.mode == "decode" else {}
    subject = Timed(passes.run, passes.reset, passes.judge, passes.forget, **limits)
    return subject if place.cache == "warm" else chill(subject, place.device)


def prove(workload: Workload, steps: Steps | None = None) -> tuple[float, int]:
    """The error of a first result, and the length at which it was compared with its oracle's; else `Invalid`."""
    if workload.case.cell.place.mode != "decode":
        return gate(workload)
    steps = steps or Steps(workload, workload.case.cell.effort.seed)
    steps.reset(1)
    steps.run(1)
    return steps.judge(), workload.shape.m


class Calls:
    """Calls one after the other, each on inputs of its own; the result of one that is drawn is kept."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload, self.random = workload, random.Random(seed)
        graphed = workload.case.cell.place.cuda_graph
        sets = GRAPHS if graphed else SETS
        self.feed = feed(workload.case, workload.attn, workload.shape, workload.sample, seed=seed, sets=sets)
        self.graphs = self._capture() if graphed else {}
        self.kept: Any = None
        self.last: Any = None
        self.watched, self.judged = 0, 0

    def reset(self, calls: int) -> None:
        self.forget()
        self.samples = self.feed.change(calls)
        self.calls = [self.graphs.get(s.q.data_ptr()) or partial(self.workload.make_call, s) for s in self.samples]
        # a graph's next launch would overwrite what its last one gave
        self.watched = calls - 1 - self.random.randrange(len(self.calls) if self.graphs else calls)

    def _capture(self) -> dict[int, Callable[[], Any]]:
        """A captured graph for each set of inputs, by where its queries lie."""
        samples = self.feed.change(GRAPHS)
        return {s.q.data_ptr(): replay(partial(self.workload.make_call, s)) for s in samples}

    def run(self, calls: int) -> None:
        made, count, watched = self.calls, len(self.calls), self.watched
        for number in range(calls - 1):
            if number == watched:
                self.kept = made[number % count]()
            else:
                made[number % count]()
        self.last = made[(calls - 1) % count]()

    def judge(self) -> None:
        """Hold the kept result, of a call that was timed, to what every result is held to."""
        last = as_results(self.last)[0]
        check_ended(last.detach())
        check_inputs(self.feed)
        sample = self.samples[self.watched % len(self.samples)]
        results = as_results(self.last if self.kept is None else self.kept)
        check_plain(self.workload, results, self.feed.owns, None if self.kept is None else last)
        check_call(self.workload, sample, results)
        if len(results) > 1 and not self.judged:
            check_gradients(self.workload, sample, results)
        self.judged += 1
        self.forget()

    def forget(self) -> None:
        """Let go of what the last pass gave."""
        self.kept = self.last = None


class Steps:
    """Single steps after a context that the state has absorbed, one after the other as in generation."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload, self.random = workload, random.Random(seed)
        case, attn, s = workload.case, workload.attn, workload.shape
        self.context = feed(case, attn, s, workload.sample, seed=seed, sets=1)
        self.tokens = feed(case, attn, replace(s, n=1, m=1), None, seed=seed)
        self.kept: Tensor | None = None
        self.last: Tensor | None = None
        self.watched = 0

    def reset(self, calls: int) -> None:
        """A new context, a new state, and the first steps after it."""
        self.forget()
        self.state = None  # released first, so that two states never exist at once
        (self.known,) = self.context.change(1)
        self.taken = self.tokens.change(calls + SETTLING)
        self.state = self.workload.after_context(self.workload.shape.m + RESERVE, self.known)
        for token in self.taken[:SETTLING]:
            self.step(token)
        self.watched = self.random.randrange(calls)

    def step(self, token: Sample) -> Tensor:
        q, k, v, inputs = token
        with torch.no_grad():
            out, self.state = self.workload.attn.step(q, k, v, self.state, **inputs)
        return out

    def take_one(self) -> Tensor:
        """One more step."""
        return self.step(self.taken[-1])

    def run(self, calls: int) -> None:
        taken, watched = self.taken[SETTLING:], self.watched
        for number in range(calls - 1):
            if number == watched:
                self.kept = self.step(taken[number % len(taken)])
            else:
                self.step(taken[number % len(taken)])
        self.last = self.step(taken[(calls - 1) % len(taken)])

    def judge(self) -> float:
        """Hold the kept step to the row that the oracle gives for it: the error, if it is none too large."""
        assert self.last is not None
        check_ended(self.last)
        check_inputs(self.context)
        check_inputs(self.tokens)
        out, other = (self.last, None) if self.kept is None else (self.kept, self.last)
        check_plain(self.workload, (out,), lambda x: self.context.owns(x) or self.tokens.owns(x), other)
        error = check_step(self.workload, self.known, self.taken[: SETTLING + self.watched + 1], out)
        self.forget()
        return error

    def forget(self) -> None:
        """Let go of what the last pass gave; the state stays for steps that follow."""
        self.kept = self.last = None


def check_ended(last: Tensor) -> None:
    """`Invalid` where the last output goes on changing after its call has returned: the first thing to look at."""
    if type(last) is not Tensor or not last.numel():
        return  # the former is refused elsewhere
    rows = last[:, :, -1].clone()
    sleep(SETTLE_S)
    if not torch.equal(rows.nan_to_num(), last[:, :, -1].nan_to_num()):
        raise Invalid("the output still changed after the call had returned")


def check_inputs(inputs: Feed) -> None:
    """`Meddled` where the contents of an input are not what they were made, whatever its version counter says."""
    if name := inputs.touched():
        raise Meddled(f"it wrote into its input {name}")


def chill(subject: Timed, device: str) -> Timed:
    """The same with its data driven out of the caches before every call, which is then timed alone."""
    # several times what last-level caches hold today; the larger ones of GPUs have 50 MiB
    other = torch.zeros(FLUSH // 4, device=device)

    def reset(calls: int) -> None:
        subject.reset(calls)
        other.add_(1)

    return Timed(subject.run, reset, subject.judge, subject.forget, limit=1)


def replay(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a captured CUDA graph; its result is in the same memory each time."""
    if not torch.cuda.is_available():
        raise UnsupportedError("CUDA graphs need a CUDA device")
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):  # capture must not be the first time
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()

    def again() -> Any:
        graph.replay()
        return out

    return again
