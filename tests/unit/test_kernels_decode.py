"""A few rows over a long cache: the same numbers as the oracle, and only where the kernel is meant to run."""

from __future__ import annotations

import pytest
import torch

from efficient_attn.kernels import decode, sdpa
from efficient_attn.kernels.dense import softmax_attention


def _draw(
    *, batch: int = 2, heads: int = 8, kv_heads: int = 2, m: int = decode.KEYS, width: int = 16
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, h, n, width, generator=generator) for h, n in ((heads, 1), (kv_heads, m), (kv_heads, m))]


def _allowed(m: int) -> torch.Tensor:
    return torch.ones(1, 1, 1, m, dtype=torch.bool)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("extra", [0, 1, 77])
def test_it_is_the_oracle(kv_heads: int, extra: int) -> None:
    q, k, v = _draw(kv_heads=kv_heads, m=decode.KEYS + extra)
    with torch.no_grad():
        out = sdpa.fused(q * 5, k, v)
    torch.testing.assert_close(out, softmax_attention(q * 5, k, v, _allowed(k.shape[2])), rtol=1e-4, atol=1e-5)


def test_it_reads_views_of_a_longer_cache() -> None:
    q, k, v = _draw(m=decode.KEYS + 100)
    short = slice(0, decode.KEYS)
    with torch.no_grad():
        out = sdpa.fused(q, k[:, :, short], v[:, :, short])
        torch.testing.assert_close(out, sdpa.fused(q, k[:, :, short].clone(), v[:, :, short].clone()))


def test_large_scores_stay_finite() -> None:
    q, k, v = _draw()
    with torch.no_grad():
        out = sdpa.fused(q * 1e4, k * 1e4, v)
    assert torch.isfinite(out).all()


def test_where_it_serves() -> None:
    q, k, v = _draw()
    rows = q.reshape(2, 2, 4, 16)
    with torch.no_grad():
        assert decode.serves(rows, k, v)
        assert not decode.serves(rows[:, :, :1], k, v)  # one row: nothing is shared
        assert not decode.serves(rows, k[:, :, :-1], v)  # short
        assert not decode.serves(rows.double(), k.double(), v)
        apart = k.transpose(1, 2).contiguous().transpose(1, 2)
        assert not decode.serves(rows, apart, v)  # [B, M, H, D] in memory: oneDNN is very slow with it
        assert not decode.serves(rows, k, apart)
    assert not decode.serves(rows, k, v.requires_grad_())  # it has no gradient


def test_a_gradient_still_flows_where_one_is_wanted() -> None:
    q, k, v = (x.requires_grad_() for x in _draw())
    sdpa.fused(q, k, v).sum().backward()
    assert q.grad is not None
    assert v.grad is not None


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_the_fused_kernel_agrees(kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = _draw(kv_heads=kv_heads)
    with torch.no_grad():
        fast = sdpa.fused(q, k, v)
        monkeypatch.setattr(decode, "serves", lambda *_: False)
        torch.testing.assert_close(fast, sdpa.fused(q, k, v), rtol=1e-4, atol=1e-5)
