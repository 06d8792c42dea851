"""Clock, comparison and statistics: what is replaced is named, with the file it came from, and put back."""

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
def _sealed() -> Iterator[None]:
    assert run is not None  # importing it closes the seal
    assert integrity.describe_replacement() is None
    yield
    integrity.restore()


def _mine(*given: Any) -> float:
    return 0.0


DEEDS: dict[str, Callable[[], object]] = {
    "time.perf_counter": lambda: setattr(time, "perf_counter", _mine),
    "torch.equal": lambda: setattr(torch, "equal", _mine),
    "torch.Tensor.norm": lambda: setattr(torch.Tensor, "norm", _mine),
    "torch.cuda.synchronize": lambda: setattr(torch.cuda, "synchronize", _mine),
    "efficient_attn.instruments.timing._time_sample": lambda: setattr(timing, "_time_sample", _mine),
    "efficient_attn.instruments.timing.perf_counter": lambda: setattr(timing, "perf_counter", _mine),
    "efficient_attn.bench.measuring.output_comparison.check_call": lambda: setattr(
        output_comparison, "check_call", _mine
    ),
    "efficient_attn.bench.measuring.process_runs.TimedCase.add_round": lambda: setattr(
        process_runs.TimedCase, "add_round", _mine
    ),
    "efficient_attn.results.stats.median": lambda: setattr(stats, "median", _mine),
    "efficient_attn.instruments.distance.relative_error": lambda: setattr(
        distance.relative_error, "__code__", _mine.__code__
    ),
}


@pytest.mark.parametrize("name", DEEDS)
def test_what_is_replaced_is_named_and_put_back(name: str) -> None:
    DEEDS[name]()
    reason = integrity.describe_replacement()
    assert reason is not None
    assert f"it replaced {name} by its own (test_integrity.py:" in reason.replace(
        "torch._tensor.Tensor", "torch.Tensor"
    )
    integrity.restore()
    assert integrity.describe_replacement() is None
    assert stats.median([3.0]) == 3.0


def test_closing_again_takes_nothing_for_granted_that_came_later() -> None:
    stats.median = _mine
    integrity.record_integrity()
    assert integrity.describe_replacement() is not None
