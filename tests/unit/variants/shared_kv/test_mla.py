"""Multi-head latent attention: absorbed and expanded forms, the cache of latents, and invalid inputs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import efficient_attn as ea
from efficient_attn.kernels.native.building import why_no_native
from efficient_attn.kernels.softmax import decode, latent

HEADS, WIDTH, VALUE, LATENT = 4, 12, 10, 20


def make(*, rotary_dim: int = 4, backend: str | None = None) -> ea.Attention:
    dims = ea.Dims(heads=HEADS, head_dim=WIDTH, value_dim=VALUE)
    return ea.create("mla", latent_dim=LATENT, rotary_dim=rotary_dim, dims=dims, backend=backend, seed=3).double()


def draw(n: int, m: int, *, rotary_dim: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = (2, HEADS, n, WIDTH), (2, 1, m, LATENT + rotary_dim)
    q, k = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes)
    return q, k


def reference(attn: ea.Attention, q: Tensor, latents: Tensor, causal: bool) -> Tensor:
    """The paper's equations, in a loop over heads and positions."""
    out = torch.zeros(2, HEADS, q.shape[2], VALUE, dtype=torch.float64)
    for b in range(2):
        for h in range(HEADS):
            keys = [torch.cat([attn.w_uk[h] @ row[:LATENT], row[LATENT:]]) for row in latents[b, 0]]
            values = [attn.w_uv[h] @ row[:LATENT] for row in latents[b, 0]]
            for i in range(q.shape[2]):
                seen = len(keys) - q.shape[2] + i + 1 if causal else len(keys)
                scores = torch.stack([q[b, h, i] @ key for key in keys[:seen]]) / WIDTH**0.5
                out[b, h, i] = torch.softmax(scores, 0) @ torch.stack(values[:seen])
    return out


@pytest.mark.parametrize("backend", ["adaptive", "absorbed", "expanded", "dense"])
@pytest.mark.parametrize("rotary_dim", [0, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_all_backends_equal_the_papers_equations(backend: str, rotary_dim: int, causal: bool) -> None:
    attn = make(rotary_dim=rotary_dim, backend=backend)
    q, latents = draw(5, 7, rotary_dim=rotary_dim)
    with torch.no_grad():
        got = attn(q, latents, None, ea.Mask(causal=causal))
        torch.testing.assert_close(got, reference(attn, q, latents, causal), rtol=0, atol=1e-13)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 11), st.integers(0, 99))
def test_absorbed_and_expanded_give_equal_outputs(n: int, m: int, rotary_dim: int, seed: int) -> None:
    q, latents = draw(n, m, rotary_dim=rotary_dim, seed=seed)
    outs = [
        make(rotary_dim=rotary_dim, backend=b)(q, latents, None, ea.Mask(causal=m >= n))
        for b in ("absorbed", "expanded")
    ]
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=1e-12)


def test_heads_are_expanded_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    q, latents = draw(9, 9)
    attn = make(backend="expanded")
    want = attn(q, latents, None)
    calls: list[int] = []
    real = latent.attend
    monkeypatch.setattr(latent, "attend", lambda q, k, *rest: calls.append(k.shape[1]) or real(q, k, *rest))
    monkeypatch.setattr(latent, "MAX_EXPANDED_ELEMENTS", 2 * 9 * (WIDTH + VALUE) * 3)  # three heads' keys and values
    torch.testing.assert_close(attn(q, latents, None), want, rtol=0, atol=1e-14)
    assert calls == [3, 1]


@pytest.mark.parametrize(("n", "m", "form"), [(1, 500, "absorbed"), (500, 500, "expanded"), (1, 1, "expanded")])
def test_adaptive_selects_the_form_with_fewer_multiply_adds(monkeypatch, n: int, m: int, form: str) -> None:
    attn, (q, latents) = make(), draw(n, m)
    selected: list[str] = []
    for name in ("absorbed", "expanded"):
        real = getattr(latent, f"attend_{name}")
        monkeypatch.setattr(
            latent, f"attend_{name}", lambda *a, name=name, real=real, **b: selected.append(name) or real(*a, **b)
        )
    attn(q, latents, None, ea.Mask(causal=True))
    assert selected == [form]


@pytest.mark.skipif(why_no_native("decode") is not None, reason=why_no_native("decode") or "")
def test_the_cpp_backend_reads_latents_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    attn, (q, latents) = make(backend="cpp"), draw(1, 300)
    shapes: list[tuple[int, ...]] = []
    real = decode.attend_in_one_pass
    monkeypatch.setattr(decode, "attend_in_one_pass", lambda *args: shapes.append(args[0].shape) or real(*args))
    with torch.no_grad():
        out = attn(q, latents, None, ea.Mask(causal=True))
        torch.testing.assert_close(out, make()(q, latents, None, ea.Mask(causal=True)), rtol=0, atol=1e-13)
    assert shapes == [(2, 1, HEADS, LATENT + 4)]


