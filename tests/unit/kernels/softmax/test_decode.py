"""A few rows over a long cache: the same numbers as the oracle, and only where the kernel is meant to run."""

from __future__ import annotations

import pytest
import torch
from forced_choice import force_implementation

import efficient_attn as ea
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.dense import softmax_attention
from efficient_attn.kernels.native.building import why_no_native
from efficient_attn.kernels.softmax import decode, sdpa

LONG = decode.LONG_KEY_ELEMENTS // 16  # keys of the width drawn here
FORMS = [
    *((form, torch.float32) for form in ("fold", "batched", "by_head")),
    *((form, dtype) for form in ("fold", "pieces") for dtype in (torch.bfloat16, torch.float16)),
]
REASON = why_no_native("decode")
needs_it = pytest.mark.skipif(REASON is not None, reason=REASON or "")


def _draw(*, batch: int = 2, heads: int = 8, kv_heads: int = 2, m: int = LONG, width: int = 16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, h, n, width, generator=generator) for h, n in ((heads, 1), (kv_heads, m), (kv_heads, m))]


def _allowed(m: int) -> torch.Tensor:
    return torch.ones(1, 1, 1, m, dtype=torch.bool)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("extra", [0, 1, 77])
def test_it_is_the_oracle(kv_heads: int, extra: int) -> None:
    q, k, v = _draw(kv_heads=kv_heads, m=LONG + extra)
    with torch.no_grad():
        out = sdpa.attend_fused(q * 5, k, v)
    torch.testing.assert_close(out, softmax_attention(q * 5, k, v, _allowed(k.shape[2])), rtol=1e-4, atol=1e-5)


def test_it_reads_views_of_a_longer_cache() -> None:
    q, k, v = _draw(m=LONG + 100)
    short = slice(0, LONG)
    with torch.no_grad():
        out = sdpa.attend_fused(q, k[:, :, short], v[:, :, short])
        torch.testing.assert_close(out, sdpa.attend_fused(q, k[:, :, short].clone(), v[:, :, short].clone()))


def test_large_scores_stay_finite() -> None:
    q, k, v = _draw()
    with torch.no_grad():
        out = sdpa.attend_fused(q * 1e4, k * 1e4, v)
    assert torch.isfinite(out).all()


def test_where_it_serves() -> None:
    q, k, v = _draw()
    rows = q.reshape(2, 2, 4, 16)
    with torch.no_grad(), force_implementation(decode.DECODE, "batched"):
        assert decode.attend_few(rows, k, v, 1.0) is not None
        few = slice(0, decode.MIN_KEY_ELEMENTS // 16 - 1)
        assert decode.attend_few(rows, k[:, :, few], v[:, :, few], 1.0) is None
        assert decode.attend_few(rows.double(), k.double(), v.double(), 1.0) is None
        apart = k.transpose(1, 2).contiguous().transpose(1, 2)
        assert decode.attend_few(rows, apart, v, 1.0) is None  # [B, M, H, D] in memory: products are very slow with it
        assert decode.attend_few(rows, k, apart, 1.0) is None
    with force_implementation(decode.DECODE, "batched"):
        assert decode.attend_few(rows, k, v.requires_grad_(), 1.0) is None  # it has no gradient
    with torch.no_grad(), force_implementation(decode.DECODE, "fold"):
        assert decode.attend_few(rows, k, v, 1.0) is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize(("form", "dtype"), FORMS)
def test_all_forms_are_the_oracle(form: str, dtype: torch.dtype, kv_heads: int) -> None:
    q, k, v = (x.to(dtype) for x in _draw(kv_heads=kv_heads, m=LONG + 77))
    with torch.no_grad(), force_implementation(decode.DECODE, form):
        out = sdpa.attend_fused(q * 5, k, v)
    want = softmax_attention(q.double() * 5, k.double(), v.double(), _allowed(k.shape[2]))
    tolerance = 1e-5 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("threads", "kv_heads"), [(3, 1), (3, 2), (4, 1), (7, 4)])
def test_parts_keep_all_threads_busy(monkeypatch, threads: int, kv_heads: int, dtype: torch.dtype) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    parts: list[int] = []
    real = decode.attend
    monkeypatch.setattr(decode, "attend", lambda x, how: parts.append(x.k.shape[:2].numel()) or real(x, how))
    q, *longer = (x.to(dtype) for x in _draw(kv_heads=kv_heads, m=LONG + 100))
    k, v = (x[:, :, : LONG + 31] for x in longer)  # as views of a longer cache, with keys left over
    with torch.no_grad(), force_implementation(decode.DECODE, "parts"):
        out = sdpa.attend_fused(q * 5, k, v)
    assert parts[0] % threads == 0
    want = softmax_attention(q.double() * 5, k.double(), v.double(), _allowed(k.shape[2]))
    tolerance = 1e-5 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)


