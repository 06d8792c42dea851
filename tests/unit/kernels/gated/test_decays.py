"""Products of rows and keys with the decays between their positions equal the definition, also for extreme decays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from efficient_attn.kernels.gated.decays import MIN_LOGS, make_decay

EPS = {torch.float64: 1e-12, torch.float32: 1e-5}


def define_pairs(rows: Tensor, keys: Tensor, g: Tensor) -> Tensor:
    """``[n, c, R, c]`` from the sums of g between each pair, zero for later keys."""
    g = g.double().expand(keys.shape)
    weights = rows.new_zeros(*rows.shape[:3], keys.shape[1]).double()
    for r in range(keys.shape[1]):
        for i in range(r + 1):
            decay = g[:, i + 1 : r + 1].sum(1).exp()
            weights[:, r, :, i] = (rows[:, r].double() * (keys[:, i].double() * decay)[:, None]).sum(-1)
    return weights


def draw(c: int, width: int, dtype: torch.dtype, *, low: float) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(c + width)
    rows = torch.randn(2, c, 3, 5, generator=generator, dtype=dtype)
    keys = torch.randn(2, c, 5, generator=generator, dtype=dtype)
    return rows, keys, torch.rand(2, c, width, generator=generator, dtype=dtype) * low


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("low", [0.0, -0.5, -13.8])
@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("c", [8, 16, 64])
def test_pairs_equal_the_definition(c: int, width: int, low: float, dtype: torch.dtype) -> None:
    rows, keys, g = draw(c, width, dtype, low=low)
    got = make_decay(g).weigh_pairs(rows, keys).transpose(1, 2).tril().transpose(1, 2)
    torch.testing.assert_close(got.double(), define_pairs(rows, keys, g), rtol=EPS[dtype], atol=EPS[dtype])


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("low", [-1.0, -1e4, -1e30])
def test_decays_that_forget_everything_stay_finite(width: int, low: float) -> None:
    rows, keys, g = draw(64, width, torch.float32, low=low)
    decay = make_decay(g)
    weights = decay.weigh_pairs(rows, keys).transpose(1, 2).tril().transpose(1, 2)
    assert weights.isfinite().all()
    grads = decay.weigh_pairs_backward(torch.ones_like(weights).transpose(1, 2).tril().transpose(1, 2), rows, keys)
    assert all(x.isfinite().all() for x in (*grads, decay.from_start(keys), decay.to_end(keys)))
    clamped = g.clamp(min=MIN_LOGS[g.dtype]) if width > 1 else g
    torch.testing.assert_close(weights.double(), define_pairs(rows, keys, clamped), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("c", [8, 32])
def test_gradients_equal_those_of_the_definition(c: int, width: int) -> None:
    rows, keys, g = draw(c, width, torch.float64, low=-2.0)
    grad = torch.randn(2, c, 3, c, dtype=torch.float64).transpose(1, 2).tril().transpose(1, 2)
    rows.requires_grad_()
    keys.requires_grad_()
    want = torch.autograd.grad((define_pairs(rows, keys, g) * grad).sum(), (rows, keys))
    got = make_decay(g).weigh_pairs_backward(grad, rows.detach(), keys.detach())
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [1, 5])
def test_decays_from_the_start_and_to_the_end_meet(width: int) -> None:
    _, keys, g = draw(16, width, torch.float64, low=-0.5)
    decay, total = make_decay(g), g.sum(1).exp()
    after = torch.cat([g[:, 1:], torch.zeros_like(g[:, :1])], 1).flip(1).cumsum(1).flip(1).exp()
    torch.testing.assert_close(decay.from_start(keys), keys * g.cumsum(1).exp())
    torch.testing.assert_close(decay.to_end(keys), keys * after)
    state = torch.randn(2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(decay.over_all(state), state * total[:, :, None])
