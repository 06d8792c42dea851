"""Decoding of a few rows over a long cache: results equal the reference, and each implementation runs as intended."""

from __future__ import annotations

import pytest
import torch
from forced_choice import force_implementation
from torch._subclasses.fake_tensor import FakeTensorMode

import efficient_attn as ea
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.dense import softmax_attention
from efficient_attn.kernels.native.building import VARIABLE, why_no_native
from efficient_attn.kernels.softmax import decode, sdpa

LONG = decode.LONG_KEY_ELEMENTS // 16  # number of keys at the width drawn here
IMPLEMENTATIONS = [
    *((implementation, torch.float32) for implementation in ("fold", "batched", "by_head")),
    *((implementation, dtype) for implementation in ("fold", "pieces") for dtype in (torch.bfloat16, torch.float16)),
]
REASON = why_no_native("decode")
needs_cpp = pytest.mark.skipif(REASON is not None, reason=REASON or "")


def _draw(*, batch: int = 2, heads: int = 8, kv_heads: int = 2, m: int = LONG, width: int = 16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, h, n, width, generator=generator) for h, n in ((heads, 1), (kv_heads, m), (kv_heads, m))]


def _allowed(m: int) -> torch.Tensor:
    return torch.ones(1, 1, 1, m, dtype=torch.bool)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("extra", [0, 1, 77])
def test_fused_attention_equals_reference(kv_heads: int, extra: int) -> None:
    q, k, v = _draw(kv_heads=kv_heads, m=LONG + extra)
    with torch.no_grad():
        out = sdpa.attend_fused(q * 5, k, v)
    torch.testing.assert_close(out, softmax_attention(q * 5, k, v, _allowed(k.shape[2])), rtol=1e-4, atol=1e-5)


def test_views_of_a_longer_cache_are_supported() -> None:
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


def test_attend_few_returns_none_for_unsupported_calls() -> None:
    q, k, v = _draw()
    rows = q.reshape(2, 2, 4, 16)
    with torch.no_grad(), force_implementation(decode.DECODE, "batched"):
        assert decode.attend_few(rows, k, v, 1.0) is not None
        few = slice(0, decode.MIN_KEY_ELEMENTS // 16 - 1)
        assert decode.attend_few(rows, k[:, :, few], v[:, :, few], 1.0) is None
        assert decode.attend_few(rows.double(), k.double(), v.double(), 1.0) is None
        strided = k.transpose(1, 2).contiguous().transpose(1, 2)
        assert decode.attend_few(rows, strided, v, 1.0) is None  # [B, M, H, D] in memory: products would be slow
        assert decode.attend_few(rows, k, strided, 1.0) is None
    with force_implementation(decode.DECODE, "batched"):
        assert decode.attend_few(rows, k, v.requires_grad_(), 1.0) is None  # it has no backward pass


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize(("implementation", "dtype"), IMPLEMENTATIONS)
def test_all_implementations_equal_reference(implementation: str, dtype: torch.dtype, kv_heads: int) -> None:
    q, k, v = (x.to(dtype) for x in _draw(kv_heads=kv_heads, m=LONG + 77))
    with torch.no_grad(), force_implementation(decode.DECODE, implementation):
        out = sdpa.attend_fused(q * 5, k, v)
    want = softmax_attention(q.double() * 5, k.double(), v.double(), _allowed(k.shape[2]))
    tolerance = 1e-5 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("threads", "kv_heads"), [(3, 1), (3, 2), (4, 1), (7, 4)])
def test_number_of_parts_is_a_multiple_of_threads(monkeypatch, threads: int, kv_heads: int, dtype: torch.dtype) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    parts: list[int] = []
    real = decode.attend
    monkeypatch.setattr(decode, "attend", lambda x, options: parts.append(x.k.shape[:2].numel()) or real(x, options))
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_folded_half_precision_is_not_cast(dtype: torch.dtype) -> None:
    """What was timed is what runs: torch's kernel in this dtype, and not in float32, which would copy the cache."""
    q, k, v = (x.to(dtype) for x in _draw(batch=1, heads=2, m=2 * LONG))
    with torch.no_grad(), force_implementation(decode.DECODE, "fold"):
        peak = measure_footprint(lambda: sdpa.attend_fused(q, k, v), device="cpu").peak
    assert peak is not None
    assert peak < k.nbytes / 2


