"""Memory of calls in new processes, as a cross-check of what was counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_suites
from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench.case import Case
from efficient_attn.bench.measuring.conditions import Conditions
from efficient_attn.bench.measuring.group import measure_group
from efficient_attn.bench.measuring.prepared_case import is_much_more
from efficient_attn.bench.measuring.process_memory import MeasureProcessMemory, measure_process_memory
from efficient_attn.engines.job import StageBoard, WorkerDied
from efficient_attn.engines.local import LocalEngine
from efficient_attn.results.rows import Row

MIB = 2**20
N = 2304  # at which an N x N matrix of float32 has 20 MiB
PLUGIN = """
import ctypes, mmap, os, signal
import numpy as np
import torch
import efficient_attn as ea

HIDDEN, KEPT = [], {}

@ea.register("zz_numpy", family="full")
class InNumpy(ea.SoftmaxAttention):
    '''Allocates an N x N matrix in numpy.'''

    def compute(self, q, k, v, mask, **inputs):
        np.ones((q.shape[2], k.shape[2]), dtype=np.float32)
        return super().compute(q, k, v, mask, **inputs)

@ea.register("zz_blocks", family="full")
class Blocks(InNumpy):
    '''The same, for multiples of 512 only.'''

    def compute(self, q, k, v, mask, **inputs):
        if q.shape[2] % 512:
            raise ea.UnsupportedError("multiples of 512 only")
        return super().compute(q, k, v, mask, **inputs)

@ea.register("zz_kept", family="full")
class Kept(ea.SoftmaxAttention):
    '''Keeps an N x N matrix in numpy for each length.'''

    def compute(self, q, k, v, mask, **inputs):
        sizes = q.shape[2], k.shape[2]
        if sizes not in KEPT:
            KEPT[sizes] = np.ones(sizes, dtype=np.float32)
        return super().compute(q, k, v, mask, **inputs)

@ea.register("zz_mapped", family="full")
class Mapped(ea.SoftmaxAttention):
    '''Keeps 20 MiB in pages of its own when a context of some length is absorbed.'''

    def absorb(self, k, v, state, **inputs):
        if k.shape[2] > 300:
            HIDDEN.append(mmap.mmap(-1, 20 * 2**20))
            HIDDEN[-1].write(b"1" * (20 * 2**20))
        return super().absorb(k, v, state, **inputs)

@ea.register("zz_dies", family="full")
class Dies(ea.SoftmaxAttention):
    '''Kills its process at long lengths.'''

    def compute(self, q, k, v, mask, **inputs):
        if q.shape[2] > 300:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute(q, k, v, mask, **inputs)
