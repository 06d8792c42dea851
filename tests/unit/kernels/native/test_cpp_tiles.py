"""Softmax over the tiles of a plan in C++: results, log-sum-exps and gradients equal those of exact arithmetic."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from efficient_attn.kernels.native import building, cpp_tiles
from efficient_attn.kernels.native.building import why_no_native
from efficient_attn.kernels.sparse.parts import PlanConfig, SparseInputs, softmax_over_plan
from efficient_attn.kernels.sparse.tile_plan import plan_blocks, plan_parts
from efficient_attn.patterns import Band, Blocks, Geometry, Keys, Pattern, Queries

REASON = why_no_native("tiles")
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

TOLERANCES = {torch.float32: 5e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 3e-3}
PATTERNS = {
    "band": Pattern((Band(-9, 9),)),
    "wide band": Pattern((Band(0, 200),)),
    "dilated band": Pattern((Band(-12, 12, 3),)),
    "sinks": Pattern((Keys(0, 4), Band(0, 30))),
    "globals": Pattern((Band(-16, 16), Keys(0, 5), Queries(5))),
    "random blocks": Pattern((Blocks(16), Blocks(16, 3, seed=7))),
    "whole random blocks": Pattern((Blocks(64), Blocks(64, 2, seed=3))),
    "bigbird": Pattern((Band(-20, 20), Keys(0, 9), Queries(9), Blocks(8, 2, seed=1))),
    "columns": Pattern((Band(0, 15), Keys(12, 16, period=16))),
    "strided": Pattern((Band(-7, 7), Band(None, None, 8))),  # rows of 64 numbers are then far from each other
    "all": Pattern((Band(None, None),)),
}
# rows of a batch, heads, group, queries, keys, width, columns: published sizes; no multiples of vectors; more keys than
# queries, as in a prefill after a prompt
SIZES = [(2, 2, 1, 96, 96, 64, 64), (1, 1, 3, 75, 131, 20, 36), (2, 1, 2, 200, 200, 8, 8), (1, 2, 1, 1, 70, 128, 128)]


def _draw(size: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    batch, heads, group, n, m, width, columns = size
    generator, count = torch.Generator().manual_seed(sum(size)), batch * heads
    sizes = (count, n, group, width), (count, m, width), (count, m, columns), (count, n, group, columns)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in sizes]


def _compute(pattern: Pattern, g: Geometry, inputs: SparseInputs, scale: float) -> tuple[Tensor, Tensor]:
    """The definition, in float64."""
    q, k, v, valid = inputs
    i, j = torch.arange(g.n)[:, None] + g.start, torch.arange(g.m)
    allowed = (pattern.allows(i, j, g) & (j <= i) if g.causal else pattern.allows(i, j, g))[None, :, None]
    if valid is not None:
        allowed = allowed & valid.repeat_interleave(len(q) // len(valid), dim=0)[:, None, None]
    scores = (torch.einsum("hngd,hmd->hngm", q, k) * scale).masked_fill(~allowed, float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0)
    return torch.einsum("hngm,hme->hnge", weights, v), scores.logsumexp(-1)


def _check(pattern: Pattern, g: Geometry, tensors: list[Tensor], valid: Tensor | None, *, blocks: bool = False) -> None:
    *qkv, grad = tensors
    tolerance, scale = TOLERANCES[grad.dtype], 0.3
    exact = [x.double().requires_grad_() for x in qkv]
    want, lse = _compute(pattern, g, SparseInputs(*exact, valid), scale)
    plan = (plan_blocks if blocks else plan_parts)(pattern, g)
    out, got_lse = cpp_tiles.attend(plan, scale, *qkv, valid)
    torch.testing.assert_close(out.double(), want.detach(), rtol=0, atol=tolerance * want.abs().max().item())
    torch.testing.assert_close(got_lse.double(), lse.detach(), rtol=0, atol=tolerance * 10)
    leaves = [x.clone().requires_grad_() for x in qkv]
    run = softmax_over_plan(SparseInputs(*leaves, valid), PlanConfig(plan, grad.shape[2], scale, native=True))
    for got, exact_grad in zip(
        torch.autograd.grad(run, leaves, grad), torch.autograd.grad(want, exact, grad.double()), strict=True
    ):
        assert got.dtype == grad.dtype
        bound = tolerance * exact_grad.abs().max().clamp(min=1).item()
        torch.testing.assert_close(got.double(), exact_grad, rtol=0, atol=bound)


def _hide(batch: int, m: int) -> Tensor:
    """Keys hidden at both ends and between: a row's first quarter, its last five, and every seventh."""
    j = torch.arange(m)
    rows = [(j >= m // 4 * (b + 1) // batch) & (j < m - 5 * b) & (j % 7 != b) for b in range(batch)]
    return torch.stack(rows) if rows else torch.zeros(0, m, dtype=torch.bool)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PATTERNS)
def test_results_and_gradients_equal_the_definition(
    monkeypatch: pytest.MonkeyPatch, name: str, size: tuple[int, ...], dtype: torch.dtype, threads: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    batch, *_, n, m, _, _ = size
    for causal in (False, True):
        g = Geometry(n, m, m - n, causal)
        _check(PATTERNS[name], g, _draw(size, dtype), None)
        _check(PATTERNS[name], g, _draw(size, dtype), _hide(batch, m))


@pytest.mark.parametrize("name", PATTERNS)
def test_touched_blocks_are_supported(name: str) -> None:
    _check(
        PATTERNS[name],
        Geometry(150, 150, 0, True),
        _draw((1, 2, 1, 150, 150, 16, 16), torch.float32),
        None,
        blocks=True,
    )


def test_long_sequences_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for pattern in (PATTERNS["bigbird"], Pattern((Band(-64, 64),))):
        _check(pattern, Geometry(2100, 2100, 0, False), _draw((1, 2, 1, 2100, 2100, 64, 64), torch.float32), None)


def test_masks_that_do_not_fit_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_tiles, "MAX_MASK_PAIRS", 1000)
    monkeypatch.setattr(cpp_tiles, "MAX_CACHED_PAIRS", 500)
    monkeypatch.setattr(cpp_tiles, "MAX_KEPT_BYTES", 0)
    cpp_tiles._keep_tiles.cache_clear()
    cpp_tiles._cut_plan.cache_clear()
    _check(PATTERNS["bigbird"], Geometry(300, 300, 0, True), _draw((1, 2, 2, 300, 300, 16, 16), torch.float32), None)
    cpp_tiles._cut_plan.cache_clear()


def test_strided_tensors_are_supported() -> None:
    q, k, v, _ = _draw((1, 4, 2, 70, 70, 32, 32), torch.float32)
    plan = plan_parts(PATTERNS["globals"], Geometry(70, 70, 0, False))
    strided = q.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3), k.mT.contiguous().mT, v[:1].expand(4, -1, -1)
    both = [cpp_tiles.attend(plan, 0.3, *x, None) for x in (strided, [x.contiguous() for x in strided])]
    torch.testing.assert_close(*both, rtol=0, atol=0)


