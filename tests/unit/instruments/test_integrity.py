"""Integrity of clock, comparison and statistics functions: replacements are named with their file, and restored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from efficient_attn.bench import run
from efficient_attn.bench.measuring import output_comparison, process_runs
from efficient_attn.instruments import distance, integrity, timing
from efficient_attn.results import stats


@pytest.fixture(autouse=True)
def _recorded_functions() -> Iterator[None]:
    assert run is not None  # importing it records the functions
    assert integrity.describe_replacement() is None
    yield
    integrity.restore()


def _replacement(*given: Any) -> float:
    return 0.0


REPLACEMENTS: dict[str, Callable[[], object]] = {
    "time.perf_counter": lambda: setattr(time, "perf_counter", _replacement),
    "torch.equal": lambda: setattr(torch, "equal", _replacement),
    "torch.Tensor.norm": lambda: setattr(torch.Tensor, "norm", _replacement),
    "torch.cuda.synchronize": lambda: setattr(torch.cuda, "synchronize", _replacement),
    "efficient_attn.instruments.timing._time_sample": lambda: setattr(timing, "_time_sample", _replacement),
    "efficient_attn.instruments.timing.perf_counter": lambda: setattr(timing, "perf_counter", _replacement),
    "efficient_attn.bench.measuring.output_comparison.check_call": lambda: setattr(
        output_comparison, "check_call", _replacement
    ),
    "efficient_attn.bench.measuring.process_runs.TimedCase.add_round": lambda: setattr(
        process_runs.TimedCase, "add_round", _replacement
    ),
    "efficient_attn.results.stats.median": lambda: setattr(stats, "median", _replacement),
    "efficient_attn.instruments.distance.relative_error": lambda: setattr(
        distance.relative_error, "__code__", _replacement.__code__
    ),
}


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_replaced_functions_are_named_and_restored(name: str) -> None:
    REPLACEMENTS[name]()
    reason = integrity.describe_replacement()
    assert reason is not None
    assert f"it replaced {name} by its own (test_integrity.py:" in reason.replace(
        "torch._tensor.Tensor", "torch.Tensor"
    )
    integrity.restore()
    assert integrity.describe_replacement() is None
    assert stats.median([3.0]) == 3.0


def test_recording_again_still_detects_earlier_replacements() -> None:
    stats.median = _replacement
    integrity.record_integrity()
    assert integrity.describe_replacement() is not None
