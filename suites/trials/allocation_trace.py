"""Do counted peaks agree with an independent trace of all allocations of the process?

    python suites/trials/allocation_trace.py [--lengths 1024,8192] [SPEC..]

Compiles allocation_trace.c, which replaces malloc and mmap, and preloads it into a process of its own. There, the
second call of each mechanism, with other inputs than the first, is counted by `measure_footprint` and traced: forward,
training and a decode step, and the context of a decode state. A line is right if both agree within 2% or 64 KiB, and
the exit code is 1 if a line is wrong. The trace also counts what torch does not report: Python objects, nodes of the
autograd graph, and buffers that oneDNN and MKL allocate during a call. Needs Linux with glibc and a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from efficient_attn.bench.case import Case
from efficient_attn.bench.measuring.samples import TimedSteps
from efficient_attn.bench.measuring.workload import Workload
from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.bench.planning.suite import parse_suite
from efficient_attn.garbage import garbage_collection_disabled
from efficient_attn.shared_caches import empty_shared_caches
from efficient_attn.tasks import TABLE

SOURCE, LIBRARY = Path(__file__).with_suffix(".c"), "EFFICIENT_ATTN_TRACE"  # the variable with the library's path
SPECS = ("full", "sliding_window:window=128", "linear", "performer:n_features=256", "bigbird", "gqa:kv_heads=2")
MODES = ("forward", "forward_backward", "decode")
TOLERANCE, MIN_DIFFERENCE = 0.02, 2**16
SUITE = """
title    = "Traced calls"
measure  = ["{mode}"]
baseline = "full"
axes     = {{ seq_len = [{length}], causal = [true], threads = [1] }}
dims     = {{ heads = 4, head_dim = 64 }}
variant  = [{{ name = "full" }}]
"""


class Comparison(NamedTuple):
    """Bytes of one line, counted and traced."""

    what: str
    counted: int
    traced: int

    @property
    def is_right(self) -> bool:
        """Whether both agree."""
        return abs(self.counted - self.traced) <= max(TOLERANCE * self.traced, MIN_DIFFERENCE)


class Trace(NamedTuple):
    """Bytes above those at the start: the highest number, and when the result was still held."""

    peak: int
    held: int


class Tracer:
    """The counters of the preloaded library."""

    def __init__(self, library: str) -> None:
        functions = ctypes.CDLL(library)
        self.reset, self.peak, self.current = functions.trace_reset, functions.trace_peak, functions.trace_current
        for function in (self.reset, self.peak, self.current):
            function.restype = ctypes.c_longlong

    def trace(self, call: Callable[[], Any], first_call: Callable[[], Any] = lambda: None) -> Trace:
        """Trace a call, with the first call's lasting allocations."""
        with garbage_collection_disabled():
            before = self.reset()
            first_call()
            gc.collect()
            self.reset()
            result = call()
            trace = Trace(self.peak() - before, self.current() - before)
            del result
        return trace


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=SPECS, metavar="SPEC")
    parser.add_argument("--lengths", default="1024,8192")
    options = parser.parse_args()
    if library := os.environ.get(LIBRARY):
        lengths = [int(text) for text in options.lengths.split(",")]
        return print_comparisons(Tracer(library), options.specs, lengths)
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / "allocation_trace.so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, str(SOURCE)], check=True)
        environment = os.environ | {"LD_PRELOAD": library, LIBRARY: library}
        return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode


def print_comparisons(tracer: Tracer, specs: list[str], lengths: list[int]) -> int:
    """Print a line for each mode, mechanism and length. Returns 1 if one is wrong."""
    torch.set_num_threads(1)
    print(f"{'':18}{'mechanism':28}{'N':>6}{'counted':>12}{'traced':>12}{'difference':>12}  right")
    wrong = 0
    for mode in MODES:
        for spec in specs:
            for length in lengths:
                for line in compare(tracer, make_case(spec, mode, length)):
                    difference = (line.counted - line.traced) / line.traced
                    figures = f"{line.counted:12}{line.traced:12}{difference:12.2%}"
                    print(f"{line.what:18}{spec:28}{length:6}{figures}  {'yes' if line.is_right else 'NO'}", flush=True)
                    wrong += not line.is_right
    return 1 if wrong else 0


def make_case(spec: str, mode: str, length: int) -> Case:
    """The case of a mechanism, with four heads of 64."""
    loaded = parse_suite(SUITE.format(mode=mode, length=length), "allocation_trace", TABLE)
    (case,) = make_plan(loaded, Overrides(variants=[spec]))
    return case


def compare(tracer: Tracer, case: Case) -> Iterator[Comparison]:
    """What is counted for a case, and what is traced."""
    counted, traced = Workload(case), Workload(case)
    warm_up = Workload(case)  # loads what the process needs, which is no mechanism's memory
    if case.group.config.mode != "decode":
        warm_up.make_call(warm_up.sample)
        traced.make_upstream()
        (other,) = traced.draw_others(1)
        empty_shared_caches()  # of masks, which are counted too
        trace = tracer.trace(lambda: traced.make_call(traced.sample), lambda: traced.make_call(other))
        yield Comparison(str(case.group.config.mode), counted.footprint().peak or 0, trace.peak)
        return
    warm_up.after_context(case.shape.m)
    empty_shared_caches()
    trace = tracer.trace(lambda: traced.after_context(case.shape.m))
    yield Comparison("decode state", counted.held_state.total, trace.held)
    steps = TimedSteps(counted, seed=0)
    steps.reset(1)
    peak = counted.footprint(steps.next_token).peak or 0
    yield Comparison("decode step", peak, tracer.trace(steps.next_token, steps.next_token).peak)


if __name__ == "__main__":
    sys.exit(main())
