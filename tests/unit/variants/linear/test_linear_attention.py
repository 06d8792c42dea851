"""Linear mechanisms compared with their papers' definitions, independent of their oracles, and their memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.mechanism import Attention
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.testing.tensor_comparison import assert_close

LINEAR = [*ea.names(family="linear"), "random_feature:gated=true", "performer:kind=trigonometric"]


def make(spec: str, n: int = 40, *, heads: int = 3, width: int = 8) -> Attention:
    return ea.create(spec, dims=ea.Dims(heads=heads, head_dim=width, max_len=n)).double()


def tensors(n: int = 40, *, heads: int = 3, width: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, n, width, generator=g, dtype=torch.float64) for _ in range(3))
    return q, k, v


CAUSAL = ea.Mask(causal=True)
FAR = 1 << 14


def test_retention_equals_its_recurrence() -> None:
    """S <- gamma S + k v^T, o = q S / sqrt(D): the paper's recurrent form, head by head."""
    q, k, v = tensors()
    want = torch.zeros_like(v)
    for h, gamma in enumerate((1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128)):
        state = torch.zeros(2, 8, 8, dtype=torch.float64)
        for t in range(40):
            state = gamma * state + k[:, h, t, :, None] * v[:, h, t, None]
            want[:, h, t] = (q[:, h, t, None] @ state)[:, 0] / 8**0.5
    assert_close(make("retention")(q, k, v, CAUSAL), want, "retention")


def test_retention_decays_are_accurate_over_65536_positions() -> None:
    """After 65536 positions, head 12 keeps exp(-0.5) of a value, and head 0 less than the smallest float."""
    n = 1 << 16
    attn = ea.create("retention")
    q, k, v = torch.ones(1, 13, 1, 1), torch.zeros(1, 13, n, 1), torch.ones(1, 13, n, 1)
    k[:, :, 0] = 1
    out = attn(q, k, v, CAUSAL).flatten()
    gamma = 1 - 2.0 ** (-5 - torch.arange(13, dtype=torch.float64))
    assert_close(out.double(), gamma ** (n - 1), "remaining weights", tolerance=1e-6)
    assert out[12] > 0.6


def test_gated_attention_equals_its_recurrence() -> None:
    """S <- g S + (1 - g) phi(k) v^T, z likewise, o = phi(q) S / phi(q) z."""
    q, k, v = tensors()
    gate = torch.randn(2, 3, 40, dtype=torch.float64) + 2
    attn = make("random_feature:n_features=200:gated=true")
    phi = attn.feature_map  # pyright: ignore[reportAttributeAccessIssue]
    x, y, g = phi(q)[0], phi(k)[0], gate.sigmoid()
    state, total, want = torch.zeros(2, 3, 400, 8, dtype=torch.float64), torch.zeros(2, 3, 400), []
    for t in range(40):
        keep = g[:, :, t, None]
        state = keep[..., None] * state + (1 - keep)[..., None] * y[:, :, t, :, None] * v[:, :, t, None]
        total = keep * total + (1 - keep) * y[:, :, t]
        want.append((x[:, :, t, None] @ state)[:, :, 0] / (x[:, :, t] * total).sum(-1, keepdim=True))
    assert_close(attn(q, k, v, CAUSAL, gate=gate), torch.stack(want, 2), "gated", tolerance=1e-9)


def test_saturated_gates_give_finite_outputs_and_gradients() -> None:
    q, k, v = tensors()
    attn = make("random_feature:n_features=200:gated=true")
    for logit in (-1e4, 1e4):
        gate = torch.full((2, 3, 40), logit, dtype=torch.float64).requires_grad_()
        out = attn(q, k, v, CAUSAL, gate=gate)
        assert torch.isfinite(out).all()
        assert torch.isfinite(torch.autograd.grad(out.sum(), gate)[0]).all()
        if logit < 0:
            assert_close(out, v, "a closed gate gives the newest value")


