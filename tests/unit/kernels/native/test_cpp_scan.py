"""The C++ implementation of the scan's stretches agrees with `chunks`."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.feature_maps import FeatureMap, elu_plus_one, relu
from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.linear import chunks, scan
from efficient_attn.kernels.linear.linear_config import (
    Divisor,
    KeyInputs,
    LinearConfig,
    OutputGrads,
    Stretch,
    replace_zero_by_one,
)
from efficient_attn.kernels.linear.scan_state import ScanState
from efficient_attn.kernels.linear.sums import Sums
from efficient_attn.kernels.native import cpp_scan as native
from efficient_attn.kernels.native.building import VARIABLE, why_no_native

REASON = why_no_native("scan")
needs_cpp = pytest.mark.skipif(REASON is not None, reason=REASON or "")

# heads, group, length, features, values: multiples of vectors and chunks; no multiples; more than a slab or a tile
SIZES = [(2, 1, 64, 16, 16), (3, 2, 100, 5, 7), (2, 3, 37, 64, 64), (1, 1, 1, 1, 1), (2, 2, 130, 70, 90),
         (2, 1, 33, 130, 33), (1, 2, 65, 17, 200)]  # fmt: skip


def draw(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)), dtype=torch.float64).to(dtype)


def make_states(heads: int, features: int, values: int, dtype: torch.dtype, divides: bool = True) -> list[ScanState]:
    """For C++, and for chunks, which sum keys only if these sums divide."""
    kv, z = draw(heads, features, values, dtype=dtype), draw(heads, features, dtype=dtype) * divides
    return [ScanState(Sums(kv, z), decays=False, steady=False, divides=flag) for flag in (True, divides)]


def attend(kernel: ModuleType, x: Tensor, y: Tensor, v: Tensor, state: ScanState) -> list[Tensor]:
    tops, totals = kernel.attend(x, Stretch(y, v, None), state)
    return [tops, totals]


def assert_agree(got: list[Tensor], want: list[Tensor]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        size = theirs.abs().max().clamp(min=1)
        atol = 1e-12 if theirs.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(ours / size, theirs / size, rtol=0, atol=atol)


@needs_cpp
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_forward_and_backward_passes_agree_with_chunks(
    monkeypatch, size: tuple[int, ...], dtype: torch.dtype, threads: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    heads, group, length, features, values = size
    x, y = draw(heads, group, length, features, dtype=dtype), draw(heads, length, features, dtype=dtype)
    v, grad_tops = draw(heads, length, values, dtype=dtype), draw(heads, group, length, values, dtype=dtype)
    grad_totals = draw(heads, group, length, 1, dtype=dtype)
    ours, theirs = make_states(heads, features, values, dtype)
    got, want = (attend(m, x, y, v, s) for m, s in ((native, ours), (chunks, theirs)))
    assert_agree([*got, *ours.split()], [*want, *theirs.split()])
    for totals in (grad_totals, None):
        ours, theirs = make_states(heads, features, values, dtype, totals is not None)
        got, _ = native.backward_queries(OutputGrads(grad_tops, totals), Stretch(y, v, None), ours)
        want, past = chunks.backward_queries(OutputGrads(grad_tops, totals), Stretch(y, v, None), theirs)
        n_sums = 1 if totals is None else 2  # without divisors chunks do not sum keys
        assert_agree([got, *ours.split()[:n_sums]], [want, *theirs.split()[:n_sums]])
        ours, theirs = make_states(heads, features, values, dtype, totals is not None)
        got = native.backward_keys(x, Stretch(y, v, None), OutputGrads(grad_tops, totals), ours, [None])
        want = chunks.backward_keys(x, Stretch(y, v, None), OutputGrads(grad_tops, totals), theirs, past)
        assert_agree([*got, *ours.split()], [*want, *theirs.split()])


@needs_cpp
def test_strided_tensors_are_supported() -> None:
    x, y, v = draw(2, 16, 40, 3).transpose(1, 3), draw(40, 2, 16).transpose(0, 1), draw(2, 16, 40).mT
    grad_tops, grad_totals = draw(1, 1, 1, 1).expand(2, 3, 40, 16), draw(2, 3, 1, 1).expand(2, 3, 40, 1)
    ours, theirs = make_states(2, 16, 16, torch.float64)
    for state in (ours, theirs):
        state.columns = [x.mT.contiguous().mT for x in state.columns or []]
    assert_agree(attend(native, x, y, v, ours), attend(chunks, x, y, v, theirs))
    keys, grads = Stretch(y, v, None), OutputGrads(grad_tops, grad_totals)
    pairs = (native, ours), (chunks, theirs)
    assert_agree(*([kernel.backward_queries(grads, keys, state)[0], *state.split()] for kernel, state in pairs))
    assert_agree(*(list(kernel.backward_keys(x, keys, grads, state, [None])) for kernel, state in pairs))


@needs_cpp
@pytest.mark.parametrize("length", [1, 50, 5000])
def test_scan_and_gradients_agree_with_default(length: int) -> None:
    results = []
    for config in (
        LinearConfig(elu_plus_one, replace_zero_by_one),
        LinearConfig(elu_plus_one, replace_zero_by_one, native=True),
    ):
        q, k, v = (draw(2, *s).requires_grad_() for s in ((3, length, 24), (length, 24), (length, 20)))
        kv, z = draw(2, 24, 20).requires_grad_(), draw(2, 24).abs().requires_grad_()
        valid = torch.arange(length).expand(2, length) % 5 != 2
        out, after = scan.scan(config, q, KeyInputs(k, v, valid), Sums(kv, z))
        loss = out.cos().sum() + (after.kv / length).cos().sum() + (after.z / length).cos().sum()
        results.append([out, after.kv, after.z, *torch.autograd.grad(loss, (q, k, v, kv, z))])
    assert_agree(*results)


ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}  # of the largest number


@needs_cpp
@pytest.mark.parametrize("divisor", [replace_zero_by_one, None])
@pytest.mark.parametrize("phi", [elu_plus_one, relu])
@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("size", [*SIZES, (2, 4, 300, 64, 64)])
def test_whole_scans_and_their_gradients_agree_with_float64(
    size: tuple[int, ...], dtype: torch.dtype, phi: FeatureMap, divisor: Divisor | None
) -> None:
    heads, group, length, width, columns = size
    shapes = (heads, group, length, width), (heads, length, width), (heads, length, columns)
    tensors = [draw(*shape).to(dtype) for shape in shapes]
    sums = draw(heads, width, columns).float(), draw(heads, width).abs().float()
    valid, results = (torch.arange(length * heads).view(length, heads) % 5 != 2).mT, []  # rows are not contiguous
    for exact in (False, True):
        config = LinearConfig(phi, divisor, native=not exact, wide_rows=True)
        q, k, v, kv, z = leaves = [(x.double() if exact else x.clone()).requires_grad_() for x in (*tensors, *sums)]
        out, after = scan.scan(config, q, KeyInputs(k, v, valid), Sums(kv, z))
        outputs, inputs = (out, after.kv, after.z), leaves
        if divisor is None:  # sums of features are then not computed
            outputs, inputs = outputs[:2], leaves[:4]
        loss = torch.stack([(x * draw(*x.shape).to(x.dtype)).sum() for x in outputs]).sum()
        results.append([*outputs, *torch.autograd.grad(loss, inputs)])
    n_outputs = len(outputs)
    for i, (ours, theirs) in enumerate(zip(*results, strict=True)):
        assert ours.dtype == (dtype if n_outputs <= i < n_outputs + 3 else torch.float32)  # those by q, k and v
        scale = theirs.abs().max().clamp(min=0.1)
        torch.testing.assert_close(ours.double() / scale, theirs / scale, rtol=0, atol=ROUNDING[ours.dtype])


@needs_cpp
def test_cpp_backend_is_opt_in_and_agrees_with_default() -> None:
    assert ea.create("linear").backend == "chunked"
    ours, theirs = ea.create("linear:backend=cpp"), ea.create("linear")
    q, k, v = draw(2, 4, 100, 8), draw(2, 2, 100, 8), draw(2, 2, 100, 6)
    for mask in (ea.Mask(), ea.Mask(causal=True), ea.Mask(causal=True, key_lengths=torch.tensor([100, 3]))):
        torch.testing.assert_close(ours(q, k, v, mask), theirs(q, k, v, mask), rtol=0, atol=1e-12)
    half = ours(q.bfloat16(), k.bfloat16(), v.bfloat16(), ea.Mask(causal=True))
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("spec", ["performer", "retention", "random_feature:gated=true"])
def test_weighted_keys_are_unsupported(spec: str) -> None:
    dims = ea.Dims(heads=2, head_dim=8)
    assert "weights" in (ea.create(spec, dims=dims).why_not("cpp") or "")
    with pytest.raises(ea.UnsupportedError, match="is not available: its keys have weights"):
        ea.create(f"{spec}:backend=cpp", dims=dims)
    state = make_states(1, 2, 2, torch.float64)[0]
    with pytest.raises(ea.UnsupportedError, match="weights"):
        native.attend(draw(1, 1, 3, 2), Stretch(draw(1, 3, 2), draw(1, 3, 2), draw(1, 3)), state)


@needs_cpp
@pytest.mark.parametrize("spec", ["linear", "cosformer", "taylor", "performer:n_features=16", "retention"])
def test_default_scans_select_cpp_where_it_is_built(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    """In causal calls of more than 128 positions and in chunks after a context, unless keys have weights."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(autotuner, "CHOICES", {})
    dims = ea.Dims(heads=2, head_dim=8, max_len=700)
    attn, dense = ea.create(spec, dims=dims), ea.create(f"{spec}:backend=dense", dims=dims)
    q, k, v = (draw(1, 2, 700, 8, dtype=torch.float32).requires_grad_() for _ in range(3))
    grad = draw(1, 2, 700, 8, dtype=torch.float32)
    out, want = attn(q, k, v, ea.Mask(causal=True)), dense(q, k, v, ea.Mask(causal=True))
    weighs = spec.startswith(("performer", "retention"))
    assert ("scan=cpp" in autotuner.list_choices()) is not weighs
    results = [[x, *torch.autograd.grad(x, (q, k, v), grad)] for x in (out, want)]
    assert_agree(*results)
    autotuner.clear_choices()
    short, middle = (slice(0, n) for n in (128, 129))
    attn(q[:, :, short], k[:, :, short], v[:, :, short], ea.Mask(causal=True))
    assert "scan" not in autotuner.list_choices()
    attn(q[:, :, middle], k[:, :, middle], v[:, :, middle], ea.Mask(causal=True))
    assert ("scan=cpp" in autotuner.list_choices()) is not (weighs or spec == "taylor")
    with torch.no_grad():
        state = attn.absorb(k[:, :, :100], v[:, :, :100], attn.init_state(1, 700))
        late, _ = attn.step(q[:, :, 100:], k[:, :, 100:], v[:, :, 100:], state)
    assert_agree([late], [want[:, :, 100:]])


