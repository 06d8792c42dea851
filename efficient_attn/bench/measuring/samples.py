"""What is timed: samples of calls on changing inputs, with one timed call verified."""

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
from ...instruments.global_state import GlobalStateChanged
from ...instruments.timing import TimedCall
from ..case_config import MAX_DECODE_STEPS
from .inputs import MAX_INPUT_SETS, ChangingInputs, make_inputs
from .output_comparison import InvalidResult, check_call, check_gradients, check_step
from .verification import as_results, check_plain, verify_case
from .workload import Workload

FLUSH_BYTES = 512 * 2**20  # bytes written to evict everything else from the caches
WARMUP_STEPS = 2  # decode steps after a new state that are not timed, because the caches are full of what created it
MIN_STEPS = 16  # least number of decode steps in a sample
BACKGROUND_WORK_S = 0.002  # after a verified sample: what a call delegated has finished by then, or at least started
GRAPH_INPUT_SETS = 3  # captured graphs read where they were captured: so many sets of inputs


def make_timed(workload: Workload, *, seed: int) -> TimedCall:
    """What a workload's mode times, under the conditions of its group. seed: of everything random."""
    place = workload.case.group.config
    passes = TimedSteps(workload, seed) if place.mode == "decode" else TimedCalls(workload, seed)
    limits = {"max_calls": MAX_DECODE_STEPS - WARMUP_STEPS, "min_calls": MIN_STEPS} if place.mode == "decode" else {}
    subject = TimedCall(passes.run, passes.reset, passes.verify, passes.release, **limits)
    return subject if place.cache == "warm" else flush_caches(subject, place.device)


def verify_workload(workload: Workload, steps: TimedSteps | None = None) -> tuple[float, int]:
    """The error of a first result, and the length at which it was verified. Raises `InvalidResult`."""
    if workload.case.group.config.mode != "decode":
        return verify_case(workload)
    steps = steps or TimedSteps(workload, workload.case.group.sampling.seed)
    steps.reset(1)
    steps.run(1)
    return steps.verify(), workload.shape.m


