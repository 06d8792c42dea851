"""The scan's stretches in C++: the same numbers as `chunks`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.feature_maps import elu_plus_one
from efficient_attn.kernels.linear import chunks, scan
from efficient_attn.kernels.linear.linear_config import KeyInputs, LinearConfig, OutputGrads, Stretch
from efficient_attn.kernels.linear.scan_state import ScanState
from efficient_attn.kernels.linear.sums import Sums
from efficient_attn.kernels.native import cpp_scan as native
from efficient_attn.kernels.native.building import why_no_native
from efficient_attn.variants.linear.linear_attention import replace_zero_by_one

REASON = why_no_native("scan")
needs_it = pytest.mark.skipif(REASON is not None, reason=REASON or "")

# heads, group, length, features, values: whole vectors and chunks; none of either; more than a slab or a tile takes
SIZES = [(2, 1, 64, 16, 16), (3, 2, 100, 5, 7), (2, 3, 37, 64, 64), (1, 1, 1, 1, 1), (2, 2, 130, 70, 90),
         (2, 1, 33, 130, 33), (1, 2, 65, 17, 200)]  # fmt: skip


def drawn(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)), dtype=torch.float64).to(dtype)


def states(heads: int, features: int, values: int, dtype: torch.dtype) -> list[ScanState]:
    kv, z = drawn(heads, features, values, dtype=dtype), drawn(heads, features, dtype=dtype)
    return [ScanState(Sums(kv.clone(), z.clone()), decays=False, steady=False) for _ in range(2)]


def attend(kernel: scan.ScanKernel, x: Tensor, y: Tensor, v: Tensor, state: ScanState) -> list[Tensor]:
    tops = x.new_empty(*x.shape[:3], v.shape[2])
    totals = kernel.attend(x, Stretch(y, v, None), state, tops)
    assert totals is not None
    return [tops, totals]


def agree(got: list[Tensor], want: list[Tensor]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        size = theirs.abs().max().clamp(min=1)
        atol = 1e-12 if theirs.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(ours / size, theirs / size, rtol=0, atol=atol)


@needs_it
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_all_three_are_those_of_chunks(monkeypatch, size: tuple[int, ...], dtype: torch.dtype, threads: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    heads, group, length, features, values = size
    x, y = drawn(heads, group, length, features, dtype=dtype), drawn(heads, length, features, dtype=dtype)
    v, by_top = drawn(heads, length, values, dtype=dtype), drawn(heads, group, length, values, dtype=dtype)
    by_total = drawn(heads, group, length, 1, dtype=dtype)
    ours, theirs = states(heads, features, values, dtype)
    got, want = (attend(m, x, y, v, s) for m, s in ((native, ours), (chunks, theirs)))
    agree([*got, ours.kv, ours.z], [*want, theirs.kv, theirs.z])
    for totals in (by_total, None):
        ours, theirs = states(heads, features, values, dtype)
        got, _ = native.backward_queries(OutputGrads(by_top, totals), Stretch(y, v, None), ours)
        want, past = chunks.backward_queries(OutputGrads(by_top, totals), Stretch(y, v, None), theirs)
        agree([got, ours.kv, ours.z], [want, theirs.kv, theirs.z])
        ours, theirs = states(heads, features, values, dtype)
        got = native.backward_keys(x, Stretch(y, v, None), OutputGrads(by_top, totals), ours, [None])
        want = chunks.backward_keys(x, Stretch(y, v, None), OutputGrads(by_top, totals), theirs, past)
        agree([*got, ours.kv, ours.z], [*want, theirs.kv, theirs.z])


@needs_it
def test_tensors_may_lie_in_memory_as_they_like() -> None:
    x, y, v = drawn(2, 16, 40, 3).transpose(1, 3), drawn(40, 2, 16).transpose(0, 1), drawn(2, 16, 40).mT
    by_top, by_total = drawn(1, 1, 1, 1).expand(2, 3, 40, 16), drawn(2, 3, 1, 1).expand(2, 3, 40, 1)
    ours, theirs = states(2, 16, 16, torch.float64)
    ours.kv, theirs.kv = ours.kv.mT, theirs.kv.mT.clone()
    agree(attend(native, x, y, v, ours), attend(chunks, x, y, v, theirs))
    keys, grads = Stretch(y, v, None), OutputGrads(by_top, by_total)
    pairs = (native, ours), (chunks, theirs)
    agree(*([kernel.backward_queries(grads, keys, state)[0], state.kv] for kernel, state in pairs))
    agree(*(list(kernel.backward_keys(x, keys, grads, state, [None])) for kernel, state in pairs))


@needs_it
@pytest.mark.parametrize("length", [1, 50, 5000])
def test_the_scan_and_its_gradients_are_the_same(length: int) -> None:
    found = []
    for recipe in (
        LinearConfig(elu_plus_one, replace_zero_by_one),
        LinearConfig(elu_plus_one, replace_zero_by_one, native=True),
    ):
        q, k, v = (drawn(2, *s).requires_grad_() for s in ((3, length, 24), (length, 24), (length, 20)))
        kv, z = drawn(2, 24, 20).requires_grad_(), drawn(2, 24).abs().requires_grad_()
        valid = torch.arange(length).expand(2, length) % 5 != 2
        out, after = scan.scan(recipe, q, KeyInputs(k, v, valid), Sums(kv, z))
        loss = out.cos().sum() + (after.kv / length).cos().sum() + (after.z / length).cos().sum()
        found.append([out, after.kv, after.z, *torch.autograd.grad(loss, (q, k, v, kv, z))])
    agree(*found)


@needs_it
def test_the_backend_is_for_the_asking() -> None:
    assert ea.create("linear").backend == "chunked"
    ours, theirs = ea.create("linear:backend=cpp"), ea.create("linear")
    q, k, v = drawn(2, 4, 100, 8), drawn(2, 2, 100, 8), drawn(2, 2, 100, 6)
    for mask in (ea.Mask(), ea.Mask(causal=True), ea.Mask(causal=True, key_lengths=torch.tensor([100, 3]))):
        torch.testing.assert_close(ours(q, k, v, mask), theirs(q, k, v, mask), rtol=0, atol=1e-12)
    half = ours(q.bfloat16(), k.bfloat16(), v.bfloat16(), ea.Mask(causal=True))
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("spec", ["performer", "retention", "random_feature:gated=true"])
def test_weights_of_keys_are_refused(spec: str) -> None:
    dims = ea.Dims(heads=2, head_dim=8)
    assert "weights" in (ea.create(spec, dims=dims).why_not("cpp") or "")
    with pytest.raises(ea.UnsupportedError, match="is not available: its keys have weights"):
        ea.create(f"{spec}:backend=cpp", dims=dims)
    state = states(1, 2, 2, torch.float64)[0]
    with pytest.raises(ea.UnsupportedError, match="weights"):
        native.attend(drawn(1, 1, 3, 2), Stretch(drawn(1, 3, 2), drawn(1, 3, 2), drawn(1, 3)), state, drawn(1, 1, 3, 2))
