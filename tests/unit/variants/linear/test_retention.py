"""Retention compared with a transcription of the paper: Sun et al. 2023, arXiv:2307.08621, section 2."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.testing.tensor_comparison import assert_close, assert_finite

CAUSAL = ea.Mask(causal=True)
HEADS, WIDTH, VALUES = 4, 16, 5
LENGTHS = (1, 2, 64, 200)


def draw(n: int, *, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(n)
    widths = (WIDTH, WIDTH, VALUES)
    q, k, v = (torch.randn(2, HEADS, n, w, generator=g, dtype=torch.float64) for w in widths)
    return scale * q, scale * k, v


def parallel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(1) Q K^T / sqrt(d); (2) D_nm / sqrt(sum_i D_ni); (3) R_nm / max(|sum_i R_ni|, 1)."""
    n, d = q.shape[2:]
    out = torch.zeros_like(v)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            gamma = 1 - 2 ** (-5 - h)
            rows = [[gamma ** (i - j) if i >= j else 0.0 for j in range(n)] for i in range(n)]
            decay = torch.tensor(rows, dtype=torch.float64)
            decay = decay / decay.sum(1, keepdim=True).sqrt()
            scores = q[b, h] @ k[b, h].T / math.sqrt(d) * decay
            scores = scores / torch.clamp(scores.sum(1, keepdim=True).abs(), min=1)
            out[b, h] = scores @ v[b, h]
    return out


def recurrent(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same from S_n = gamma S_(n-1) + K_n^T V_n, with recurrent sums of keys and of decays."""
    d = q.shape[3]
    out = torch.zeros_like(v)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            gamma, state, keys, decays = 1 - 2 ** (-5 - h), torch.zeros(d, v.shape[3]).to(q), torch.zeros(d).to(q), 0.0
            for n in range(q.shape[2]):
                state = gamma * state + torch.outer(k[b, h, n], v[b, h, n])
                keys, decays = gamma * keys + k[b, h, n], gamma * decays + 1
                row = q[b, h, n] / math.sqrt(d) / math.sqrt(decays)
                out[b, h, n] = (row @ state) / max(abs(float(row @ keys)), 1)
    return out


def make(backend: str | None = None) -> ea.Attention:
    return ea.create("retention:normalised=true", backend=backend)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_all_forms_of_normalised_retention_equal_the_paper(n: int, scale: float) -> None:
    q, k, v = draw(n, scale=scale)
    want = parallel(q, k, v)
    assert_close(recurrent(q, k, v), want, "the transcriptions")
    assert_close(make("dense")(q, k, v, CAUSAL), want, "dense")
    assert_close(make()(q, k, v, CAUSAL), want, "chunked")
    for split in ([1] * n, [n - n // 3, *[1] * (n // 3)]):
        attn, rows = make(), []
        state = attn.init_state(2, n, torch.float64)
        for part in zip(*(x.split(split, 2) for x in (q, k, v)), strict=True):
            out, state = attn.step(*part, state)
            rows.append(out)
        assert_close(torch.cat(rows, 2), want, f"steps of {split[:3]}..")


def test_both_normalisations_change_the_result() -> None:
    """Without step 2 the error exceeds the norm of the result; without step 3 it exceeds 1% of it."""
    q, k, v = draw(64)
    plain, want = ea.create("retention"), parallel(q, k, v)
    numerators, totals = plain(q, k, v, CAUSAL), plain(q, k, torch.ones_like(v), CAUSAL)
    gamma = (1 - 2.0 ** (-5 - torch.arange(HEADS, dtype=torch.float64)))[:, None]
    roots = ((1 - gamma ** torch.arange(1, 65)) / (1 - gamma)).sqrt()[..., None]
    assert_close(numerators / torch.maximum(totals.abs(), roots), want, "both normalisations")
    assert (numerators / totals.abs().clamp(min=1) - want).norm() > want.norm()
    assert (numerators / roots - want).norm() > 0.01 * want.norm()


@pytest.mark.parametrize("backend", [None, "dense"])
def test_masked_keys_do_not_contribute_decay(backend: str | None) -> None:
    """A row padded on the left or right equals the row without padding."""
    q, k, v = draw(40)
    alone = parallel(*(x[:1, :, :30] for x in (q, k, v)))
    right = make(backend)(q, k, v, ea.Mask(causal=True, key_lengths=torch.tensor([30, 40])))
    assert_close(right[:1, :, :30], alone, "padded on the right")
    shifted = [torch.cat([torch.full_like(x[:1, :, :10], 7), x[:1, :, :30]], 2) for x in (q, k, v)]
    left = make(backend)(*shifted, ea.Mask(causal=True, key_mask=(torch.arange(40) >= 10)[None]))
    assert_close(left[:, :, 10:], alone, "padded on the left")
    assert not left[:, :, :10].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rows_far_from_all_keys_are_finite(dtype: torch.dtype) -> None:
    n = 6000
    q, k, v = (x.to(dtype).expand(2, HEADS, n, -1) for x in draw(1))
    lengths = torch.tensor([1, n])
    out = make()(q, k, v, ea.Mask(causal=True, key_lengths=lengths))
    assert_finite(out, "rows after the only key")
    assert_close(out[0, 0, -1], torch.zeros_like(out[0, 0, -1]), "the fastest head's last row", tolerance=1e-10)


def test_gradients_equal_the_paper() -> None:
    q, k, v = (x.requires_grad_() for x in draw(50))
    weight = torch.randn(2, HEADS, 50, VALUES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    want = torch.autograd.grad((parallel(q, k, v) * weight).sum(), (q, k, v))
    for backend in ("chunked", "dense"):
        got = torch.autograd.grad((make(backend)(q, k, v, CAUSAL) * weight).sum(), (q, k, v))
        for name, g, w in zip("qkv", got, want, strict=True):
            assert_close(g, w, f"{backend}, gradient by {name}")
