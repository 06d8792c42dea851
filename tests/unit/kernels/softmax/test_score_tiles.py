"""Attention with a soft cap, a window or a bias: any tile size equals the reference, caps of any size are accurate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import efficient_attn as ea
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.kernels.softmax import score_tiles
from efficient_attn.kernels.softmax.score_tiles import UNBOUNDED, BiasedInputs, ScoreOptions
from efficient_attn.kernels.softmax.sink import SinkInputs

B, H, G, D, E = 2, 4, 2, 5, 3
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def draw(n: int, m: int, size: float = 1.0, dtype: torch.dtype = torch.float64) -> Inputs:
    """q, k, v and a sink per row, which require gradients."""
    shapes = (B, H, n, D), (B, G, m, D), (B, G, m, E), (B, H, n)
    q, k, v, sink = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    q, k, v, sink = (x.to(dtype).requires_grad_() for x in (q * size, k, v, sink))
    return q, k, v, sink


def widen(inputs: Inputs) -> Inputs:
    q, k, v, sink = (x.detach().double().requires_grad_() for x in inputs)
    return q, k, v, sink


def plain(inputs: Inputs, bias: Tensor | None, valid: Tensor | None, options: ScoreOptions) -> Tensor:
    """By one mask over all pairs."""
    q, k, v, sink = inputs
    keys, values = (x.repeat_interleave(H // G, 1) for x in (k, v))
    scores = options.scale * (q @ keys.mT)
    scores = scores if options.cap == torch.inf else options.cap * (scores / options.cap).tanh()
    scores = scores if bias is None else scores + bias
    n, m = scores.shape[2:]
    distance = torch.arange(options.start, options.start + n)[:, None] - torch.arange(m)
    seen = ((distance <= options.back) & (distance >= -options.ahead)).expand(B, 1, n, m)
    if valid is not None:
        seen = seen & valid[:, None, None]
    scores = torch.cat((scores.masked_fill(~seen, -torch.inf), sink[..., None]), -1)
    return scores.softmax(-1)[..., :-1] @ values


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 13),
    m=st.integers(1, 13),
    tile=st.integers(1, 100),
    rows=st.integers(1, 8),
    keys=st.integers(1, 8),
    cap=st.sampled_from([0.5, 20.0, 5000.0]),  # with the last one, the level follows the scores
    causal=st.booleans(),
    hidden=st.booleans(),
    start=st.integers(-3, 9),
)
def test_any_tile_size_equals_reference(
    n: int, m: int, tile: int, rows: int, keys: int, cap: float, causal: bool, hidden: bool, start: int
) -> None:
    inputs = draw(n, m, 3.0)
    valid = torch.rand(B, m) < 0.6 if hidden else None
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TILE_ELEMENTS": tile, "TILE_ROWS": rows, "TILE_KEYS": keys}.items():
            patch.setattr(score_tiles, name, value)
        options = ScoreOptions(cap, 1.0, start, ahead=0 if causal else UNBOUNDED)
        got = score_tiles.attend(SinkInputs(*inputs, valid), options)
        want = plain(inputs, None, valid, options)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        grads = [torch.autograd.grad(x.cos().sum(), inputs) for x in (got, want)]
        for actual, expected in zip(*grads, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cap", [1.0, 50.0, 60.0, 61.0, 300.0, 1e6])
@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_caps_of_any_size_are_accurate_in_float32(cap: float, size: float) -> None:
    """Scores reach the cap from both sides, so that exponentials go from e^-cap to e^cap."""
    inputs = draw(40, 50, size, torch.float32)
    options = ScoreOptions(cap, 1.0, 3, ahead=0)
    got = score_tiles.attend(SinkInputs(*inputs, None), options)
    want = plain(widen(inputs), None, None, options)
    rough = 2e-5 if size * cap > 1e3 else 2e-6  # scores of hundreds are rounded by 1e-5
    torch.testing.assert_close(got.double(), want, rtol=0, atol=max(rough, 1e-3 * (size > 1 and cap > 1e3)))
    for actual in torch.autograd.grad(got.sum(), inputs):
        assert actual.isfinite().all()


def test_rows_with_all_scores_at_the_lower_cap_are_accurate() -> None:
    """Each exponential is e^-50; multiplied by another e^-50 it would underflow float32."""
    q, k, v, _ = draw(4, 30, dtype=torch.float32)
    q, k, sink = torch.full_like(q, 1e3), -torch.ones_like(k), torch.full((B, H, 4), -torch.inf)
    got = score_tiles.attend(SinkInputs(q, k, v, sink, None), ScoreOptions(50.0, 1.0, 0))
    torch.testing.assert_close(got, v.mean(2, keepdim=True).repeat_interleave(2, 1).expand_as(got))


@pytest.mark.parametrize("cap", [50.0, 500.0])
@pytest.mark.sampled(4)
def test_memory_grows_linearly_with_length(cap: float) -> None:
    def measure(n: int) -> int:
        q, k, v, grad = (torch.randn(1, 2, n, 16) for _ in range(4))
        leaves = q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), torch.zeros(1, 2, n, requires_grad=True)
        peak = measure_footprint(
            lambda: score_tiles.attend(SinkInputs(*leaves, None), ScoreOptions(cap, 0.25, 0, ahead=0)),
            lambda out: torch.autograd.grad(out, leaves, grad),
            device="cpu",
        ).peak
        assert peak is not None
        return peak

    one, two, four = (measure(n) for n in (1024, 2048, 4096))
    assert four - two < 2.2 * (two - one)  # in addition to tiles, whose size is fixed
    assert four < 4096 * 4096


def test_a_second_derivative_is_refused() -> None:
    inputs = draw(3, 3)
    out = score_tiles.attend(SinkInputs(*inputs, None), ScoreOptions(5.0, 1.0, 0))
    (first,) = torch.autograd.grad(out.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(ea.UnsupportedError, match="attention under a soft cap has no second derivative"):
        first.sum().backward()


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 13),
    m=st.integers(1, 13),
    tile=st.integers(1, 100),
    rows=st.integers(1, 8),
    keys=st.integers(1, 8),
    kind=st.sampled_from(["none", "cap", "bias", "bias of a batch", "hiding bias"]),
    back=st.sampled_from([0, 1, 3, 20, UNBOUNDED]),
    ahead=st.sampled_from([0, 2, UNBOUNDED]),
    hidden=st.booleans(),
    start=st.integers(-3, 9),
)
def test_windows_and_biases_equal_one_mask_over_all_pairs(
    n: int, m: int, tile: int, rows: int, keys: int, kind: str, back: int, ahead: int, hidden: bool, start: int
) -> None:
    inputs = draw(n, m, 3.0)
    valid = torch.rand(B, m) < 0.6 if hidden else None
    options = ScoreOptions(5.0 if kind == "cap" else torch.inf, 0.5, start, back, ahead)
    bias = None
    if "bias" in kind:
        bias = torch.randn(B if "batch" in kind else 1, H, n, m, dtype=torch.float64) * 2
        bias = bias.masked_fill(torch.rand(bias.shape) < 0.3, -torch.inf) if "hiding" in kind else bias
        bias.requires_grad_()
    leaves = inputs if bias is None else (*inputs, bias)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TILE_ELEMENTS": tile, "TILE_ROWS": rows, "TILE_KEYS": keys}.items():
            patch.setattr(score_tiles, name, value)
        if bias is None:
            got = score_tiles.attend(SinkInputs(*inputs, valid), options)
        else:
            got = score_tiles.attend_biased(BiasedInputs(*inputs, bias, valid), options)
        want = plain(inputs, bias, valid, options)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        grads = [torch.autograd.grad(x.cos().sum(), leaves) for x in (got, want)]
    for actual, expected in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def test_a_query_without_keys_gets_zeros() -> None:
    q, k, v, sink = draw(6, 6)
    none = torch.full_like(sink, -torch.inf)
    bias = torch.zeros(1, H, 6, 6, dtype=torch.float64)
    bias[:, :, 2] = -torch.inf
    out = score_tiles.attend_biased(BiasedInputs(q, k, v, none, bias, None), ScoreOptions(torch.inf, 1.0, 0))
    assert not out[:, :, 2].any()
    assert out.isfinite().all()
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(x.isfinite().all() for x in grads)


@pytest.mark.parametrize("size", [1.0, 300.0])
def test_scores_without_a_bound_are_accurate_in_float32(size: float) -> None:
    inputs = draw(40, 50, size, torch.float32)
    options = ScoreOptions(torch.inf, 0.5, 10, 12, 0)
    got = score_tiles.attend(SinkInputs(*inputs, None), options)
    want = plain(widen(inputs), None, None, options)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-4)


def test_a_window_skips_tiles() -> None:
    """Ten times the keys take no more memory, and products with visible tiles only."""
    q, k, v, sink = (torch.randn(s) for s in ((1, 1, 4096, 8), (1, 1, 4096, 8), (1, 1, 4096, 8), (1, 1, 4096)))
    options = ScoreOptions(torch.inf, 1.0, 0, 100, 0)
    products: list[int] = []

    def count(a: Tensor, b: Tensor, buffer: Tensor) -> Tensor:
        products.append(a.shape[1] * b.shape[2])
        return original(a, b, buffer)

    original = score_tiles._multiply_into
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_tiles, "_multiply_into", count)
        score_tiles.attend(SinkInputs(q, k, v, sink, None), options)
    assert sum(products) < 4096 * (100 + score_tiles.TILE_ROWS + 1)
