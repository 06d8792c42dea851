"""The chunked sums of linear attention: any chunk size, any cut, and memory that does not grow with N x M."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.feature_maps import elu_plus_one as phi
from efficient_attn.kernels import scan
from efficient_attn.kernels.scan import Sums


def tensors(n: int, m: int, *, group: int = 2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = ((3, group, n, 4), (3, m, 4), (3, m, 5))
    q, k, v = (torch.randn(s, generator=g, dtype=torch.float64) for s in shapes)
    return q, k, v


def plain(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    weights = (phi(q) @ phi(k).mT[:, None]) * allowed
    total = weights.sum(-1, keepdim=True)
    return (weights @ v[:, None]) / torch.where(total == 0, 1, total)


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
@pytest.mark.parametrize("graph", [False, True])
def test_scan_is_the_lower_triangle_at_any_chunk_size(monkeypatch, chunk: int, graph: bool) -> None:
    monkeypatch.setattr(scan, "SCAN_CHUNK", chunk)
    monkeypatch.setattr(scan, "TRAIN_CHUNK", chunk)
    q, k, v = (x.requires_grad_(graph) for x in tensors(20, 20))
    valid = torch.arange(20).expand(3, 20) % 4 != 2
    for mask in (None, valid):
        allowed = torch.ones(20, 20).tril() if mask is None else torch.ones(20, 20).tril() * mask[:, None, None]
        out, sums = scan.scan(phi, q, k, v, mask)
        torch.testing.assert_close(out, plain(q, k, v, allowed), rtol=0, atol=1e-12)
        after = scan.summed(phi, k, v, mask)
        torch.testing.assert_close(sums.kv, after.kv, rtol=0, atol=1e-11)
        torch.testing.assert_close(sums.k, after.k, rtol=0, atol=1e-11)


@pytest.mark.parametrize("chunk", [1, 5, 512])
def test_sums_and_reads_at_any_chunk_size(monkeypatch, chunk: int) -> None:
    monkeypatch.setattr(scan, "ALL_CHUNK", chunk)
    q, k, v = tensors(9, 14)
    out = scan.read(phi, q, scan.summed(phi, k, v, None))
    torch.testing.assert_close(out, plain(q, k, v, torch.ones(9, 14)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("graph", [False, True])
def test_what_came_before_goes_on(graph: bool) -> None:
    q, k, v = (x.requires_grad_(graph) for x in tensors(20, 20))
    whole, _ = scan.scan(phi, q, k, v, None)
    _, past = scan.scan(phi, q[:, :, :13], k[:, :13], v[:, :13], None)
    rest, _ = scan.scan(phi, q[:, :, 13:], k[:, 13:], v[:, 13:], None, past)
    torch.testing.assert_close(rest, whole[:, :, 13:], rtol=0, atol=1e-12)


def test_the_state_before_is_left_alone() -> None:
    q, k, v = tensors(5, 5)
    past = Sums(torch.ones(3, 4, 5, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64))
    for run in (lambda: scan.scan(phi, q, k, v, None, past), lambda: scan.summed(phi, k, v, None, past)):
        run()
        assert (past.kv == 1).all()
        assert (past.k == 1).all()


def test_half_precision_is_summed_in_float32() -> None:
    _, k, v = (x.to(torch.bfloat16) for x in tensors(5, 5))
    sums = scan.summed(phi, k, v, None)
    assert sums.kv.dtype == sums.k.dtype == torch.float32


def test_zero_weights_give_zeros() -> None:
    q, k, v = tensors(5, 5)
    out, _ = scan.scan(torch.zeros_like, q, k, v, None)
    assert not out.any()


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
def test_memory_at_65536_positions_is_a_few_outputs(spec: str, causal: bool) -> None:
    attn, mask = ea.create(spec), ea.Mask(causal=causal)
    q = torch.randn(1, 1, N, D)
    output = N * D * 4
    with torch.no_grad():
        peak = peak_bytes(lambda: attn(q, q, q, mask))
    assert output <= peak <= 8 * output, f"{peak / output:.1f} outputs"
    assert peak < N * N / 100  # an N x N mask of one byte a pair would take a hundred times as much


def test_the_meter_sees_a_dense_matrix() -> None:
    q, n = torch.randn(1, 1, 1024, D), 1024
    assert peak_bytes(lambda: ea.create("full:backend=dense")(q, q, q)) > n * n * 4