def test_costs_equal_counted_multiply_adds() -> None:
    """An absorbed step after m keys, and an expanded forward pass, in units of a pair's multiply-adds."""
    attn, expanded_width = make(), WIDTH - 4
    pair = WIDTH + VALUE
    step = 100 * (LATENT + 4 + LATENT) + LATENT * (expanded_width + VALUE)
    assert attn.growth.step_cost(100) == step / pair
    whole = 100 * 101 // 2 * pair + 100 * LATENT * (expanded_width + VALUE)
    assert attn.growth.cost(100, 100, True) == whole / pair
    assert make(backend="absorbed").growth.cost(100, 100, True) > attn.growth.cost(100, 100, True)


def test_the_state_stores_latents_only() -> None:
    attn, (q, latents) = make(), draw(9, 9)
    state = attn.init_state(2, 9, torch.float64)
    assert ea.state_bytes(state) == 2 * 9 * (LATENT + 4) * 8
    want = attn(q, latents, None, ea.Mask(causal=True))
    state = attn.absorb(latents[:, :, :3], None, state)
    for t in range(3, 9):
        out, state = attn.step(q[:, :, t : t + 1], latents[:, :, t : t + 1], None, state)
        torch.testing.assert_close(out, want[:, :, t : t + 1], rtol=0, atol=1e-13)
    assert ea.state_bytes(state) == 2 * 9 * (LATENT + 4) * 8
    assert torch.equal(state.filled(), latents)


def test_an_absorbed_step_allocates_no_keys_or_values() -> None:
    from efficient_attn.instruments.memory import measure_footprint

    attn = ea.create("mla:latent_dim=64", dims=ea.Dims(heads=16, head_dim=32))
    latents, q = torch.randn(1, 1, 4096, 64), torch.randn(1, 16, 1, 32)
    with torch.no_grad():
        peak = measure_footprint(lambda: attn(q, latents, None), device="cpu").peak
        expanded = ea.create("mla:latent_dim=64:backend=expanded", dims=ea.Dims(heads=16, head_dim=32))
        expanded_peak = measure_footprint(lambda: expanded(q, latents, None), device="cpu").peak
    assert peak is not None
    assert expanded_peak is not None
    assert peak < 4 * 16 * 4096 * 4  # a few times the scores of 16 heads; the keys of one head would take 2^19 bytes
    assert expanded_peak > 2 * peak


def test_projections_have_the_papers_size_and_depend_on_the_seed() -> None:
    attn, same, other = (ea.create("mla", dims=ea.Dims(heads=8, head_dim=32), seed=s) for s in (1, 1, 2))
    assert attn.w_uk.shape == attn.w_uv.shape == (8, 32, 128)  # the latent has the width of four heads, as in the paper
    assert torch.equal(attn.w_uk, same.w_uk)
    assert not torch.equal(attn.w_uk, other.w_uk)
    assert attn.key_dim == 128
    assert abs(float(attn.w_uk.detach().var()) * 128 - 1) < 0.05


@pytest.mark.parametrize(
    ("options", "dims", "message"),
    [
        ({}, {}, "needs dims with heads and head_dim"),
        ({"latent_dim": 0}, {"heads": 2, "head_dim": 8}, "latent_dim must be at least 1"),
        ({"rotary_dim": 8}, {"heads": 2, "head_dim": 8}, "rotary_dim=8 must be below head_dim=8"),
        ({}, {"heads": 2, "head_dim": 8, "kv_heads": 2}, "one latent for all heads"),
    ],
)
def test_invalid_options_and_dims_are_reported(options: dict[str, int], dims: dict[str, int], message: str) -> None:
    with pytest.raises(ea.UsageError, match=message):
        ea.create("mla", dims=ea.Dims(**dims), **options)


def test_invalid_tensors_are_reported() -> None:
    attn, (q, latents) = make(), draw(3, 3)
    with pytest.raises(ea.UsageError, match="pass None as v"):
        attn(q, latents, latents)
    with pytest.raises(ea.UsageError, match=r"requires \[B, 1, M, 24\]"):
        attn(q, latents[..., :-1], None)
    with pytest.raises(ea.UsageError, match="kv_heads=1"):
        attn(q, latents.expand(-1, 4, -1, -1), None)
    with pytest.raises(ea.UsageError, match="v is missing"):
        ea.create("full")(q, q, None)
