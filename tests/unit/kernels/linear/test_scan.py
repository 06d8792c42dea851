"""The causal scan of linear attention: any chunk size, any split, key weights of any size, and memory linear in N."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.feature_maps import FeatureMap, elu_plus_one
from efficient_attn.kernels.linear import chunks, linear_config, scan, sums
from efficient_attn.kernels.linear.linear_config import KeyInputs, LinearConfig, replace_zero_by_one
from efficient_attn.kernels.linear.sums import Sums

CONFIG = LinearConfig(elu_plus_one, replace_zero_by_one)


def tensors(n: int, *, group: int = 2, graph: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = ((3, group, n, 4), (3, n, 4), (3, n, 5))
    q, k, v = (torch.randn(s, generator=g, dtype=torch.float64, requires_grad=graph) for s in shapes)
    return q, k, v


def plain(q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> Tensor:
    products = (elu_plus_one(q)[0] @ elu_plus_one(k)[0].mT[:, None]) * weights
    return products @ v[:, None] / replace_zero_by_one(products.sum(-1, keepdim=True))


def _use_short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use stretches of 8 positions instead of hundreds."""
    monkeypatch.setattr(linear_config, "MAX_FEATURE_ELEMENTS", 1)
    monkeypatch.setattr(linear_config, "MIN_STRETCH", 8)
    q = torch.empty(3, 2, 20, 4)
    assert CONFIG.cut(q, CONFIG.fit(64, q)) == [slice(0, 8), slice(8, 16), slice(16, 20)]


