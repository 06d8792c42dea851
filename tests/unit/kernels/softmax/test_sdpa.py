"""The wrapper of the fused kernel equals the reference for all alignments and groups, and stays on the fast path."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.errors import UnsupportedError
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.kernels import dense
from efficient_attn.kernels.softmax import decode, sdpa

SCALE = 0.3


def tensors(n: int, m: int, *, kv_heads: int = 4, e: int = 8, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    g = torch.Generator().manual_seed(n + m)
    return [
        torch.randn(2, h, x, w, generator=g).to(dtype) for h, x, w in ((4, n, 8), (kv_heads, m, 8), (kv_heads, m, e))
    ]


@pytest.mark.parametrize("rows", [1, 3, 256])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("n", "m"), [(9, 9), (2, 9), (9, 2), (1, 1)])
@pytest.mark.parametrize("start", [None, -4, 0, 3, 20])
def test_all_alignments_equal_reference_for_any_row_block(
    monkeypatch: pytest.MonkeyPatch, start: int | None, n: int, m: int, kv_heads: int, rows: int
) -> None:
    monkeypatch.setattr(sdpa, "MASK_ROWS", rows)
    q, k, v = tensors(n, m, kv_heads=kv_heads, e=5)
    valid = torch.tensor([[j % 3 != b for j in range(m)] for b in range(2)])
    for mask in (Mask(True, query_start=start), Mask(True, query_start=start, key_mask=valid), Mask(key_mask=valid)):
        got = sdpa.attend(q, k, v, mask)
        want = dense.softmax_attention(q, k, v, mask.dense(n, m))
        assert torch.allclose(got, want, rtol=0, atol=1e-12)


def _events(run) -> EventList:
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        run()
    return prof.events()


@pytest.mark.parametrize("e", [3, 8, 16])
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(key_lengths=torch.tensor([9, 3]))])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attend_uses_the_flash_kernel(kv_heads: int, mask: Mask, e: int) -> None:
    q, k, v = tensors(9, 9, kv_heads=kv_heads, e=e, dtype=torch.float32)
    names = {event.name for event in _events(lambda: sdpa.attend(q, k, v, mask))}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(key_lengths=torch.tensor([9, 3]))])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_tensors_without_adjacent_columns_use_it_too(kv_heads: int, mask: Mask) -> None:
    """Torch itself would store all scores."""
    strided = [torch.stack([x, x], -1)[..., 0] for x in tensors(9, 9, kv_heads=kv_heads, dtype=torch.float32)]
    names = {event.name for event in _events(lambda: sdpa.attend(*strided, mask))}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names
    assert "aten::_softmax" not in names


def test_groups_of_single_rows_are_folded_into_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "attend_grouped", None)
    q, k, v = tensors(1, 9, kv_heads=2)
    for mask in (Mask(), Mask(causal=True), Mask(key_lengths=torch.tensor([9, 3]))):
        want = dense.softmax_attention(q, k, v, mask.dense(1, 9))
        assert torch.allclose(sdpa.attend(q, k, v, mask), want, atol=1e-12)


def test_scale_depends_on_the_width_of_keys_only() -> None:
    q, k, v = tensors(5, 5, e=32)
    want = F.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(sdpa.attend(q, k, v, Mask()), want, atol=1e-12)


class TestDense:
    def test_rows_without_keys_get_no_weight(self) -> None:
        scores, allowed = torch.randn(2, 3), torch.tensor([[True, False, True], [False, False, False]])
        weights = dense.masked_softmax(scores, allowed)
        assert weights[0, 1] == 0
        assert weights.sum(-1).tolist() == pytest.approx([1, 0])

    def test_large_scores_do_not_overflow(self) -> None:
        weights = dense.masked_softmax(torch.tensor([[1e30, -1e30]]), torch.ones(1, 2, dtype=torch.bool))
        assert weights.tolist() == [[1, 0]]

    def test_heads_of_a_group_are_adjacent(self) -> None:
        x = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1)
        assert dense.expand_heads(x, 6).flatten().tolist() == [1, 1, 1, 2, 2, 2]

    def test_half_precision_is_widened_and_restored(self) -> None:
        x = torch.ones(1, 1, 2, 2, dtype=torch.bfloat16)
        assert dense.widen(x).dtype == torch.float32
        assert dense.widen(x.double()).dtype == torch.float64
        allowed = torch.ones(1, 1, 2, 2, dtype=torch.bool)
        assert dense.softmax_attention(x, x, x, allowed).dtype == torch.bfloat16

    def test_zero_weights_average_to_zero(self) -> None:
        out = dense.weighted_average(torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[4.0], [8.0]]))
        assert out.tolist() == [[0], [7]]

    def test_scale_can_be_given(self) -> None:
        q, k, v = tensors(4, 4)
        allowed = torch.ones(1, 1, 4, 4, dtype=torch.bool)
        want = torch.softmax(q @ k.mT * 3, -1) @ v
        assert torch.allclose(dense.softmax_attention(q, k, v, allowed, scale=3.0), want)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("n", "m", "causal"), [(9, 9, True), (3, 9, True), (9, 9, False), (2, 600, False)])
def test_dropout_zeroes_or_doubles_weights_on_every_path(
    monkeypatch: pytest.MonkeyPatch, kv_heads: int, n: int, m: int, causal: bool
) -> None:
    """Also with few rows over many keys, for which a decode kernel would otherwise be used."""
    monkeypatch.setattr(decode, "LONG_KEY_ELEMENTS", 1)
    q, k, _ = tensors(n, m, kv_heads=kv_heads, dtype=torch.float32)
    v, mask = torch.eye(m).expand(2, kv_heads, m, m), Mask(causal=causal)
    weights = dense.softmax_attention(q, k, v, mask.dense(n, m))
    for graph in (False, True):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            got = sdpa.attend(q.detach().requires_grad_(graph), k, v, mask, dropout=0.5).detach()
        dropped = (got == 0) & (weights != 0)
        assert torch.allclose(got, (2 * weights).masked_fill(dropped, 0), atol=1e-6)
        seen = int((weights != 0).sum())
        assert abs(int(dropped.sum()) - seen / 2) < 3 * seen**0.5


def test_native_code_does_not_support_dropout() -> None:
    with pytest.raises(UnsupportedError, match="does not support dropout"):
        sdpa.attend(*tensors(1, 9), Mask(), backend="cpp", dropout=0.5)


# -- grouped heads with a mask for each row ----------------------------------------------------------------------------


def draw(*, heads: int = 8, n: int = 40, m: int = 40, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (2, heads, n, 16), (2, 1, m, 16), (2, 1, m, 16)
    return [torch.randn(*s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in sizes]


def expand_and_attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool) -> Tensor:
    k, v = (x.expand(-1, q.shape[1], -1, -1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=causal, scale=SCALE)


def staircase(n: int, m: int) -> Tensor:
    return (torch.arange(m) <= torch.arange(n)[:, None] + 3).expand(2, 1, n, m).clone()


@pytest.mark.parametrize("threads", [1, 5, 99])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [2, 3, 8])
def test_grouped_attention_and_gradients_equal_torchs(monkeypatch, heads: int, masked: bool, threads: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    leaves = draw(heads=heads, m=50 if masked else 40)
    allowed = staircase(40, 50) if masked else None
    if allowed is not None:
        allowed[1, :, :, 5:9] = False
    ours = sdpa.attend_grouped(*leaves, allowed, not masked, SCALE)
    theirs = expand_and_attend(*leaves, allowed, not masked)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got, want = (torch.autograd.grad((out * weights).sum(), leaves) for out in (ours, theirs))
    for actual, expected in zip(got, want, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_rows_without_keys_are_zero_with_finite_gradients() -> None:
    leaves = draw()
    allowed = staircase(40, 40)
    allowed[:, :, 7] = False
    out = sdpa.attend_grouped(*leaves, allowed, False, SCALE)
    assert torch.equal(out[:, :, 7], torch.zeros_like(out[:, :, 7]))
    grad_q, grad_k, grad_v = torch.autograd.grad(out.sum(), leaves)
    assert torch.equal(grad_q[:, :, 7], torch.zeros_like(grad_q[:, :, 7]))
    assert all(torch.isfinite(x).all() for x in (grad_k, grad_v))


def test_strided_inputs_give_the_same_results() -> None:
    leaves = draw()
    wide = [torch.stack([x, x + 1], -1)[..., 0] for x in leaves]
    got = sdpa.attend_grouped(*wide, None, True, SCALE)
    want = sdpa.attend_grouped(*leaves, None, True, SCALE)
    assert torch.equal(got, want)
    for actual, expected in zip(
        torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients_are_summed_in_float32(dtype: torch.dtype) -> None:
    leaves = draw(heads=32, dtype=dtype)
    want = torch.autograd.grad(expand_and_attend(*(x.double() for x in leaves), None, True).sum(), leaves)
    got = torch.autograd.grad(sdpa.attend_grouped(*leaves, None, True, SCALE).sum(), leaves)
    for actual, expected in zip(got, want, strict=True):
        assert actual.dtype == dtype
        assert (actual.double() - expected.double()).norm() < 8 * torch.finfo(dtype).eps * expected.double().norm()


def test_grouped_keys_are_not_copied_for_each_head() -> None:
    """Gradients of keys and values repeated for each of 32 heads would need 64 times the memory of the keys."""
    q, k, v = draw(heads=32, n=4, m=4096, dtype=torch.float32)

    def train(attend) -> None:
        torch.autograd.grad(attend(q, k, v, None, True, SCALE).sum(), [q, k, v])

    def theirs(q: Tensor, k: Tensor, v: Tensor, allowed: None, causal: bool, _: float) -> Tensor:
        return expand_and_attend(q, k, v, allowed, causal)

    ours, torchs = (measure_footprint(lambda f=f: train(f), device="cpu").peak for f in (sdpa.attend_grouped, theirs))
    assert ours is not None
    assert torchs is not None
    assert torchs > 60 * k.nbytes
    assert ours < 16 * k.nbytes


def test_a_second_derivative_is_refused() -> None:
    leaves = draw()
    out = sdpa.attend_grouped(*leaves, None, True, SCALE)
    (grad_q,) = torch.autograd.grad((out**2).sum(), leaves[:1], create_graph=True)
    with pytest.raises(ea.UnsupportedError, match="no second derivative; backend=dense has one"):
        grad_q.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_aligned_for_kernels_of_gpus(dtype: torch.dtype) -> None:
    """Those refuse rows and heads that do not begin at a multiple of 16 bytes, also in dimensions of size 1."""
    projection = torch.randn(2, 5, 3, 65, dtype=dtype)
    one_head = torch.randn(2, 1, 5, 64, dtype=dtype).as_strided((2, 1, 5, 64), (320, 1, 64, 1))
    for x in (projection[..., :64].transpose(1, 2), projection[..., 1:].transpose(1, 2), one_head):
        aligned = sdpa._align(x)
        assert torch.equal(aligned, x)
        assert not any(stride % 8 for stride in aligned.stride()[:-1])
        assert aligned.storage_offset() % 8 == 0
        assert sdpa._align(aligned) is aligned
    odd = torch.randn(2, 1, 5, 7, dtype=dtype)
    assert sdpa._align(odd) is odd  # other kernels take these


@pytest.mark.parametrize("batch", [1, 3])
def test_groups_as_rows_equal_each_head_by_itself(batch: int) -> None:
    q, (k, v) = torch.randn(3, 6, 9, 8), torch.randn(2, 3, 2, 11, 8)
    allowed = (torch.rand(batch, 1, 9, 11) < 0.7) | torch.eye(9, 11, dtype=torch.bool)
    want = dense.softmax_attention(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), allowed)
    torch.testing.assert_close(sdpa._attend_as_rows(q, k, v, allowed, 8**-0.5, 0.0), want)