class TimedCalls:
    """Consecutive calls, each on its own inputs; the result of a randomly chosen one is kept."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload, self.random = workload, random.Random(seed)
        graphed = workload.case.group.config.cuda_graph
        sets = GRAPH_INPUT_SETS if graphed else MAX_INPUT_SETS
        self.feed = make_inputs(workload.case, workload.attn, workload.shape, workload.sample, seed=seed, sets=sets)
        self.graphs = self._capture() if graphed else {}
        self.kept: Any = None
        self.last: Any = None
        self.watched, self.judged = 0, 0

    def reset(self, calls: int) -> None:
        """New inputs for so many calls; one of them, drawn, is verified later."""
        self.release()
        self.samples = self.feed.change(calls)
        self.calls = [self.graphs.get(s.q.data_ptr()) or partial(self.workload.make_call, s) for s in self.samples]
        # the next launch of a graph would overwrite the last result
        self.watched = calls - 1 - self.random.randrange(len(self.calls) if self.graphs else calls)

    def _capture(self) -> dict[int, Callable[[], Any]]:
        """A captured graph for each set of inputs, by the address of its queries."""
        samples = self.feed.change(GRAPH_INPUT_SETS)
        return {s.q.data_ptr(): replay(partial(self.workload.make_call, s)) for s in samples}

    def run(self, calls: int) -> None:
        """Make so many calls, and keep the result of the drawn one."""
        made, count, watched = self.calls, len(self.calls), self.watched
        for number in range(calls - 1):
            if number == watched:
                self.kept = made[number % count]()
            else:
                made[number % count]()
        self.last = made[(calls - 1) % count]()

    def verify(self) -> None:
        """Verify the kept result of a timed call."""
        last = as_results(self.last)[0]
        check_finished(last.detach())
        check_inputs(self.feed)
        sample = self.samples[self.watched % len(self.samples)]
        results = as_results(self.last if self.kept is None else self.kept)
        check_plain(self.workload, results, self.feed.find_owner, None if self.kept is None else last)
        check_call(self.workload, sample, results)
        if len(results) > 1 and not self.judged:
            check_gradients(self.workload, sample, results)
        self.judged += 1
        self.release()

    def release(self) -> None:
        """Release the results of the last sample."""
        self.kept = self.last = None


class TimedSteps:
    """Consecutive single steps after a context, as in generation."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload, self.random = workload, random.Random(seed)
        case, attn, s = workload.case, workload.attn, workload.shape
        self.context = make_inputs(case, attn, s, workload.sample, seed=seed, sets=1)
        self.tokens = make_inputs(case, attn, replace(s, n=1, m=1), None, seed=seed)
        self.kept: Tensor | None = None
        self.last: Tensor | None = None
        self.watched = 0

    def reset(self, calls: int) -> None:
        """A new context, a new state, and the first steps after it."""
        self.release()
        self.state = None  # released first, so that two states never exist together
        (self.known,) = self.context.change(1)
        self.taken = self.tokens.change(calls + WARMUP_STEPS)
        self.state = self.workload.after_context(self.workload.shape.m + MAX_DECODE_STEPS, self.known)
        for token in self.taken[:WARMUP_STEPS]:
            self.step(token)
        self.watched = self.random.randrange(calls)

    def step(self, token: Sample) -> Tensor:
        """Decode one token."""
        q, k, v, inputs = token
        with torch.no_grad():
            out, self.state = self.workload.attn.step(q, k, v, self.state, **inputs)
        return out

    def next_token(self) -> Tensor:
        """One more step."""
        return self.step(self.taken[-1])

    def run(self, calls: int) -> None:
        """Make so many steps, and keep the result of the drawn one."""
        tokens, watched = self.taken[WARMUP_STEPS:], self.watched
        for number in range(calls - 1):
            if number == watched:
                self.kept = self.step(tokens[number % len(tokens)])
            else:
                self.step(tokens[number % len(tokens)])
        self.last = self.step(tokens[(calls - 1) % len(tokens)])

    def verify(self) -> float:
        """Compare the kept step with the reference row, and return the error if it is within tolerance."""
        assert self.last is not None
        check_finished(self.last)
        check_inputs(self.context)
        check_inputs(self.tokens)
        out, other = (self.last, None) if self.kept is None else (self.kept, self.last)
        check_plain(self.workload, (out,), lambda x: self.context.find_owner(x) or self.tokens.find_owner(x), other)
        error = check_step(self.workload, self.known, self.taken[: WARMUP_STEPS + self.watched + 1], out)
        self.release()
        return error

    def release(self) -> None:
        """Release the results of the last sample; the state is kept for further steps."""
        self.kept = self.last = None


def check_finished(last: Tensor) -> None:
    """Raise `InvalidResult` if the last output changes after its call has returned; this is checked first."""
    if type(last) is not Tensor or not last.numel():
        return  # the former is refused elsewhere
    rows = last[:, :, -1].clone()
    sleep(BACKGROUND_WORK_S)
    if not torch.equal(rows.nan_to_num(), last[:, :, -1].nan_to_num()):
        raise InvalidResult("the output still changed after the call had returned")


def check_inputs(inputs: ChangingInputs) -> None:
    """Raise `GlobalStateChanged` if the contents of an input were modified, whatever its version counter says."""
    if name := inputs.find_modified():
        raise GlobalStateChanged(f"it wrote into its input {name}")


def flush_caches(timed: TimedCall, device: str) -> TimedCall:
    """The same with its data evicted from the caches before every call, which is then timed singly."""
    # several times the size of last-level caches; those of large GPUs have 50 MiB
    other = torch.zeros(FLUSH_BYTES // 4, device=device)

    def reset(calls: int) -> None:
        timed.reset(calls)
        other.add_(1)

    return TimedCall(timed.run, reset, timed.verify, timed.release, max_calls=1)


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