def test_cosformer_equals_its_formula() -> None:
    q, k, v = tensors()
    i = torch.arange(40).double()
    weights = (q.relu() @ k.relu().mT) * torch.cos(math.pi / 2 * (i[:, None] - i) / 64)
    want = weights @ v / weights.sum(-1, keepdim=True)
    assert_close(make("cosformer", 64)(q, k, v), want, "cosformer")


def test_cosformer_refuses_positions_beyond_max_len() -> None:
    with pytest.raises(ea.UsageError, match="needs dims with max_len"):
        ea.create("cosformer")
    attn, (q, k, v) = make("cosformer", 32), tensors()
    for mask in (ea.Mask(), CAUSAL):
        with pytest.raises(ea.UsageError, match=r"made for 32 positions .* got 40"):
            attn(q, k, v, mask)
    attn(q[:, :, :32], k[:, :, :32], v[:, :, :32])
    with pytest.raises(ea.UsageError, match="got 33"):
        attn(q[:, :, :1], k[:, :, :10], v[:, :, :10], ea.Mask(query_start=32))
    state = attn.init_state(2, 40, torch.float64)
    _, state = attn.step(q[:, :, :32], k[:, :, :32], v[:, :, :32], state)
    with pytest.raises(ea.UsageError, match="got 33"):
        attn.step(q[:, :, :1], k[:, :, :1], v[:, :, :1], state)


@pytest.mark.parametrize("spec", ["performer", "random_feature"])
def test_random_features_depend_on_the_seed_and_can_be_redrawn(spec: str) -> None:
    q, k, v = tensors()
    attn = make(spec)
    first = attn(q, k, v)
    assert torch.equal(attn(q, k, v), first)
    attn.redraw(5)  # pyright: ignore[reportCallIssue]
    other = attn(q, k, v)
    assert not torch.allclose(other, first)
    again = ea.create(spec, dims=ea.Dims(heads=3, head_dim=8), seed=5).double()
    assert torch.equal(again(q, k, v), other)


@pytest.mark.parametrize("spec", ["performer", "random_feature"])
def test_invalid_options_of_random_features_are_reported(spec: str) -> None:
    with pytest.raises(ea.UsageError, match=f"{spec}: needs dims with head_dim"):
        ea.create(spec)
    with pytest.raises(ea.UsageError, match="n_features must be at least 1, not 0"):
        ea.create(spec, n_features=0, dims=ea.Dims(head_dim=8))
    with pytest.raises(ea.UsageError, match="was created for head_dim=8, got 4"):
        ea.create(spec, dims=ea.Dims(head_dim=8))(*tensors(width=4))


def test_many_features_approximate_softmax() -> None:
    q, k, v = tensors()
    q, k = q / 2, k / 2
    exact = ea.attention(q, k, v, is_causal=True)
    near = ea.create("performer:n_features=20000:kind=hyperbolic", dims=ea.Dims(head_dim=8)).double()
    assert (near(q, k, v, CAUSAL) - exact).norm() / exact.norm() < 0.05
    unit = [torch.nn.functional.normalize(x, dim=-1) * 8**0.25 for x in (q, k)]
    exact = ea.attention(*unit, v, is_causal=True)
    near = ea.create("random_feature:n_features=20000", dims=ea.Dims(head_dim=8)).double()
    assert (near(q, k, v, CAUSAL) - exact).norm() / exact.norm() < 0.05


@pytest.mark.parametrize("spec", [s for s in LINEAR if "gated" not in s])
def test_state_size_is_independent_of_the_length(spec: str) -> None:
    sizes = set()
    for n in (10, 300):
        attn = ea.create(spec, dims=ea.Dims(heads=2, head_dim=8, max_len=400))
        q, k, v = tensors(n, heads=2)
        state = attn.absorb(k.float(), v.float(), attn.init_state(2, 400))
        _, state = attn.step(q[:, :, :1].float(), k[:, :, :1].float(), v[:, :, :1].float(), state)
        sizes.add(ea.state_bytes(state))
    assert len(sizes) == 1
    width = attn.feature_map.width(8)  # pyright: ignore
    least = 2 * 2 * width * (8 + 1) * (8 if attn.feature_map.exact else 4)  # pyright: ignore
    assert least <= sizes.pop() <= least + 2 * 2 * 8  # at most a reference of 8 bytes for weights