def test_parts_are_used_only_if_threads_would_be_idle(monkeypatch) -> None:
    """The autotuner is off, so the rule decides."""
    key_shapes: list[tuple[int, ...]] = []
    real = decode.attend
    monkeypatch.setattr(decode, "attend", lambda x, options: key_shapes.append(x.k.shape) or real(x, options))
    monkeypatch.setenv(autotuner.VARIABLE, "off")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")  # the rule depends on it
    q, k, v = _draw(batch=2, kv_heads=1)
    strided = [x.repeat(1, 2, 1, 1)[:, :1].expand(-1, 2, -1, -1) for x in (k, v)]  # batch and heads cannot be flattened
    with torch.no_grad():
        for threads, tensors, parts in ((1, (k, v), 0), (2, (k, v), 0), (4, (k, v), 2), (8, strided, 0)):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            monkeypatch.setattr(autotuner, "_TABLES", {})
            monkeypatch.setattr(autotuner, "CHOICES", {})
            key_shapes.clear()
            sdpa.attend_fused(q, *tensors)
            assert [shape[1] for shape in key_shapes] == ([parts] if parts else []), threads


@pytest.mark.parametrize("start", [None, 3])
def test_padded_steps_in_parts_equal_reference(monkeypatch, start: int | None) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    q, k, v = _draw(batch=1, kv_heads=1)
    attn, dense = (ea.create("mqa", backend=backend) for backend in (None, "dense"))
    for lengths in (None, torch.tensor([LONG - 7])):
        mask = ea.Mask(causal=True, key_lengths=lengths, query_start=start)
        with torch.no_grad(), force_implementation(decode.DECODE, "parts"):
            torch.testing.assert_close(attn(q, k, v, mask), dense(q, k, v, mask), rtol=0, atol=1e-5)


def test_gradients_are_computed_if_required() -> None:
    q, k, v = (x.requires_grad_() for x in _draw())
    sdpa.attend_fused(q, k, v).sum().backward()
    assert q.grad is not None
    assert v.grad is not None


# -- in one pass, in C++ ------------------------------------------------------------------------------------------

# batch, key-value heads, rows, keys, width, values: multiples of vectors and blocks; no multiples; one key; many rows
SIZES = [(1, 2, 4, 1024, 64, 64), (2, 3, 1, 77, 40, 24), (2, 1, 8, 5000, 64, 5), (1, 1, 17, 4097, 7, 100),
         (1, 2, 3, 1, 8, 8), (1, 1, 32, 130, 33, 16), (1, 1, 1, 4500, 128, 256), (1, 2, 2, 200, 96, 96),
         (1, 1, 7, 65, 256, 128)]  # fmt: skip
# of outputs of at most 4: rounding of sums, and of the output
CPP_TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@needs_cpp
@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", CPP_TOLERANCES)
@pytest.mark.parametrize("size", SIZES)
def test_one_pass_equals_reference(
    monkeypatch, size: tuple[int, ...], dtype: torch.dtype, threads: int, hides: bool
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    batch, heads, rows, m, width, values = size
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(batch, heads, n, w, generator=generator, dtype=torch.float64).to(dtype)
        for n, w in ((rows, width), (m, width), (m, values))
    )
    valid = torch.rand(batch, m, generator=generator) < 0.6 if hides else torch.ones(batch, m, dtype=torch.bool)
    if hides:
        valid[-1, : m // 2] = False  # whole blocks, and the first of three parts
    scale = 2.4 * width**-0.5  # scores of up to 40, whose rounding in float32 is most of the tolerance
    out = decode.attend_in_one_pass(4 * q, k, v, scale, valid if hides else None)
    want = softmax_attention(4 * q.double(), k.double(), v.double(), valid[:, None, None], scale=scale)
    want = want * valid.any(1)[:, None, None, None]
    torch.testing.assert_close(out.double(), want, rtol=0, atol=CPP_TOLERANCES[dtype])


@needs_cpp
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_pass_widens_every_number_of_half_precision(dtype: torch.dtype) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).view(-1, 1, 1, 64)
    zeros = torch.zeros_like(every)  # one key with a weight of one: the output is its value
    out = decode.attend_in_one_pass(zeros, zeros, every, 1.0)
    torch.testing.assert_close(out, every, rtol=0, atol=0, equal_nan=True)


@needs_cpp
def test_one_pass_supports_caches_of_any_strides() -> None:
    q, k, v = _draw(m=300)
    rows = q.reshape(2, 2, 4, 16)
    want = decode.attend_in_one_pass(rows, k, v, 0.25)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    longer = [torch.cat([x, x + 1], 2)[:, :, :300] for x in (k, v)]
    wider = [torch.cat([x, x + 1], 3)[..., :16] for x in (k, v)]
    for cache in (strided, longer, wider):
        torch.testing.assert_close(decode.attend_in_one_pass(rows, *cache, 0.25), want, rtol=0, atol=0)


@needs_cpp
def test_one_pass_is_accurate_for_huge_and_zero_scores() -> None:
    q, k, v = _draw(m=500)
    rows = q.reshape(2, 2, 4, 16)
    for factor in (1e4, 1e15):
        out = decode.attend_in_one_pass(rows * factor, k, v, 1.0)
        best = (rows.double() @ k.double().mT).argmax(-1)
        want = v.gather(2, best[..., None].expand(-1, -1, -1, 16))
        torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-3)
    assert torch.equal(decode.attend_in_one_pass(rows * 0, k, v * 0 + 1, 1.0), torch.ones_like(rows))


