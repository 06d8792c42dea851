"""A pattern as one masked softmax equals the reference under padding, groups and dtypes, eagerly and as an op."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.kernels.softmax import merge
from efficient_attn.kernels.sparse.masked_softmax import pattern_mask
from efficient_attn.patterns import Geometry, as_pattern, sliding_window
from efficient_attn.testing.tensor_comparison import assert_close

SPECS = ["sliding_window:window=5", "bigbird:window=3:n_global=2:block_size=8", "strided:stride=4", "random_blocks"]
MASKS = {
    "plain": ea.Mask(),
    "causal": ea.Mask(causal=True),
    "lengths": ea.Mask(causal=True, key_lengths=torch.tensor([40, 0])),
    "holes": ea.Mask(key_mask=torch.arange(80).view(2, 40) % 3 > 0, query_lengths=torch.tensor([40, 7])),
    "start": ea.Mask(causal=True, query_start=-3),
}


def tensors(kv_heads: int, dtype: torch.dtype = torch.float64, value_width: int = 8) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    sizes = (4, 40, 8), (kv_heads, 40, 8), (kv_heads, 40, value_width)
    return tuple(torch.randn(2, *size, generator=g).to(dtype).requires_grad_() for size in sizes)


def output_and_grads(attn: ea.Attention, inputs: tuple[Tensor, ...], mask: ea.Mask) -> tuple[Tensor, ...]:
    out = attn(*inputs, mask)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype)
    return out, *torch.autograd.grad(out, inputs, weights)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("spec", SPECS)
def test_output_and_gradients_equal_reference(spec: str, mask: str, kv_heads: int) -> None:
    inputs = tensors(kv_heads, value_width=5 if kv_heads == 2 else 8)
    fast, dense = (output_and_grads(ea.create(spec, backend=b), inputs, MASKS[mask]) for b in ("masked", "dense"))
    for got, want in zip(fast, dense, strict=True):
        assert_close(got, want, f"{spec}, {mask}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cached_mask_has_the_dtype_of_the_call(dtype: torch.dtype) -> None:
    """Each dtype has its own mask of the same geometry."""
    attn, dense = (ea.create("sliding_window:window=5", backend=b) for b in ("masked", "dense"))
    output_and_grads(attn, tensors(2), ea.Mask(causal=True))
    inputs = tensors(2, dtype)
    got = attn(*inputs, ea.Mask(causal=True))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), dense(*tensors(2), ea.Mask(causal=True)), rtol=0.02, atol=0.02)
    mask = pattern_mask(as_pattern(sliding_window(5)), Geometry(40, 40, 0, True), dtype, torch.device("cpu"))
    assert mask is not None
    assert mask.dtype == dtype


def test_rows_without_keys_are_zero_without_gradient() -> None:
    inputs = tensors(4)
    out, grad_q, *_ = output_and_grads(ea.create("sliding_window:window=2", backend="masked"), inputs, MASKS["lengths"])
    assert not out[1].any()
    assert not grad_q[1].any()
    assert out[0].all(-1).all()


def test_unfused_engine_equals_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    masked, dense = (ea.create("sliding_window:window=5", backend=backend) for backend in ("masked", "dense"))
    monkeypatch.setattr(merge, "attend", merge.attend_unfused)
    monkeypatch.setattr(merge, "attend_backward", merge.attend_unfused_backward)
    inputs = tensors(2)
    for name, mask in MASKS.items():
        pairs = zip(output_and_grads(masked, inputs, mask), output_and_grads(dense, inputs, mask), strict=True)
        for actual, expected in pairs:
            assert_close(actual, expected, f"plain products, {name}")


def test_full_patterns_need_no_mask_and_meta_is_supported() -> None:
    pattern = as_pattern(sliding_window(64))
    assert pattern_mask(pattern, Geometry(40, 40, 0, False), torch.float32, torch.device("cpu")) is None
    q = torch.empty(1, 2, 40, 8, device="meta")
    assert ea.create("sliding_window:window=5", backend="masked")(q, q, q).is_meta


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("backend", ["masked", "adaptive", "parts"])
def test_op_equals_the_eager_call(spec: str, backend: str) -> None:
    from efficient_attn.kernels.sparse.parts import SparseInputs
    from efficient_attn.kernels.sparse.pattern_op import PatternOptions, softmax_over_text, write_pattern

    attn = ea.create(spec, backend=backend)
    q, k, v = tensors(2)
    text = write_pattern(attn.pattern)  # pyright: ignore
    assert text is not None
    for mask in (MASKS["causal"], MASKS["lengths"]):
        rows = q.unflatten(1, (2, 2)).transpose(2, 3).reshape(4, 40, 2, 8)
        inputs = SparseInputs(rows, k.reshape(4, 40, 8), v.reshape(4, 40, 8), mask.key_valid(40))
        out, _ = softmax_over_text.op(*inputs, text, 0, True, backend, 8**-0.5)
        assert torch.equal(out, softmax_over_text(inputs, PatternOptions(text, 0, True, backend, 8**-0.5)))
        out = out.view(2, 2, 40, 2, 8).transpose(2, 3).reshape(2, 4, 40, 8)
        got = (out, *torch.autograd.grad(out.cos().sum(), (q, k, v)))
        want = attn(q, k, v, mask)
        for actual, expected in zip(got, (want, *torch.autograd.grad(want.cos().sum(), (q, k, v))), strict=True):
            assert_close(actual, expected, f"{spec}, {backend}")


class CustomFact:
    """A user-defined fact, for which no tiles and no text are known."""

    reach = None

    def allows(self, i, j, g):
        return (i + j) % 2 == 0

    def blocks(self, first, last, size, g):
        return range(-(-g.m // size))


def test_custom_facts_use_blocks_unless_masked_is_selected() -> None:
    attn, dense = ea.SparseAttention(as_pattern(CustomFact())), ea.SparseAttention(as_pattern(CustomFact()))
    assert attn.backend == "blocks"
    attn.backend, dense.backend = "masked", "dense"
    assert_close(attn(*tensors(2)), dense(*tensors(2)), "a custom fact")
