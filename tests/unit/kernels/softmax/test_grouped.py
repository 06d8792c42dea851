"""Grouped heads under masks of their rows' own: torch's gradient without a copy of the keys for each head."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import efficient_attn as ea
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.kernels.softmax import grouped

SCALE = 0.3


def drawn(*, heads: int = 8, n: int = 40, m: int = 40, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (2, heads, n, 16), (2, 1, m, 16), (2, 1, m, 16)
    return [torch.randn(*s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in sizes]


def plainly(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool) -> Tensor:
    k, v = (x.expand(-1, q.shape[1], -1, -1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=causal, scale=SCALE)


def staircase(n: int, m: int) -> Tensor:
    return (torch.arange(m) <= torch.arange(n)[:, None] + 3).expand(2, 1, n, m).clone()


@pytest.mark.parametrize("threads", [1, 5, 99])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [2, 3, 8])
def test_gradients_are_those_of_torch(monkeypatch, heads: int, masked: bool, threads: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    leaves = drawn(heads=heads, m=50 if masked else 40)
    allowed = staircase(40, 50) if masked else None
    if allowed is not None:
        allowed[1, :, :, 5:9] = False
    ours = grouped.attend(*leaves, allowed, not masked, SCALE)
    theirs = plainly(*leaves, allowed, not masked)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got, want = (torch.autograd.grad((out * weights).sum(), leaves) for out in (ours, theirs))
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_rows_that_see_nothing_are_zero_and_give_no_gradient() -> None:
    leaves = drawn()
    allowed = staircase(40, 40)
    allowed[:, :, 7] = False
    out = grouped.attend(*leaves, allowed, False, SCALE)
    assert torch.equal(out[:, :, 7], torch.zeros_like(out[:, :, 7]))
    by_q, by_k, by_v = torch.autograd.grad(out.sum(), leaves)
    assert torch.equal(by_q[:, :, 7], torch.zeros_like(by_q[:, :, 7]))
    assert all(torch.isfinite(x).all() for x in (by_k, by_v))


def test_strides_do_not_matter() -> None:
    leaves = drawn()
    wide = [torch.stack([x, x + 1], -1)[..., 0] for x in leaves]
    got = grouped.attend(*wide, None, True, SCALE)
    want = grouped.attend(*leaves, None, True, SCALE)
    assert torch.equal(got, want)
    for mine, other in zip(
        torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_single(dtype: torch.dtype) -> None:
    leaves = drawn(heads=32, dtype=dtype)
    want = torch.autograd.grad(plainly(*(x.double() for x in leaves), None, True).sum(), leaves)
    got = torch.autograd.grad(grouped.attend(*leaves, None, True, SCALE).sum(), leaves)
    for mine, other in zip(got, want, strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - other.double()).norm() < 8 * torch.finfo(dtype).eps * other.double().norm()


def test_no_head_has_keys_of_its_own() -> None:
    """With 32 heads on one key-value head, gradients by keys and values repeated for each would be 64 of them."""
    q, k, v = drawn(heads=32, n=4, m=4096, dtype=torch.float32)

    def train(attend) -> None:
        torch.autograd.grad(attend(q, k, v, None, True, SCALE).sum(), [q, k, v])

    def theirs(q: Tensor, k: Tensor, v: Tensor, allowed: None, causal: bool, _: float) -> Tensor:
        return plainly(q, k, v, allowed, causal)

    ours, torchs = (measure_footprint(lambda f=f: train(f), device="cpu").peak for f in (grouped.attend, theirs))
    assert ours is not None
    assert torchs is not None
    assert torchs > 60 * k.nbytes
    assert ours < 16 * k.nbytes


def test_a_second_derivative_is_refused() -> None:
    leaves = drawn()
    out = grouped.attend(*leaves, None, True, SCALE)
    (by_q,) = torch.autograd.grad((out**2).sum(), leaves[:1], create_graph=True)
    with pytest.raises(ea.UnsupportedError, match="no second derivative; backend=dense has one"):
        by_q.sum().backward()