def test_large_scores_and_values_do_not_overflow() -> None:
    q, k, v, _ = _draw((1, 1, 1, 90, 90, 16, 16), torch.float32)
    g, pattern = Geometry(90, 90, 0, False), PATTERNS["globals"]
    want, _ = _compute(pattern, g, SparseInputs(1e3 * q.double(), k.double(), v.double(), None), 1.0)
    out, lse = cpp_tiles.attend(plan_parts(pattern, g), 1.0, 1e3 * q, k, v, None)
    torch.testing.assert_close(out.double(), want, rtol=0, atol=2e-3)  # scores of 10,000 are rounded by .001
    assert lse.isfinite().all()


@pytest.mark.parametrize("name", ["band", "wide band", "strided"])
@pytest.mark.parametrize("position", [0, 20, 39, 63, 99])
def test_nan_reaches_only_the_rows_that_see_it(name: str, position: int) -> None:
    """Also from keys that are read with a block because rows are read eight at a time."""
    q, k, v, _ = _draw((1, 1, 1, 100, 100, 64, 64), torch.float32)
    k[0, position] = float("nan")
    g = Geometry(100, 100, 0, True)
    out, _ = cpp_tiles.attend(plan_parts(PATTERNS[name], g), 0.3, q, k, v, None)
    i = torch.arange(100)
    sees = PATTERNS[name].allows(i, torch.tensor(position), g) & (i >= position)
    assert out.isnan().any(-1).flatten().tolist() == sees.tolist()


def test_kept_tiles_own_what_they_point_to() -> None:
    """The cache of positions may drop a plan that the cache of tiles still has."""
    q, k, v, _ = _draw((1, 1, 1, 300, 300, 16, 16), torch.float32)
    plan = plan_parts(PATTERNS["bigbird"], Geometry(300, 300, 0, False))
    want, _ = cpp_tiles.attend(plan, 0.3, q, k, v, None)
    cpp_tiles._cut_plan.cache_clear()
    gc.collect()
    others = [torch.full((n,), -(10**9)) for n in range(1, 3000)]  # over freed memory
    out, _ = cpp_tiles.attend(plan, 0.3, q, k, v, None)
    assert len(others) == 2999
    torch.testing.assert_close(out, want, rtol=0, atol=0)


def test_empty_batches_are_supported() -> None:
    q, k, v, _ = _draw((0, 2, 1, 40, 40, 16, 16), torch.float32)
    out, _ = cpp_tiles.attend(plan_parts(PATTERNS["band"], Geometry(40, 40, 0, False)), 0.3, q, k, v, _hide(0, 40))
    assert out.shape == (0, 40, 1, 16)


def test_the_default_dtype_and_device_do_not_matter() -> None:
    tensors = _draw((1, 2, 1, 70, 70, 16, 16), torch.float32)
    plan = plan_parts(PATTERNS["globals"], Geometry(70, 70, 0, True))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            out, _ = cpp_tiles.attend(plan, 0.3, *tensors[:3], None)
    finally:
        torch.set_default_dtype(torch.float32)
    want, _ = cpp_tiles.attend(plan, 0.3, *tensors[:3], None)
    torch.testing.assert_close(out, want, rtol=0, atol=0)


def test_parts_of_heads_are_few_where_gradients_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(cpp_tiles, "MAX_PART_ELEMENTS", 3 * 200 * 64)
    made: list[int] = []
    monkeypatch.setattr(cpp_tiles, "call", lambda *a: made.append(a[5][6]) or building.call(*a))
    _check(PATTERNS["band"], Geometry(200, 200, 0, False), _draw((1, 1, 1, 200, 200, 64, 64), torch.float32), None)
    assert made[-1] == 3
