"""Nystromformer: its limits, its segments under padding, what it refuses, what it holds in memory."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea
from efficient_attn.instruments.memory import measure_footprint, measure_training_footprint
from efficient_attn.testing.tensor_comparison import assert_close


def drawn(n: int = 60, m: int = 60, *, kv_heads: int = 2, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(n)
    sizes = ((2, n), (kv_heads, m), (kv_heads, m))
    return [torch.randn(2, h, x, 8, generator=g).to(dtype).requires_grad_() for h, x in sizes]


@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("landmarks", [60, 1000])
def test_a_landmark_for_every_position_is_full_attention(landmarks: int, kv_heads: int) -> None:
    tensors, full = drawn(kv_heads=kv_heads), ea.create("full")
    answers = []
    for attn in (ea.create("nystromformer", n_landmarks=landmarks, n_iterations=30), full):
        out = attn(*tensors)
        answers.append((out, *torch.autograd.grad(out.cos().sum(), tensors)))
    for got, want in zip(*answers, strict=True):
        assert_close(got, want, "the limit", tolerance=1e-6)


def test_six_steps_do_not_reach_the_limit() -> None:
    tensors = [x.detach() for x in drawn()]
    want = ea.create("full")(*tensors)
    off = {
        steps: float((ea.create("nystromformer", n_landmarks=60, n_iterations=steps)(*tensors) - want).abs().max())
        for steps in (6, 12, 20, 30)
    }
    assert off[6] > 1e-2
    assert off[6] > off[12] > off[20] > off[30]
    assert off[20] < 1e-2


def test_one_landmark_is_attention_of_the_mean_query() -> None:
    q, k, v = drawn(n=9)
    out = ea.create("nystromformer:n_landmarks=1:n_iterations=24")(q, k, v)
    want = ea.create("full")(q.mean(2, keepdim=True), k, v).expand(out.shape)
    assert_close(out, want, "one landmark: all rows alike")


def test_converged_weights_sum_to_one_where_queries_have_as_many_landmarks_as_keys() -> None:
    def ones(n: int, m: int, steps: int) -> torch.Tensor:
        q, k, v = (x.detach() for x in drawn(n, m))
        return ea.create("nystromformer", n_landmarks=8, n_iterations=steps)(q, k, torch.ones_like(v))

    assert_close(ones(60, 60, 30), torch.ones(2, 2, 60, 8, dtype=torch.float64), "30 steps", tolerance=1e-8)
    assert float((ones(60, 60, 1) - 1).abs().max()) > 1e-3
    assert float((ones(9, 60, 30) - 1).abs().max()) > 1e-3  # nine queries have five landmarks, in twos
    assert not ea.create("nystromformer:n_iterations=30").traits.normalised


LENGTHS = ((60, 60), (60, 23), (17, 59), (3, 60))  # of queries, of keys


@pytest.mark.parametrize("backend", ["landmarks", "dense"])
def test_each_row_has_segments_of_its_own_length(backend: str) -> None:
    attn = ea.create("nystromformer", n_landmarks=7, backend=backend)
    q, k, v = drawn()
    for first, second in ((a, b) for a in LENGTHS for b in LENGTHS):
        queries, keys = (torch.tensor(x) for x in zip(first, second, strict=True))
        out = attn(q, k, v, ea.Mask(query_lengths=queries, key_lengths=keys))
        for b, (n, m) in enumerate((first, second)):
            alone = attn(q[b : b + 1, :, :n], k[b : b + 1, :, :m], v[b : b + 1, :, :m])
            assert_close(out[b : b + 1, :, :n], alone, f"{n} queries over {m} keys, beside {first}, {second}")


def test_hidden_keys_are_as_if_removed() -> None:
    attn, (q, k, v) = ea.create("nystromformer", n_landmarks=7), drawn()
    kept = (torch.arange(60) * 7) % 5 != 0
    out = attn(q, k, v, ea.Mask(key_mask=kept.expand(2, -1)))
    assert_close(out, attn(q, k[:, :, kept], v[:, :, kept]), "holes")


def test_a_row_that_sees_nothing_is_zero_and_spoils_no_gradient() -> None:
    attn, tensors = ea.create("nystromformer", n_landmarks=7), drawn()
    out = attn(*tensors, ea.Mask(key_lengths=torch.tensor([0, 60]), query_lengths=torch.tensor([60, 0])))
    assert torch.equal(out, torch.zeros_like(out))
    out = attn(*tensors, ea.Mask(key_lengths=torch.tensor([0, 60])))
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert bool((out[1] != 0).all())
    for x, grad in zip("qkv", torch.autograd.grad(out.sin().sum(), tensors), strict=True):
        assert bool(grad.isfinite().all()), x
        assert torch.equal(grad[0], torch.zeros_like(grad[0])), x


def test_many_steps_on_float32_are_as_accurate_as_float32() -> None:
    """Computed in float32 they would be off by several hundredths."""
    tensors = [x.detach() for x in drawn(130, 130, dtype=torch.float32)]
    attn = ea.create("nystromformer:n_landmarks=32:n_iterations=24")
    out = attn(*tensors)
    assert out.dtype == torch.float32
    assert_close(out.double(), attn(*(x.double() for x in tensors)), "24 steps", tolerance=1e-6)


@pytest.mark.parametrize("option", ["n_landmarks", "n_iterations"])
def test_options_below_one(option: str) -> None:
    with pytest.raises(ea.UsageError, match=f"{option} must be at least 1, not 0"):
        ea.create(f"nystromformer:{option}=0")


def test_cost_counts_the_long_products_and_the_inverse() -> None:
    attn = ea.create("nystromformer:n_landmarks=8:n_iterations=6", dims=ea.Dims(head_dim=16, value_dim=48))
    assert attn.growth.cost(100, 200, False) == 100 * 8 + 8 * 200 + 8 * 8 + 6 * 4 * 8**3 / 64
    assert attn.growth.cost(4, 200, False) == 4 * 8 + 4 * 200 + 4 * 8 + 6 * 2 * 16 * 12 / 64


@pytest.mark.slow
@pytest.mark.parametrize("n", [16384, 16383])
def test_memory_is_that_of_the_results(n: int) -> None:
    """A softmax of N x 64 would be another output, one of N x M 256 of them."""
    attn = ea.create("nystromformer")
    q, k, v = (torch.randn(1, 4, n, 64, requires_grad=True) for _ in range(3))
    output, upstream = q.numel() * 4, torch.randn_like(q)
    with torch.no_grad():
        peak = measure_footprint(lambda: attn(q, k, v), device="cpu").peak
    step = measure_training_footprint(
        lambda: attn(q, k, v), lambda out: torch.autograd.grad(out, (q, k, v), upstream), device="cpu"
    )
    assert peak is not None
    assert step.peak is not None
    assert output < peak <= 1.2 * output
    assert 4 * output < step.peak <= 6 * output