@needs_cpp
def test_threads_of_large_stretches_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones start none."""
    heads, length, width = 3, 1400, 128
    x, y, v = (draw(*size, dtype=torch.float32) for size in ((heads, 2, length, width), *[(heads, length, width)] * 2))
    results = []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        state = make_states(heads, width, width, torch.float32)[0]
        outputs = attend(native, x, y, v, state)
        grads = OutputGrads(x[..., :width] * 0.5, None)
        results.append([*outputs, *state.split(), *native.backward_keys(x, Stretch(y, v, None), grads, state, [None])])
        keys, state = KeyInputs(y, v), make_states(heads, width, width, torch.float32)[0]
        out, totals = native.attend_rows(elu_plus_one, x, keys, state, divides=True)
        rows, options = (x[..., :width] * 0.5, out, totals), {"divides": True}
        results[-1] += [
            out,
            totals,
            *state.split(),
            native.backward_query_rows(elu_plus_one, x, keys, rows, state, **options),
        ]
        results[-1] += native.backward_key_rows(elu_plus_one, x, keys, rows, state, **options)
    torch.testing.assert_close(*results, rtol=0, atol=0)  # threads have whole heads


@needs_cpp
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_half_precision_are_rounded_in_parts(dtype: torch.dtype) -> None:
    """Where no gradient is wanted; they equal those of float32, rounded, and the state after them."""
    q, k, v = (draw(*size).to(dtype) for size in ((2, 3, 1100, 24), (2, 1100, 24), (2, 1100, 20)))
    valid, results = torch.arange(1100).expand(2, 1100) % 7 != 3, []
    for wide_rows in (True, False):
        config = LinearConfig(elu_plus_one, replace_zero_by_one, native=True, wide_rows=wide_rows)
        out, after = scan.scan(config, q, KeyInputs(k, v, valid))
        assert out.dtype == (torch.float32 if wide_rows else dtype)
        results.append([out.to(dtype), after.kv, after.z])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
