"""The implementation that an adaptive call chooses and reports."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import efficient_attn as ea
from efficient_attn.contract.shapes import Shape
from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.native import building, cpp_tiles
from efficient_attn.kernels.sparse.implementation_choice import (
    IN_CPP,
    IN_TORCH,
    MAX_MASKED_LENGTH,
    choose_implementation,
    compare_costs,
)
from efficient_attn.kernels.sparse.tile_plan import plan_parts
from efficient_attn.patterns import Geometry, as_pattern, sliding_window
from efficient_attn.testing.tensor_comparison import assert_close
from efficient_attn.variants.sparse import sparse_attention

SPECS = ["sliding_window:window=128", "strided", "fixed", "bigbird", "longformer", "random_blocks"]
HEADS, WIDTH = 4, 64
CPU = torch.device("cpu")


def make_attention(spec: str, n: int, backend: str | None = None) -> ea.Attention:
    return ea.create(spec, dims=ea.Dims(heads=4, head_dim=64, max_len=n), backend=backend)


@pytest.mark.parametrize("spec", SPECS)
def test_short_calls_are_masked_and_long_calls_use_parts(spec: str) -> None:
    for n, implementation in ((64, "masked"), (128, "masked"), (MAX_MASKED_LENGTH + 1, "parts"), (4096, "parts")):
        reported, computed = make_attention(spec, n).what_runs(
            Shape(1, 4, 4, n, n, 64, 64), causal=True, dtype=torch.float32, device=CPU, gradient=False
        )
        assert reported == implementation
        assert (
            computed
            == make_attention(spec, n, implementation).pairs_computed(n, n, True)
            == make_attention(spec, n).pairs_computed(n, n, True)
        )
        assert (computed == n * n) == (implementation == "masked")


def test_parts_are_preferred_for_many_heads() -> None:
    pattern, g = as_pattern(sliding_window(16)), Geometry(128, 128, 0, True)
    plan = plan_parts(pattern, g)
    assert compare_costs(plan, g, HEADS, WIDTH, IN_TORCH) == "masked"
    assert compare_costs(plan, g, 512, WIDTH, IN_TORCH) == "parts"
    assert compare_costs(plan, g, 1, WIDTH, IN_CPP) == "masked"
    assert compare_costs(plan, g, HEADS, WIDTH, IN_CPP) == "parts"


def test_single_rows_and_many_masks_use_parts() -> None:
    pattern = as_pattern(sliding_window(16))
    assert choose_implementation(pattern, Geometry(1, 128, 127, True), HEADS, WIDTH, 1, native=False) == "parts"
    assert choose_implementation(pattern, Geometry(128, 128, 0, True), HEADS, WIDTH, 1, native=False) == "masked"
    assert choose_implementation(pattern, Geometry(128, 128, 0, True), HEADS, WIDTH, 65, native=False) == "parts"


@pytest.mark.parametrize("n", [64, 600])
def test_the_reported_implementation_is_the_one_that_runs(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[str] = []
    for name, implementation in (("attend_masked", "masked"), ("softmax_over_plan", "parts")):
        real = getattr(sparse_attention, name)
        monkeypatch.setattr(
            sparse_attention,
            name,
            lambda *a, implementation=implementation, real=real: executed.append(implementation) or real(*a),
        )
    attn, q = make_attention("sliding_window:window=16", n), torch.randn(1, 4, n, 64)
    out = attn(q, q, q)
    reported = attn.what_runs(
        Shape(1, 4, 4, n, n, 64, 64), causal=False, dtype=q.dtype, device=q.device, gradient=False
    )[0]
    assert executed == [reported]
    assert reported == ("masked" if n == 64 else "parts")
    for backend in ("parts", "masked", "dense"):
        assert_close(out, make_attention("sliding_window:window=16", n, backend)(q, q, q), backend)
    assert executed[1:] == ["parts", "masked"]


def test_mechanisms_without_a_choice_report_their_backend() -> None:
    shape = Shape(1, 4, 4, 8, 8, 64, 64)
    call: dict[str, Any] = {"causal": True, "dtype": torch.float32, "device": CPU, "gradient": True}
    assert make_attention("full", 8).what_runs(shape, **call) == ("sdpa", None)


@pytest.mark.parametrize(
    ("n", "m", "dtype", "device", "expected"),
    [
        (4096, 4096, torch.bfloat16, "cuda", "flex"),
        (100, 4096, torch.float16, "cuda", "flex"),
        (MAX_MASKED_LENGTH, MAX_MASKED_LENGTH, torch.bfloat16, "cuda", "parts"),
        (1, 4096, torch.bfloat16, "cuda", "parts"),
        (4096, 4096, torch.float32, "cuda", "parts"),
        (4096, 4096, torch.bfloat16, "cpu", "parts"),
    ],
)
def test_long_calls_on_a_gpu_use_flex_in_half_precision(n: int, m: int, dtype: torch.dtype, device: str, expected: str):
    shape, call = Shape(1, 4, 4, n, m, 64, 64), {"dtype": dtype, "device": torch.device(device), "gradient": True}
    for backend in (None, "parts"):
        attn = ea.create("sliding_window:window=8", backend=backend)
        assert attn.what_runs(shape, causal=True, **call)[0] == (backend or expected)  # type: ignore[arg-type]
        assert attn.compiles_on("cuda") == (backend is None)
        assert not attn.compiles_on("cpu")


@pytest.mark.skipif(building.why_no_native("tiles") is not None, reason="C++ cannot be built")
@pytest.mark.parametrize(
    ("backend", "dtype", "expected"),
    [
        (None, torch.float32, True),
        (None, torch.bfloat16, True),
        (None, torch.float64, False),
        ("parts", torch.float32, False),
        ("blocks", torch.float32, False),
        ("cpp", torch.float64, True),
    ],
)
def test_cpp_runs_where_it_is_selected(
    monkeypatch: pytest.MonkeyPatch, backend: str | None, dtype: torch.dtype, expected: bool
) -> None:
    monkeypatch.setenv(building.VARIABLE, "on")
    autotuner.clear_choices()
    calls: list[str] = []
    for name in ("attend", "backward"):
        real = getattr(cpp_tiles, name)
        monkeypatch.setattr(cpp_tiles, name, lambda *a, name=name, real=real: calls.append(name) or real(*a))
    attn, q = make_attention("sliding_window:window=16", 600, backend), torch.randn(1, 4, 600, 64, dtype=dtype)
    attn(q.requires_grad_(), q, q).sum().backward()
    assert calls == (["attend", "backward"] if expected else [])
    if backend is None and expected:
        assert "tiles=cpp" in autotuner.list_choices()
    autotuner.clear_choices()
