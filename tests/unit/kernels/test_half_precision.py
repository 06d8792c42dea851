"""Half precision: outputs and gradients have the dtype of the inputs, whatever dtype a kernel computes in."""

from __future__ import annotations

import pytest
import torch
from forced_choice import force_implementation

import efficient_attn as ea
from efficient_attn.contract.shapes import Shape
from efficient_attn.kernels import half_precision

HALVES = [torch.bfloat16, torch.float16]


def test_compute_dtype_differs_for_half_precision_on_cpus_only() -> None:
    with force_implementation(half_precision.HALF, "float32"):
        for dtype in (torch.float32, torch.float64):
            assert half_precision.fused_dtype(torch.ones(1, dtype=dtype), "forward", 64, 64) == dtype
        assert half_precision.product_dtype(torch.ones(1, dtype=torch.float16, device="meta"), 4, 4, 4) == torch.float16
        assert half_precision.product_dtype(torch.ones(1, dtype=torch.float16), 4, 4, 4) == torch.float32


@pytest.mark.parametrize("dtype", HALVES)
def test_products_sum_in_float32(dtype: torch.dtype) -> None:
    a, b = torch.full((1, 4096), 0.5).to(dtype), torch.ones(4096, 1).to(dtype)
    with force_implementation(half_precision.HALF, "float32"):
        out = half_precision.matmul(a, b)
    assert out.dtype == dtype
    assert out.item() == 2048  # summed in half precision, it would stop growing earlier


# each family, and each kernel that chooses a dtype: fused, grouped, parts, rounds, projections, latents
SPECS = [
    ("full", 4, {}),
    ("full", 4, {"causal": True}),
    ("gqa", 2, {"causal": True}),
    ("mqa", 1, {}),
    ("mla", 1, {"causal": True}),
    ("sliding_window:window=8", 4, {"causal": True}),
    ("sliding_window:window=8:backend=parts", 4, {"causal": True}),
    ("sliding_window:window=8:backend=masked", 2, {}),
    ("sliding_window:window=8:backend=masked", 4, {"causal": True}),
    ("longformer:window=8:n_global=2", 2, {}),
    ("strided:stride=4", 4, {}),
    ("random_blocks:block_size=8", 4, {}),
    ("linear", 4, {"causal": True}),
    ("linformer:rank=8", 4, {}),
    ("nystromformer:n_landmarks=8", 4, {}),
    ("reformer:n_hashes=2:bucket_size=8", 4, {"causal": True}),
]


@pytest.mark.parametrize("implementation", ["own", "float32"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("spec", "kv_heads", "mask_options"), SPECS)
def test_both_compute_dtypes_are_close_to_reference(
    spec: str, kv_heads: int, mask_options: dict, dtype: torch.dtype, implementation: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    dims = ea.Dims(heads=4, kv_heads=kv_heads, head_dim=16, max_len=50)
    attn, exact = ea.create(spec, dims=dims), ea.create(spec.partition(":backend")[0], dims=dims, backend="dense")
    sample = attn.sample(Shape(2, 4, kv_heads, 50, 50, 16, 16), generator=generator, dtype=dtype)
    inputs = [x for x in (sample.q, sample.k, sample.v) if x is not None]
    results = []
    for mechanism in (attn.to(dtype), exact.to(dtype)):  # mechanisms that hash need identically rounded inputs
        leaves = [x.detach().requires_grad_() for x in inputs]
        values = leaves[2] if len(leaves) > 2 else None
        with force_implementation(half_precision.HALF, implementation):
            out = mechanism(leaves[0], leaves[1], values, ea.Mask(**mask_options))
            upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
            results.append([out, *torch.autograd.grad(out, leaves, upstream)])
    for got, want in zip(*results, strict=True):
        assert got.dtype == dtype
        error = (got.double() - want.double()).norm() / want.double().norm()
        assert error < 6 * torch.finfo(dtype).eps, f"{error:.2g}"
