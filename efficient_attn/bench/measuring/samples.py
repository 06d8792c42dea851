"""The timed calls of each mode: samples on changing inputs, with one of their calls verified."""

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
from ...instruments.environment.gpu import read_l2_bytes
from ...instruments.global_state import GlobalStateChanged
from ...instruments.timing import TimedCall
from ..case_config import MAX_DECODE_STEPS, CaseConfig
from .inputs import MAX_INPUT_SETS, ChangingInputs, make_inputs
from .output_comparison import check_call, check_gradients, check_repeated, check_step, draw_rows, supports_rows
from .row_errors import InvalidResult
from .verification import as_results, check_plain, verify_case
from .workload import Workload

FLUSH_BYTES = 512 * 2**20  # bytes written to evict everything else from the caches
L2_SIZES = 2  # a GPU's L2 caches that inputs of calls with cold caches exceed together
WARMUP_STEPS = 2  # decode steps after a new state that are not timed, because creating it has filled the caches
MIN_STEPS = 16  # least number of decode steps in a sample
BACKGROUND_WORK_S = 0.002  # wait before verification, in which work in other threads has finished, or at least started
GRAPH_INPUT_SETS = 3  # a captured graph always reads the same tensors: one graph for each set of inputs


def make_timed(workload: Workload, *, seed: int, whole: bool = True) -> TimedCall:
    """The timed calls of a workload's mode, with warm or cold caches. seed: of everything random. whole: whether the
    first verified output is compared as a whole with that of a new instance, or a drawn part."""
    config = workload.case.group.config
    limits: dict[str, int] = {}
    if config.mode == "decode":
        if config.cuda_graph:
            raise UnsupportedError("decode steps are not captured as CUDA graphs, because each continues another state")
        calls = TimedSteps(workload, seed)
        limits = {"max_calls": MAX_DECODE_STEPS - WARMUP_STEPS, "min_calls": MIN_STEPS}
    else:
        calls = TimedCalls(workload, seed, whole=whole, separate_bytes=_find_separate_bytes(config))
    subject = TimedCall(calls.run, calls.reset, calls.settle, calls.verify, calls.release, **limits)
    if config.cache == "warm":
        return subject
    # several times the size of last-level caches; those of large GPUs have 60 MiB
    buffer = torch.zeros(FLUSH_BYTES // 4, device=config.device)

    def reset(count: int) -> None:
        calls.reset(count)
        buffer.add_(1)

    if isinstance(calls, TimedCalls) and calls.separate:
        return replace(subject, reset=reset)
    return replace(subject, reset=reset, max_calls=1, min_calls=1)


def _find_separate_bytes(config: CaseConfig) -> int | None:
    """The size of inputs through which calls with cold caches cycle on a GPU, where a single call is too short to time.

    None where calls are timed one by one: on a processor, in decode steps, which all read one state, and with CUDA
    graphs, each of which has its own memory.
    """
    if (config.device, config.cache, config.cuda_graph) != ("cuda", "cold", False):
        return None
    return L2_SIZES * read_l2_bytes()


def verify_workload(workload: Workload, steps: TimedSteps | None = None) -> tuple[float, int]:
    """The error of a first result, and the length at which it was verified. Raises `InvalidResult`."""
    if workload.case.group.config.mode != "decode":
        return verify_case(workload)
    steps = steps or TimedSteps(workload, workload.case.group.sampling.seed)
    steps.reset(1)
    steps.run(1)
    steps.settle()
    return steps.verify(), workload.shape.m


class _Sampled:
    """Consecutive calls, of which the results of a randomly chosen one and of the last one are stored."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload, self.random = workload, random.Random(seed)
        self.calls: list[Callable[[], Any]] = []
        self.chosen_call = 0
        self.chosen: Any = None
        self.last: Any = None

    def run(self, calls: int) -> None:
        """Make so many calls, and store the results of the chosen and the last one."""
        bound_calls, count, chosen_call = self.calls, len(self.calls), self.chosen_call
        for number in range(calls - 1):
            if number == chosen_call:
                self.chosen = bound_calls[number % count]()
            else:
                bound_calls[number % count]()
        self.last = bound_calls[(calls - 1) % count]()

    def settle(self) -> None:
        """Wait for work in the background. Raises `InvalidResult` if the last result still changes."""
        check_finished(as_results(self.last)[0], self.random)

    def release(self) -> None:
        """Release the results of the last sample, but not a decode state."""
        self.chosen = self.last = None


class TimedCalls(_Sampled):
    """Calls, each on its own inputs; the result of the chosen one is verified."""

    def __init__(self, workload: Workload, seed: int, *, whole: bool = True, separate_bytes: int | None = None) -> None:
        super().__init__(workload, seed)
        self.separate = separate_bytes is not None
        graphed, self.whole, self.wholly_verified = workload.case.group.config.cuda_graph, whole, False
        sets = GRAPH_INPUT_SETS if graphed else MAX_INPUT_SETS
        sizes: dict[str, Any] = {"seed": seed, "sets": sets, "separate_bytes": separate_bytes}
        self.inputs = make_inputs(workload.case, workload.attn, workload.shape, workload.sample, **sizes)
        samples = self.inputs.change(GRAPH_INPUT_SETS) if graphed else []
        # a graph for each set of inputs, by the address of its queries
        self.graphs = {s.q.data_ptr(): capture_graph(partial(workload.make_call, s)) for s in samples}

    def reset(self, calls: int) -> None:
        """Warm up, change the inputs, and choose one of the calls, which `verify` verifies."""
        self.release()
        warm_up_calls = self.workload.case.group.sampling.warm_up_calls
        for sample in self.inputs.change(warm_up_calls) if warm_up_calls else ():
            self.workload.make_call(sample)
        self.samples = self.inputs.change(calls)
        self.calls = [self.graphs.get(s.q.data_ptr()) or partial(self.workload.make_call, s) for s in self.samples]
        # of graphs one of the last launches, because a later launch overwrites the result
        self.chosen_call = calls - 1 - self.random.randrange(len(self.calls) if self.graphs else calls)

    def verify(self) -> None:
        """Verify the result of the chosen call on drawn rows, the first time also its whole output and gradients."""
        last = as_results(self.last)[0]
        check_inputs(self.inputs)
        sample = self.samples[self.chosen_call % len(self.samples)]
        results = as_results(self.last if self.chosen is None else self.chosen)
        check_plain(self.workload, results, self.inputs.find_owner, None if self.chosen is None else last)
        check_call(self.workload, sample, results, self.random)
        if not self.wholly_verified:
            if len(results) > 1:
                check_gradients(self.workload, sample, results, self.random)
            if supports_rows(self.workload):
                check_repeated(self.workload, sample, results[0], self.random, whole=self.whole)
        self.wholly_verified = True
        self.release()


class TimedSteps(_Sampled):
    """Single steps after a context, as in generation; the output of the chosen one is verified."""

    def __init__(self, workload: Workload, seed: int) -> None:
        super().__init__(workload, seed)
        case, attn, s = workload.case, workload.attn, workload.shape
        self.context = make_inputs(case, attn, s, workload.sample, seed=seed, sets=1)
        self.tokens = make_inputs(case, attn, replace(s, n=1, m=1), None, seed=seed)

    def reset(self, calls: int) -> None:
        """Change the context and the tokens, make a new state, and decode the first tokens after it."""
        self.release()
        self.state = None  # released first, so that two states never exist together
        (self.context_sample,) = self.context.change(1)
        self.token_samples = self.tokens.change(calls + WARMUP_STEPS)
        self.state = self.workload.after_context(self.workload.shape.m + MAX_DECODE_STEPS, self.context_sample)
        for token in self.token_samples[:WARMUP_STEPS]:
            self.step(token)
        self.calls = [partial(self.step, token) for token in self.token_samples[WARMUP_STEPS:]]
        self.chosen_call = self.random.randrange(calls)

    def step(self, token: Sample) -> Tensor:
        """Decode one token."""
        q, k, v, inputs = token
        with torch.no_grad():
            out, self.state = self.workload.attn.step(q, k, v, self.state, **inputs)
        return out

    def next_token(self) -> Tensor:
        """One more step."""
        return self.step(self.token_samples[-1])

    def verify(self) -> float:
        """Compare the chosen step with the reference row, and return the error if it is within tolerance."""
        check_inputs(self.context)
        check_inputs(self.tokens)
        out, other = (self.last, None) if self.chosen is None else (self.chosen, self.last)
        check_plain(self.workload, (out,), lambda x: self.context.find_owner(x) or self.tokens.find_owner(x), other)
        tokens = self.token_samples[: WARMUP_STEPS + self.chosen_call + 1]
        error = check_step(self.workload, self.context_sample, tokens, out)
        self.release()
        return error


def check_finished(last: Tensor, rng: random.Random) -> None:
    """Raise `InvalidResult` if drawn rows of the last output change after its call has returned."""
    if type(last) is not Tensor or not last.numel():
        return  # `check_plain` rejects other types
    rows, last = draw_rows(last.shape[2], rng).to(last.device), last.detach()
    returned = last[:, :, rows]
    sleep(BACKGROUND_WORK_S)
    if not torch.equal(returned.nan_to_num(), last[:, :, rows].nan_to_num()):
        raise InvalidResult("the output still changed after the call had returned")


def check_inputs(inputs: ChangingInputs) -> None:
    """Raise `GlobalStateChanged` if the contents of an input were modified, with or without its version counter."""
    if name := inputs.find_modified():
        raise GlobalStateChanged(f"it wrote into its input {name}")


def capture_graph(call: Callable[[], Any]) -> Callable[[], Any]:
    """Capture a call as a CUDA graph, and return a function that replays it; its result has the same memory each
    time."""
    if not torch.cuda.is_available():
        raise UnsupportedError("CUDA graphs need a CUDA device")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # warm up before capture, as torch requires
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()

    def replay() -> Any:
        graph.replay()
        return out

    return replay
