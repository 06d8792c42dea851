"""Nystromformer: exact limits, segments with padding, invalid options, cost, and memory."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.testing.tensor_comparison import assert_close


def draw(n: int = 60, m: int = 60, *, kv_heads: int = 2, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(n)
    sizes = ((2, n), (kv_heads, m), (kv_heads, m))
    return [torch.randn(2, h, x, 8, generator=g).to(dtype).requires_grad_() for h, x in sizes]


@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("landmarks", [60, 1000])
def test_a_landmark_per_position_gives_full_attention(landmarks: int, kv_heads: int) -> None:
    tensors, full = draw(kv_heads=kv_heads), ea.create("full")
    results = []
    for attn in (ea.create("nystromformer", n_landmarks=landmarks, n_iterations=30), full):
        out = attn(*tensors)
        results.append((out, *torch.autograd.grad(out.cos().sum(), tensors)))
    for got, want in zip(*results, strict=True):
        assert_close(got, want, "full attention", tolerance=1e-6)


def test_error_decreases_with_iterations_of_the_inverse() -> None:
    tensors = [x.detach() for x in draw()]
    want = ea.create("full")(*tensors)
    errors = {
        steps: float((ea.create("nystromformer", n_landmarks=60, n_iterations=steps)(*tensors) - want).abs().max())
        for steps in (6, 12, 20, 30)
    }
    assert errors[6] > 1e-2
    assert errors[6] > errors[12] > errors[20] > errors[30]
    assert errors[20] < 1e-2


def test_one_landmark_gives_attention_of_the_mean_query() -> None:
    q, k, v = draw(n=9)
    out = ea.create("nystromformer:n_landmarks=1:n_iterations=24")(q, k, v)
    want = ea.create("full")(q.mean(2, keepdim=True), k, v).expand(out.shape)
    assert_close(out, want, "one landmark: equal rows")


def test_converged_weights_sum_to_one_with_equal_numbers_of_landmarks() -> None:
    def sums_of_weights(n: int, m: int, steps: int) -> torch.Tensor:
        q, k, v = (x.detach() for x in draw(n, m))
        return ea.create("nystromformer", n_landmarks=8, n_iterations=steps)(q, k, torch.ones_like(v))

    assert_close(sums_of_weights(60, 60, 30), torch.ones(2, 2, 60, 8, dtype=torch.float64), "30 steps", tolerance=1e-8)
    assert float((sums_of_weights(60, 60, 1) - 1).abs().max()) > 1e-3
    # nine queries have five landmarks, of two positions each
    assert float((sums_of_weights(9, 60, 30) - 1).abs().max()) > 1e-3
    assert not ea.create("nystromformer:n_iterations=30").traits.normalised


LENGTHS = ((60, 60), (60, 23), (17, 59), (3, 60))  # of queries, of keys


@pytest.mark.parametrize("backend", ["landmarks", "dense"])
def test_segments_depend_on_the_length_of_each_row(backend: str) -> None:
    attn = ea.create("nystromformer", n_landmarks=7, backend=backend)
    q, k, v = draw()
    for first, second in ((a, b) for a in LENGTHS for b in LENGTHS):
        queries, keys = (torch.tensor(x) for x in zip(first, second, strict=True))
        out = attn(q, k, v, ea.Mask(query_lengths=queries, key_lengths=keys))
        for b, (n, m) in enumerate((first, second)):
            alone = attn(q[b : b + 1, :, :n], k[b : b + 1, :, :m], v[b : b + 1, :, :m])
            assert_close(out[b : b + 1, :, :n], alone, f"{n} queries over {m} keys, in a batch of {first}, {second}")


def test_masked_keys_have_no_effect() -> None:
    attn, (q, k, v) = ea.create("nystromformer", n_landmarks=7), draw()
    kept = (torch.arange(60) * 7) % 5 != 1  # the first one is kept, from which positions count
    out = attn(q, k, v, ea.Mask(key_mask=kept.expand(2, -1)))
    assert_close(out, attn(q, k[:, :, kept], v[:, :, kept]), "holes")


def test_rows_without_keys_are_zero_with_finite_gradients() -> None:
    attn, tensors = ea.create("nystromformer", n_landmarks=7), draw()
    out = attn(*tensors, ea.Mask(key_lengths=torch.tensor([0, 60]), query_lengths=torch.tensor([60, 0])))
    assert torch.equal(out, torch.zeros_like(out))
    out = attn(*tensors, ea.Mask(key_lengths=torch.tensor([0, 60])))
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert bool((out[1] != 0).all())
    for x, grad in zip("qkv", torch.autograd.grad(out.sin().sum(), tensors), strict=True):
        assert bool(grad.isfinite().all()), x
        assert torch.equal(grad[0], torch.zeros_like(grad[0])), x


def test_many_iterations_are_accurate_in_float32() -> None:
    """Iterations computed in float32 would have errors of several hundredths."""
    tensors = [x.detach() for x in draw(130, 130, dtype=torch.float32)]
    attn = ea.create("nystromformer:n_landmarks=32:n_iterations=24")
    out = attn(*tensors)
    assert out.dtype == torch.float32
    assert_close(out.double(), attn(*(x.double() for x in tensors)), "24 steps", tolerance=1e-6)


@pytest.mark.parametrize("option", ["n_landmarks", "n_iterations"])
def test_options_below_one_are_refused(option: str) -> None:
    with pytest.raises(ea.UsageError, match=f"{option} must be at least 1, not 0"):
        ea.create(f"nystromformer:{option}=0")


def test_cost_includes_the_products_and_the_inverse() -> None:
    attn = ea.create("nystromformer:n_landmarks=8:n_iterations=6", dims=ea.Dims(head_dim=16, value_dim=48))
    assert attn.growth.cost(100, 200, False) == 100 * 8 + 8 * 200 + 8 * 8 + 6 * 4 * 8**3 / 64
    assert attn.growth.cost(4, 200, False) == 4 * 8 + 4 * 200 + 4 * 8 + 6 * 2 * 16 * 12 / 64


@pytest.mark.slow
@pytest.mark.parametrize("n", [16384, 16383])
def test_memory_is_close_to_that_of_outputs_and_gradients(n: int) -> None:
    """The weights of N x 64 take as much as one output, those of N x M 256 times as much."""
    attn = ea.create("nystromformer")
    q, k, v = (torch.randn(1, 4, n, 64, requires_grad=True) for _ in range(3))
    output, upstream = q.numel() * 4, torch.randn_like(q)
    with torch.no_grad():
        peak = measure_footprint(lambda: attn(q, k, v), device="cpu").peak
    step = measure_footprint(
        lambda: attn(q, k, v), lambda out: torch.autograd.grad(out, (q, k, v), upstream), device="cpu"
    )
    assert peak is not None
    assert step.peak is not None
    assert output < peak <= 1.2 * output
    assert 4 * output < step.peak <= 6 * output