def test_long_decoding_keeps_references_small() -> None:
    """Each step moves the references, so that exponents of old positions stay small."""
    attn = ea.create("retention", dims=ea.Dims(heads=1, head_dim=8))
    q, k, v = (x[:, :1].float() for x in tensors(40))
    state = attn.init_state(2, 10**6)
    for _ in range(300):
        _, state = attn.step(q, k, v, state)
    assert state.sums[0].reference.abs().max() < 2
    assert state.length == 12_000


def peaks(spec: str, causal: bool, n: int) -> Tensor:
    """The bytes of an output, the peak of a forward pass and of one with its backward pass, for four heads."""
    width = 32 if spec == "taylor" else 64  # its number of features is the square of the width
    attn = ea.create(spec, dims=ea.Dims(heads=4, head_dim=width, max_len=FAR))
    mask, leaves = ea.Mask(causal=causal), [torch.randn(1, 4, n, width, requires_grad=True) for _ in range(3)]
    upstream = torch.randn_like(leaves[0])

    def forward() -> Tensor:
        return attn(*leaves, mask)

    def backward(out: Tensor) -> object:
        return torch.autograd.grad(out, leaves, upstream)

    with torch.no_grad():
        inference = measure_footprint(forward, device="cpu").peak
    training = measure_footprint(forward, backward, device="cpu").peak
    assert inference is not None
    assert training is not None
    return torch.tensor([upstream.nbytes, inference, training])


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", [s for s in LINEAR if "gated" not in s])
def test_memory_is_a_few_outputs_at_16384_positions(spec: str, causal: bool) -> None:
    """Extrapolated linearly from two shorter lengths, because the profiler is slow at the full length."""
    if not causal and not ea.create(spec, dims=ea.Dims(head_dim=64, max_len=FAR)).traits.bidirectional:
        pytest.skip("causal only")
    short, long = (peaks(spec, causal, n) for n in (FAR // 8, FAR // 4))
    added = long - short
    assert (added <= torch.tensor([1, 1.25, 4.5]) * added[0]).all(), f"more positions add {added.tolist()} bytes"
    output, inference, training = (short + 7 * added).tolist()
    assert output <= inference <= 2 * output, f"forward: {inference / output:.2f} outputs"
    assert 4 * output <= training <= 6 * output, f"forward and backward: {training / output:.2f} outputs"


@pytest.mark.parametrize("causal", [False, True])
def test_clamped_rows_counts_rows_with_cancelling_weights(causal: bool) -> None:
    """With one direction of norm 1, weights are cosines of distances."""
    attn, mask = (
        ea.create("performer:kind=trigonometric:n_features=1", dims=ea.Dims(head_dim=1)),
        ea.Mask(causal=causal),
    )
    attn.directions.fill_(1)  # pyright: ignore
    k = torch.tensor([0.0, math.pi]).view(1, 1, 2, 1)
    q, v = torch.full((1, 1, 2, 1), math.pi / 2), torch.ones(1, 1, 2, 1)
    assert attn.clamped_rows(q, k, v, mask) == 2  # cos(pi/2) for both keys
    q[:, :, 0] = 0
    assert attn.clamped_rows(q, k, v, mask) == 1
    assert torch.isfinite(attn(q, k, v, mask)).all()
    assert ea.create("linear").clamped_rows(q, k, v, mask) is None
    empty = ea.Mask(causal=causal, key_lengths=torch.tensor([0]))
    assert attn.clamped_rows(q, k, v, empty) == 0