def test_parts_copy_no_keys(monkeypatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    q, k, v = _draw(batch=1, kv_heads=1, m=2 * LONG + 1)
    with torch.no_grad(), force_implementation(decode.DECODE, "parts"):
        peak = measure_footprint(lambda: sdpa.attend_fused(q, k[:, :, :-2], v[:, :, :-2]), device="cpu").peak
    assert peak is not None
    assert peak < k.nbytes / 4


def test_only_where_threads_would_be_idle(monkeypatch) -> None:
    """Whoever decides: a table of more threads, or the rule."""
    ran: list[tuple[int, ...]] = []
    real = decode.attend
    monkeypatch.setattr(decode, "attend", lambda x, how: ran.append(x.k.shape) or real(x, how))
    monkeypatch.setenv(autotuner.VARIABLE, "off")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")  # the rule asks
    q, k, v = _draw(batch=2, kv_heads=1)
    apart = [x.repeat(1, 2, 1, 1)[:, :1].expand(-1, 2, -1, -1) for x in (k, v)]  # in no dimension together
    with torch.no_grad():
        for threads, tensors, parts in ((1, (k, v), 0), (2, (k, v), 0), (4, (k, v), 2), (8, apart, 0)):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            monkeypatch.setattr(autotuner, "_TABLES", {})
            monkeypatch.setattr(autotuner, "CHOICES", {})
            ran.clear()
            sdpa.attend_fused(q, *tensors)
            assert [shape[1] for shape in ran] == ([parts] if parts else []), threads


@pytest.mark.parametrize("start", [None, 3])
def test_padded_steps_are_the_oracle_on_idle_threads(monkeypatch, start: int | None) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    q, k, v = _draw(batch=1, kv_heads=1)
    attn, dense = (ea.create("mqa", backend=backend) for backend in (None, "dense"))
    for lengths in (None, torch.tensor([LONG - 7])):
        mask = ea.Mask(causal=True, key_lengths=lengths, query_start=start)
        with torch.no_grad(), force_implementation(decode.DECODE, "parts"):
            torch.testing.assert_close(attn(q, k, v, mask), dense(q, k, v, mask), rtol=0, atol=1e-5)


def test_a_gradient_still_flows_where_one_is_wanted() -> None:
    q, k, v = (x.requires_grad_() for x in _draw())
    sdpa.attend_fused(q, k, v).sum().backward()
    assert q.grad is not None
    assert v.grad is not None


# -- in one pass, in C++ ------------------------------------------------------------------------------------------

# batch, key-value heads, rows, keys, width, values: whole vectors and blocks; none of either; one key; many rows
SIZES = [(1, 2, 4, 1024, 64, 64), (2, 3, 1, 77, 40, 24), (2, 1, 8, 5000, 64, 5), (1, 1, 17, 4097, 7, 100),
         (1, 2, 3, 1, 8, 8), (1, 1, 32, 130, 33, 16)]  # fmt: skip


@needs_it
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_one_pass_is_the_oracle(monkeypatch, size: tuple[int, ...], dtype: torch.dtype, threads: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    batch, heads, rows, m, width, values = size
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(batch, heads, n, w, generator=generator, dtype=torch.float64).to(dtype)
        for n, w in ((rows, width), (m, width), (m, values))
    )
    out = decode.attend_in_one_pass(4 * q, k, v, 0.3)
    want = softmax_attention(4 * q.double(), k.double(), v.double(), _allowed(m), scale=0.3)
    torch.testing.assert_close(
        out.double(), want, rtol=0, atol=1e-12 if dtype == torch.float64 else 2e-6 * v.abs().max()
    )


@needs_it
def test_one_pass_reads_caches_of_any_strides() -> None:
    q, k, v = _draw(m=300)
    rows = q.reshape(2, 2, 4, 16)
    want = decode.attend_in_one_pass(rows, k, v, 0.25)
    apart = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    longer = [torch.cat([x, x + 1], 2)[:, :, :300] for x in (k, v)]
    wider = [torch.cat([x, x + 1], 3)[..., :16] for x in (k, v)]
    for laid in (apart, longer, wider):
        torch.testing.assert_close(decode.attend_in_one_pass(rows, *laid, 0.25), want, rtol=0, atol=0)


@needs_it
def test_one_pass_keeps_scores_of_any_size_finite() -> None:
    q, k, v = _draw(m=500)
    rows = q.reshape(2, 2, 4, 16)
    for factor in (1e4, 1e15):
        out = decode.attend_in_one_pass(rows * factor, k, v, 1.0)
        best = (rows.double() @ k.double().mT).argmax(-1)
        want = v.gather(2, best[..., None].expand(-1, -1, -1, 16))
        torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-3)
    assert torch.equal(decode.attend_in_one_pass(rows * 0, k, v * 0 + 1, 1.0), torch.ones_like(rows))


def test_what_one_pass_knows() -> None:
    q, k, v = _draw(m=100)
    rows = q.reshape(2, 2, 4, 16)
    assert decode.cpp_supports(rows, k, v)
    assert decode.cpp_supports(rows.double(), k.double(), v.double())
    assert not decode.cpp_supports(rows.half(), k.half(), v.half())
    assert not decode.cpp_supports(rows.repeat(1, 1, 9, 1), k, v)  # a prompt is better off with torch's kernel
    assert not decode.cpp_supports(rows, k.mT.contiguous().mT, v)
    assert not decode.cpp_supports(rows, k, v.clone().requires_grad_())


@needs_it
@pytest.mark.parametrize("spec", ["full", "gqa:kv_heads=2", "mqa"])
def test_the_backend_runs_it_in_decode_steps(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    attn = ea.create(f"{spec}:backend=cpp", dims=ea.Dims(heads=8))
    q, k, v = _draw(kv_heads=attn.kv_heads or 8, m=40)
    seen: list[tuple[int, ...]] = []
    real = decode.attend_in_one_pass
    monkeypatch.setattr(decode, "attend_in_one_pass", lambda *given: seen.append(given[0].shape) or real(*given))
    with torch.no_grad():
        state = attn.absorb(k, v, attn.init_state(2, 41))
        out, state = attn.step(q, k[:, :, :1], v[:, :, :1], state)
    heads = k.shape[1]
    assert seen == [(2, heads, 8 // heads, 16)]  # one row for each head of a group
    want = ea.create(f"{spec}:backend=dense")(q, torch.cat([k, k[:, :, :1]], 2), torch.cat([v, v[:, :, :1]], 2))
    torch.testing.assert_close(out, want, rtol=0, atol=1e-5)