"""


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path) -> Iterator[None]:
    path = tmp_path / "process_memory_plugin.py"
    path.write_text(PLUGIN)
    with tiny_suites.isolated_registry():
        ea.load_plugin(str(path))
        yield


def _measure(variant: str, mode: str = "forward", *, counted: int = 2 * MIB, seq_len: int = N, **axes: Any) -> Row:
    case = tiny_suites.case(variant, mode, seq_len=seq_len, **axes)
    row = case.row()
    if mode == "decode":
        row.state_bytes = counted
    else:
        row.peak_memory_bytes = counted
    measure_process_memory(case, row, Conditions(timeout_s=100, engine=LocalEngine()))
    return row


linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's clear_refs")


@pytest.mark.sampled(3)
@linux
@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize(("variant", "seq_len"), [("zz_numpy", N), ("zz_kept", N), ("zz_blocks", 2560)])
def test_memory_outside_of_torch_is_reported(variant: str, seq_len: int, mode: str) -> None:
    dtype, matrix = "bfloat16" if mode == "forward" else "float32", seq_len**2 * 4
    # what else a process allocates only adds to the matrix, so that the smaller of two measurements is nearer to it
    rows = [_measure(variant, mode, seq_len=seq_len, dtype=dtype) for _ in range(2)]
    row = min(rows, key=lambda row: row.process_peak_bytes or 0)
    assert row.status == "ok"
    assert row.process_peak_bytes is not None
    assert matrix - MIB <= row.process_peak_bytes < matrix + 8 * MIB  # Linux counts pages in batches
    assert "its counted peak is 2.00 MiB: it allocates memory that is not counted" in (row.reason or "")


@linux
def test_the_shortest_accepted_call_comes_before_the_measured_one() -> None:
    lengths: list[int] = []

    @ea.register("zz_lengths", family="full")
    class Lengths(ea.SoftmaxAttention):
        """Takes multiples of 512 only."""

        def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
            if q.shape[2] % 512:
                raise ea.UnsupportedError("multiples of 512 only")
            lengths.append(q.shape[2])
            return super().compute(q, k, v, mask, **inputs)

    sent: list[Any] = []
    case = tiny_suites.case("zz_lengths", seq_len=2560)
    MeasureProcessMemory(case=case, timeout_s=100, memory_bytes=None).run(StageBoard([0.0] * 3), sent.append)
    assert lengths == [512, 2560]
    assert len(sent) == 1


@pytest.mark.sampled(3)
@linux
@pytest.mark.parametrize("mode", ["forward", "forward_backward", "decode"])
@pytest.mark.parametrize("variant", ["full", "linear", "sliding_window:window=128"])
def test_counted_memory_is_confirmed(variant: str, mode: str) -> None:
    row = _measure(variant, mode)
    assert row.process_peak_bytes is not None
    assert 0 <= row.process_peak_bytes < 16 * MIB
    assert row.reason is None


@linux
def test_a_state_in_pages_of_its_own_is_reported() -> None:
    row = _measure("zz_mapped", "decode", counted=MIB)
    assert row.process_peak_bytes is not None
    assert 19 * MIB <= row.process_peak_bytes < 28 * MIB
    assert "its decode state has 1.00 MiB" in (row.reason or "")
    assert _measure("zz_mapped", "decode", seq_len=256).reason is None


@linux
def test_a_process_that_dies_leaves_the_column_empty() -> None:
    row = _measure("zz_dies")
    assert (row.status, row.process_peak_bytes) == ("ok", None)
    assert "its memory in a new process is not known: killed by SIGKILL" in (row.reason or "")


def test_a_system_that_cannot_measure_leaves_the_column_empty() -> None:
    class Unable(LocalEngine):
        def run(self, job: Any) -> Iterator[Any]:
            yield "no clear_refs here"

    case = tiny_suites.case("full")
    row = case.row()
    row.reason = "first"
    measure_process_memory(case, row, Conditions(engine=Unable()))
    assert row.process_peak_bytes is None
    assert row.reason == "first; its memory in a new process is not known: no clear_refs here"


def test_jobs_in_this_process_measure_nothing() -> None:
    case = tiny_suites.case("full")
    row = case.row()
    measure_process_memory(case, row, Conditions(engine=LocalEngine("inline")))
    assert (row.process_peak_bytes, row.reason) == (None, None)


@pytest.mark.parametrize(
    ("measured", "counted", "is_more"),
    [
        (16 * MIB, 0, False),
        (16 * MIB + 1, 0, True),
        (119 * MIB, 100 * MIB, False),
        (121 * MIB, 100 * MIB, True),
        (100 * MIB, 200 * MIB, False),
        (None, 5, False),
        (5, None, False),
    ],
)
def test_differences_count_above_a_fifth_and_16_mib(measured: int | None, counted: int | None, is_more: bool) -> None:
    assert is_much_more(measured, counted) == is_more


def _plan(*variants: str) -> Sequence[Case]:
    text = tiny_suites.TINY.replace('"forward"', '"forward", "peak_memory"')
    return tiny_suites.plan(text, variants=variants, axes={"seq_len": [N]})


@linux
@pytest.mark.slow
def test_a_run_measures_each_mechanism_once_in_a_new_process() -> None:
    jobs: list[str] = []

    class Recording(LocalEngine):
        def run(self, job: Any) -> Iterator[Any]:
            jobs.append(type(job).__name__)
            yield from super().run(job)

    cases = _plan("full", "zz_numpy")
    full, other = (r.row for r in measure_group(cases[0].group, cases, Conditions(engine=Recording())))
    assert jobs[:3] == ["PrepareCases", "MeasureProcessMemory", "MeasureProcessMemory"]
    assert jobs.count("MeasureProcessMemory") == 2
    assert (full.status, full.reason, other.status) == ("ok", None, "ok")
    assert (full.process_peak_bytes or 0) < 16 * MIB < (other.process_peak_bytes or 0)
    assert other.peak_memory_bytes == full.peak_memory_bytes
    assert "a new process grew by" in (other.reason or "")


def test_a_death_before_the_first_case_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead(LocalEngine):
        def run(self, job: Any) -> Iterator[Any]:
            raise WorkerDied(-1, 0, "error", "no plug-in")
            yield

    case = tiny_suites.case("full")
    row = case.row()
    measure_process_memory(case, row, Conditions(engine=Dead()))
    assert row.reason == "its memory in a new process is not known: no plug-in"
