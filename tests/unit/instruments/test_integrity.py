"""Integrity of clock, comparison and statistics functions: replacements are named with their file, and restored."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import efficient_attn as ea
from efficient_attn.bench import run
from efficient_attn.bench.measuring import output_comparison, process_runs
from efficient_attn.bench.measuring.conditions import PRELOAD
from efficient_attn.instruments import distance, integrity, timing
from efficient_attn.kernels.softmax import fused
from efficient_attn.registry import entries
from efficient_attn.results import stats
from efficient_attn.variants import CATALOGUE
from efficient_attn.variants.full.full import Full
from efficient_attn.variants.full.softmax_attention import SoftmaxAttention


@pytest.fixture(autouse=True)
def _recorded_functions() -> Iterator[None]:
    assert run is not None  # importing it records the functions
    for module in PRELOAD:
        importlib.import_module(module)
    integrity.record_integrity()
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
    "torch.nn.functional.scaled_dot_product_attention": lambda: setattr(
        F, "scaled_dot_product_attention", _replacement
    ),
    "torch.matmul": lambda: setattr(torch, "matmul", _replacement),
    "torch.Tensor.matmul": lambda: setattr(torch.Tensor, "matmul", _replacement),
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": lambda: setattr(
        torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", _replacement
    ),
    "torch.nn.modules.module.Module.__call__": lambda: setattr(torch.nn.Module, "__call__", _replacement),
    "efficient_attn.variants.full.full.Full.compute": lambda: setattr(Full, "compute", _replacement),
    "efficient_attn.variants.full.softmax_attention.SoftmaxAttention.compute": lambda: setattr(
        SoftmaxAttention, "compute", _replacement
    ),
    "efficient_attn.variants.full.softmax_attention.SoftmaxAttention.traits": lambda: setattr(
        SoftmaxAttention, "traits", property(_replacement)
    ),
    "efficient_attn.kernels.softmax.fused.attend": lambda: setattr(fused, "attend", _replacement),
    "efficient_attn.registry.entries.class_of": lambda: setattr(entries, "class_of", _replacement),
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
    assert "compute" not in vars(Full)


def test_recording_again_still_detects_earlier_replacements() -> None:
    stats.median = _replacement
    integrity.record_integrity()
    assert integrity.describe_replacement() is not None


def _set_constant() -> None:
    timing.MIN_PARALLEL_S = 1e9


def _delete_function() -> None:
    del stats.median


class Equal:
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, *given: Any) -> float:
        return 0.0


def _replace_by_equal() -> None:
    stats.median = Equal()


@pytest.mark.parametrize(
    ("replace", "reason"),
    [
        (_set_constant, "it replaced efficient_attn.instruments.timing.MIN_PARALLEL_S by its own (float)"),
        (_delete_function, "it replaced efficient_attn.results.stats.median by its own (NoneType)"),
        (
            lambda: setattr(stats, "median", Equal()),
            "it replaced efficient_attn.results.stats.median by its own (Equal)",
        ),
    ],
)
def test_constants_deletions_and_equal_objects_are_detected(replace: Callable[[], object], reason: str) -> None:
    replace()
    assert integrity.describe_replacement() == reason
    integrity.restore()
    assert integrity.describe_replacement() is None
    assert stats.median([3.0]) == 3.0


def test_imports_subclasses_and_calls_replace_nothing() -> None:
    assert ea.SoftmaxAttention is SoftmaxAttention

    class Own(ea.SoftmaxAttention):
        """Overrides a method in a subclass."""

        def compute(self, *given: Any, **inputs: Any) -> Any:
            return super().compute(*given, **inputs)

    q = torch.ones(1, 2, 8, 4)
    Own()(q, q, q)
    for entry in CATALOGUE:
        importlib.import_module(entry.target.partition(":")[0])
    importlib.import_module("efficient_attn.registry.call")  # later than the others
    importlib.import_module("torch._dynamo")
    torch.compile(lambda x: x + 1, backend="eager")(q)
    assert integrity.describe_replacement() is None


def test_an_inherited_method_is_recorded_for_every_built_in_mechanism() -> None:
    for entry in CATALOGUE:
        module, _, name = entry.target.partition(":")
        cls = getattr(importlib.import_module(module), name)
        cls.compute = _replacement
        assert f"{name}.compute" in (integrity.describe_replacement() or "")
        integrity.restore()