def test_cpp_supports_checks_rows_layout_and_gradient() -> None:
    q, k, v = _draw(m=100)
    rows = q.reshape(2, 2, 4, 16)
    assert decode.cpp_supports(rows, k, v)
    assert decode.cpp_supports(rows.double(), k.double(), v.double())
    assert decode.cpp_supports(rows.half(), k.half(), v.half())
    assert not decode.cpp_supports(rows.repeat(1, 1, 9, 1), k, v)  # torch's kernel is faster for prompts
    assert not decode.cpp_supports(rows, k.mT.contiguous().mT, v)
    assert not decode.cpp_supports(rows, k, v.clone().requires_grad_())


@needs_cpp
@pytest.mark.parametrize("spec", ["full", "gqa:kv_heads=2", "mqa"])
def test_cpp_backend_runs_one_pass_in_decode_steps(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    attn = ea.create(f"{spec}:backend=cpp", dims=ea.Dims(heads=8))
    q, k, v = _draw(kv_heads=attn.kv_heads or 8, m=40)
    shapes: list[tuple[int, ...]] = []
    real = decode.attend_in_one_pass
    monkeypatch.setattr(decode, "attend_in_one_pass", lambda *args: shapes.append(args[0].shape) or real(*args))
    with torch.no_grad():
        state = attn.absorb(k, v, attn.init_state(2, 41))
        out, state = attn.step(q, k[:, :, :1], v[:, :, :1], state)
    heads = k.shape[1]
    assert shapes == [(2, heads, 8 // heads, 16)]  # one row for each head of a group
    want = ea.create(f"{spec}:backend=dense")(q, torch.cat([k, k[:, :, :1]], 2), torch.cat([v, v[:, :, :1]], 2))
    torch.testing.assert_close(out, want, rtol=0, atol=1e-5)


@needs_cpp
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(9, 3, 64), (32, 8, 128), (16, 1, 80)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpp_backend_runs_one_pass_with_both_paddings(
    monkeypatch: pytest.MonkeyPatch, heads: int, kv_heads: int, width: int, dtype: torch.dtype
) -> None:
    dims = ea.Dims(heads=heads, head_dim=width)
    attn, reference = (ea.create(f"gqa:kv_heads={kv_heads}", dims=dims, backend=name) for name in ("cpp", "dense"))
    q, k, v = (x.to(dtype) for x in _draw(batch=3, heads=heads, kv_heads=kv_heads, m=1203, width=width))
    valid = torch.ones(3, 1203, dtype=torch.bool)
    valid[0, :333], valid[1, 1000:], valid[2, :5], valid[2, 1200:], valid[2, 600] = (False,) * 5
    hides: list[bool] = []
    real = decode.attend_in_one_pass
    monkeypatch.setattr(decode, "attend_in_one_pass", lambda *args: hides.append(args[4] is not None) or real(*args))
    with torch.no_grad():
        out = attn(q, k, v, ea.Mask(key_mask=valid))
        want = reference(q.double(), k.double(), v.double(), ea.Mask(key_mask=valid))
    assert hides == [True]
    torch.testing.assert_close(out.double(), want, rtol=0, atol=CPP_TOLERANCES[dtype])


@needs_cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_default_steps_select_one_pass_where_it_is_built(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Also with padding, without a copy of the cache, and reported as selected. Without C++, and in tracing, not."""
    q, k, v = (x.to(dtype) for x in _draw(m=LONG + 3))
    mask = ea.Mask(causal=True, key_lengths=torch.tensor([LONG + 3, LONG - 9]))
    attn, dense = ea.create("gqa:kv_heads=2"), ea.create("gqa:kv_heads=2:backend=dense")
    monkeypatch.setattr(autotuner, "CHOICES", {})
    with torch.no_grad():
        attn(q, k, v)
        assert "cpp" not in autotuner.list_choices()
        monkeypatch.delenv(VARIABLE)
        with FakeTensorMode() as mode:
            assert attn(*(mode.from_tensor(x) for x in (q, k, v))).shape == q.shape
        autotuner.clear_choices()
        for padding in (ea.Mask(), mask):
            out = attn(q, k, v, padding)
            assert autotuner.list_choices() == "decode=cpp"
            want = dense(q.double(), k.double(), v.double(), padding)
            torch.testing.assert_close(out.double(), want, rtol=0, atol=CPP_TOLERANCES[dtype])
        rows, valid = q.view(2, 2, 4, 16), mask.key_valid(LONG + 3)
        peak = measure_footprint(lambda: decode.attend_few(rows, k, v, 0.25, valid), device="cpu").peak
    assert peak is not None
    assert peak < k.nbytes / 8
