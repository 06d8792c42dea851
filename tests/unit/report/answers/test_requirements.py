"""Requirements: contradictions are refused with a one-line message; the nearest measured configuration."""

from __future__ import annotations

from typing import Any

import pytest

from efficient_attn.errors import UsageError
from efficient_attn.report.answers.cost_curves import CostAtLength, CostCurve
from efficient_attn.report.answers.requirements import Requirements, find_dtype_refusal, find_nearest, matches
from efficient_attn.results.stats import Estimate


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"seq_len": 0}, "seq_len must be at least 1"),
        ({"mode": "train"}, "mode must be one of forward"),
        ({"mode": "decode", "causal": False}, "decode is always causal"),
        ({"kv_heads": 3, "heads": 8}, "3 key-value heads do not divide 8 heads"),
        ({"max_error": float("nan")}, "--max-error must be at least 0"),
        ({"max_ppl_ratio": 0.9}, "at least 1 \\(the model's own perplexity\\)"),
        ({"min_accuracy": {"mqar": 95.0}}, "mqar=95 must be between 0 and 1"),
    ],
)
def test_contradictory_requirements_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as found:
        Requirements(**({"seq_len": 1024} | given))
    assert "\n" not in str(found.value)


def test_the_description_contains_all_requirements() -> None:
    asked = Requirements(seq_len=16384, mode="decode", kv_heads=2, max_error=0.1, memory=2**21, latency_ms=50.0)
    assert asked.describe() == (
        "decode at 16,384, causal, on cpu, 2 key-value heads, error at most 0.1, memory at most 2.00 MiB, "
        "at most 50.0 ms per call"
    )
    assert asked.resolved_causal is True
    assert Requirements(seq_len=1).resolved_causal is None
    assert not Requirements(seq_len=1).has_quality_bounds
    assert Requirements(seq_len=1, min_accuracy={"mqar": 0.9}).has_quality_bounds
    assert asked.as_data() == {
        "seq_len": 16384, "mode": "decode", "device": "cpu", "kv_heads": 2, "max_error": 0.1, "memory": 2**21,
        "latency_ms": 50.0,
    }  # fmt: skip


def _config(**changes: Any) -> dict[str, Any]:
    base = {"machine": "Xeon-x2", "device": "cpu", "dtype": "float32", "batch": 1, "heads": 8, "head_dim": 64}
    base |= {"threads": 1, "cache": "warm", "compiled": False, "cuda_graph": False, "mode": "decode", "causal": True}
    return base | changes


def _curve(label: str, kv_heads: int | None, *lengths: int) -> CostCurve:
    points = [CostAtLength(n, None, Estimate(1.0), None, None, ()) for n in lengths]
    return CostCurve(label, kv_heads, label, tuple(points))


SHAPES = [
    (_config(), [_curve("full", 8, 1024, 16384), _curve("gqa", 2, 16384), _curve("linear", 8, 1024, 16384)]),
    (_config(heads=16, head_dim=128), [_curve("full", 16, 1024)]),
    (_config(dtype="bfloat16"), [_curve("full", 8, 1024)]),
    (_config(machine="Zen4-x2", heads=32), [_curve("full", 32, 1024)]),
    (_config(compiled=True, heads=64), [_curve("full", 64, 1024)]),
]


def _find(**given: Any) -> dict[str, Any] | None:
    nearest = find_nearest(SHAPES, Requirements(mode="decode", **given))
    return nearest and {name: getattr(nearest, name) for name in given}


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ({"seq_len": 2**20}, {"seq_len": 16384}),
        ({"seq_len": 900, "heads": 12}, {"seq_len": 1024, "heads": 16}),
        ({"seq_len": 1024, "heads": 4}, {"seq_len": 1024, "heads": 8}),
        ({"seq_len": 1024, "dtype": "float16"}, {"seq_len": 1024, "dtype": "float32"}),
        ({"seq_len": 16384, "dtype": "bfloat16"}, {"seq_len": 16384, "dtype": "float32"}),
        ({"seq_len": 1024, "dtype": "bfloat16", "batch": 4}, {"seq_len": 1024, "dtype": "bfloat16", "batch": 1}),
        ({"seq_len": 1024, "heads": 64, "machine": "Xeon"}, {"seq_len": 1024, "heads": 16, "machine": "Xeon"}),
        # as many query heads for each key-value head
        ({"seq_len": 16384, "heads": 32, "kv_heads": 8, "machine": "Xeon"},
         {"seq_len": 16384, "heads": 8, "kv_heads": 2, "machine": "Xeon"}),
        ({"seq_len": 16384, "kv_heads": 1}, {"seq_len": 16384, "kv_heads": 2}),
    ],
)  # fmt: skip
def test_the_nearest_shape_and_length(asked: dict[str, Any], nearest: dict[str, Any]) -> None:
    assert _find(**asked) == nearest


def test_mode_device_and_machine_stay() -> None:
    assert find_nearest(SHAPES, Requirements(seq_len=1024)) is None
    assert _find(seq_len=1024, device="cuda") is None
    assert _find(seq_len=1024, machine="Cray") is None
    assert find_nearest([], Requirements(seq_len=1)) is None
    assert find_nearest([(_config(), [])], Requirements(seq_len=1, mode="decode")) is None


def test_unknown_sizes_of_a_configuration_are_not_required() -> None:
    rows = [(_config(heads=None, threads=None), [_curve("linear", None, 64)])]
    nearest = find_nearest(rows, Requirements(seq_len=64, mode="decode", heads=4, kv_heads=2, threads=2))
    assert nearest is not None
    assert (nearest.heads, nearest.threads, nearest.kv_heads) == (None, None, None)
    assert matches(rows[0][0], nearest)


@pytest.mark.parametrize(
    ("label", "dtype", "reason"),
    [
        ("bigbird:backend=flex", "float64", "runs in float32, bfloat16 and float16 only, not in float64"),
        ("bigbird:backend=flex", "bfloat16", ""),
        ("bigbird:backend=flex", None, ""),
        ("gqa:kv_heads=2", "bfloat16", ""),
        ("linear:backend=cpp", "bfloat16", ""),  # which takes all dtypes
    ],
)
def test_backends_that_do_not_run_in_a_dtype_have_a_reason(label: str, dtype: str | None, reason: str) -> None:
    assert find_dtype_refusal(label, dtype) == reason


def test_compiled_calls_match_nothing() -> None:
    asked = Requirements(seq_len=1, mode="decode")
    assert [matches(config, asked) for config, _ in SHAPES] == [True, True, True, True, False]
    assert not matches(_config(cache="cold"), asked)