@pytest.fixture(params=[1, 2, 1 << 40], ids=["one chunk", "a few chunks", "all chunks"])
def _chunks_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many chunks are computed at once; the sums of the tensors drawn here have 3 x 4 x 5 elements."""
    monkeypatch.setattr(chunks, "MAX_SUMS_ELEMENTS", request.param * 60)


@pytest.mark.usefixtures("_chunks_at_once")
@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
@pytest.mark.parametrize("graph", [False, True])
def test_scan_equals_masked_products_for_any_chunk_size(monkeypatch, chunk: int, graph: bool) -> None:
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    _use_short_stretches(monkeypatch)
    q, k, v = tensors(20, graph=graph)
    valid = torch.arange(20).expand(3, 20) % 4 != 2
    for mask in (None, valid):
        allowed = torch.ones(20, 20).tril() if mask is None else torch.ones(20, 20).tril() * mask[:, None, None]
        out, after = scan.scan(CONFIG, q, KeyInputs(k, v, mask, None))
        torch.testing.assert_close(out, plain(q, k, v, allowed), rtol=0, atol=1e-12)
        total = sums.sum_keys(CONFIG, KeyInputs(k, v, mask, None))
        torch.testing.assert_close(after.kv, total.kv, rtol=0, atol=1e-11)
        torch.testing.assert_close(after.z, total.z, rtol=0, atol=1e-11)


@pytest.mark.usefixtures("_chunks_at_once")
@pytest.mark.parametrize("chunk", [1, 3, 8, 128])
@pytest.mark.parametrize("weighted", [False, True])
def test_scan_gradients_equal_autograds(monkeypatch, chunk: int, weighted: bool) -> None:
    """For queries, keys, values, weights and the previous state, through the output and the new state."""
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    _use_short_stretches(monkeypatch)
    q, k, v = tensors(20, graph=True)
    logs = torch.randn(3, 20, dtype=torch.float64, requires_grad=True) if weighted else None
    kv = torch.rand(3, 4, 5, dtype=torch.float64, requires_grad=True)
    z = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    reference = torch.full((3,), 0.3, dtype=torch.float64) if weighted else None
    out, after = scan.scan(CONFIG, q, KeyInputs(k, v, None, logs), Sums(kv, z, reference))

    x, y = elu_plus_one(q)[0], elu_plus_one(k)[0]
    scale = torch.ones(3, 20, dtype=torch.float64) if logs is None else (logs - 0.3).exp()
    weights = (x @ (y * scale[..., None]).mT[:, None]).tril()
    top = weights @ v[:, None] + x @ kv[:, None]
    want = top / (weights.sum(-1, keepdim=True) + x @ z[:, None, :, None])
    want_kv = kv + (y * scale[..., None]).mT @ v
    torch.testing.assert_close(out, want, rtol=0, atol=1e-12)
    size = 1 if after.reference is None else (after.reference - 0.3).exp()[:, None, None]
    torch.testing.assert_close(after.kv * size, want_kv, rtol=0, atol=1e-12)

    sources = [t for t in (q, k, v, logs, kv, z) if t is not None]
    got_loss = out.cos().sum() + (after.kv * size).cos().sum()
    want_loss = want.cos().sum() + want_kv.cos().sum()
    for got, exact in zip(torch.autograd.grad(got_loss, sources), torch.autograd.grad(want_loss, sources), strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-11)  # some gradients are about 100


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_scan_continues_from_a_previous_state(graph: bool, weighted: bool) -> None:
    q, k, v = tensors(20, graph=graph)
    logs = torch.linspace(-9, 9, 20, dtype=torch.float64).expand(3, 20) if weighted else None
    first, last = (None, None) if logs is None else (logs[:, :13], logs[:, 13:])
    whole, _ = scan.scan(CONFIG, q, KeyInputs(k, v, None, logs))
    _, past = scan.scan(CONFIG, q[:, :, :13], KeyInputs(k[:, :13], v[:, :13], None, first))
    rest, _ = scan.scan(CONFIG, q[:, :, 13:], KeyInputs(k[:, 13:], v[:, 13:], None, last), past)
    torch.testing.assert_close(rest, whole[:, :, 13:], rtol=0, atol=1e-12)


def test_extreme_key_weights_do_not_overflow() -> None:
    """exp(a) itself would overflow from 710 on, and underflow below -745."""
    q, k, v = tensors(40)
    logs = torch.linspace(-1e4, 1e4, 40, dtype=torch.float64).expand(3, 40).roll(20, 1)
    out, _ = scan.scan(CONFIG, q, KeyInputs(k, v, None, logs))
    largest = logs.cummax(1)[1]  # steps of 513: the heaviest key so far outweighs all others
    want = v.gather(1, largest[..., None].expand_as(v))
    torch.testing.assert_close(out, want[:, None].expand_as(out), rtol=0, atol=1e-12)


def test_masked_keys_do_not_affect_the_weights_of_others() -> None:
    """A reference taken from masked keys would make weights of exp(-900) vanish."""
    q, k, v = tensors(300)
    logs, valid = torch.full((3, 300), -900.0, dtype=torch.float64), torch.arange(300).expand(3, 300) >= 200
    logs[:, :200] = 0
    out, _ = scan.scan(CONFIG, q, KeyInputs(k, v, valid, logs))
    want = plain(q, k, v, torch.ones(300, 300).tril() * valid[:, None, None])
    torch.testing.assert_close(out, want, rtol=0, atol=1e-12)


def test_previous_state_is_not_modified() -> None:
    q, k, v = tensors(5)
    past = Sums(torch.ones(3, 4, 5, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64))
    for run in (
        lambda: scan.scan(CONFIG, q, KeyInputs(k, v, None, None), past),
        lambda: sums.sum_keys(CONFIG, KeyInputs(k, v, None, None), past),
    ):
        run()
        assert (past.kv == 1).all()
        assert (past.z == 1).all()


def test_zero_features_give_zero_output() -> None:
    q, k, v = tensors(5)
    out, _ = scan.scan(LinearConfig(FeatureMap(torch.zeros_like), replace_zero_by_one), q, KeyInputs(k, v, None, None))
    assert not out.any()


def test_a_second_derivative_is_refused() -> None:
    q, k, v = tensors(5, graph=True)
    out, _ = scan.scan(CONFIG, q, KeyInputs(k, v, None, None))
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(ea.UnsupportedError, match="no second derivative; backend=dense has one"):
        first.sum().backward()


# -- memory at a length where N x M entries would not fit ---------------------------------------------------------

N, D = 65_536, 64


def peak_bytes(run) -> int:
    """The highest sum of live allocations while it runs, from the profiler's memory events in order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        run()
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]  # pyright: ignore
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", ["linear", "sliding_window:window=64", "sliding_window:window=64:backend=blocks"])
def test_peak_memory_is_at_most_eight_outputs(spec: str, causal: bool) -> None:
    attn, mask = ea.create(spec), ea.Mask(causal=causal)
    q = torch.randn(1, 1, N, D)
    output = N * D * 4
    with torch.no_grad():
        peak = peak_bytes(lambda: attn(q, q, q, mask))
    assert output <= peak <= 8 * output, f"{peak / output:.1f} outputs"
    assert peak < N * N / 100  # an N x N mask of one byte a pair would take a hundred times as much


def test_measured_peak_includes_a_dense_matrix() -> None:
    q, n = torch.randn(1, 1, 1024, D), 1024
    assert peak_bytes(lambda: ea.create("full:backend=dense")(q, q, q)) > n * n * 4
