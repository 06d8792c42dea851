"""Workloads: the inputs and the call of a case in each mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny_suites
import torch

import efficient_attn as ea
from efficient_attn.bench.case_config import Sampling
from efficient_attn.bench.measuring.inputs import draw_inputs
from efficient_attn.bench.measuring.workload import Workload


def _workload(variant: str = "full", mode: str = "forward", **axes: Any) -> Workload:
    return Workload(tiny_suites.case(variant, mode, **axes))


def _same(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_inputs_depend_on_seed_and_sizes_only() -> None:
    base = _workload()
    assert _same(base.sampled_inputs, _workload().sampled_inputs)
    assert _same(base.sampled_inputs, _workload("linear").sampled_inputs)  # the same for all mechanisms
    assert torch.equal(base.sample.q, _workload("mqa").sample.q)  # queries do not depend on key-value heads
    assert _same(base.sampled_inputs, _workload(causal=True).sampled_inputs)
    other = replace(base.case, group=replace(base.case.group, sampling=Sampling(seed=1)))
    assert not torch.equal(base.sample.q, Workload(other).sample.q)
    assert not torch.equal(base.sample.q, _workload(batch=2).sample.q[:1])


def test_inputs_have_the_shape_and_dtype_of_the_case() -> None:
    q, k, v = _workload("mqa", seq_len=24, batch=3, dtype="float64").sampled_inputs
    assert (q.shape, k.shape, v.shape) == ((3, 2, 24, 8), (3, 1, 24, 8), (3, 1, 24, 8))
    assert q.dtype == k.dtype == v.dtype == torch.float64


def _decoding_bytes(variant: str) -> tuple[int, int]:
    """Bytes that a step reads after 64 positions of 2 heads, and bytes of its state."""
    workload = _workload(variant, "decode", seq_len=64)
    return workload.bytes_moved, ea.state_bytes(workload.after_context(64))


@pytest.mark.parametrize(("variant", "keys"), [("strided:stride=8", 8 + 7), ("dilated_window:window=3:dilation=8", 4)])
def test_a_sparse_decode_step_reads_only_attended_keys(variant: str, keys: int) -> None:
    moved, held = _decoding_bytes(variant)
    assert moved == keys * 2 * 2 * 8 * 4
    assert moved < held


@pytest.mark.parametrize(
    "variant", ["full", "mqa", "mla:latent_dim=8:rotary_dim=4", "linear", "sliding_window:window=7"]
)
def test_other_decode_steps_read_their_whole_state(variant: str) -> None:
    moved, held = _decoding_bytes(variant)
    assert moved == held


def test_forward_calls_the_mechanism_with_the_mask_of_the_case() -> None:
    w = _workload(causal=True)
    with torch.no_grad():
        assert torch.equal(w.forward(w.sample), ea.create("full")(*w.sampled_inputs, ea.Mask(causal=True)))
    assert not torch.equal(w.forward(w.sample), _workload(causal=False).forward(w.sample))
    assert not w.forward(w.sample).requires_grad


def test_forward_backward_returns_gradients_and_keeps_inputs() -> None:
    w = _workload(mode="forward_backward", dtype="float64")
    out, *grads = w.forward_backward(w.sample)
    assert torch.equal(out.detach(), w.forward(w.sample))
    assert [g.shape for g in grads] == [x.shape for x in w.sampled_inputs]
    assert _same((out, *grads), w.forward_backward(w.sample))  # the upstream gradient is the same each time
    assert not any(x.requires_grad or x.grad is not None for x in w.sampled_inputs)
    leaves = [x.clone().requires_grad_() for x in w.sampled_inputs]
    upstream = torch.randn(w.forward(w.sample).shape, generator=torch.Generator().manual_seed(0)).double()
    expected = torch.autograd.grad(ea.create("full:backend=dense")(*leaves), leaves, upstream)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(grads, expected, strict=True))


def test_prefill_equals_the_causal_forward_pass() -> None:
    w = _workload("sliding_window:window=3", mode="prefill")
    assert torch.allclose(w.prefill(w.sample), w.forward(w.sample), atol=1e-6)


def test_inputs_of_another_shape_can_be_drawn() -> None:
    w = _workload()
    sample = draw_inputs(w.case, w.attn, replace(w.shape, n=3, m=5))
    assert (sample.q.shape[2], sample.k.shape[2]) == (3, 5)


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_compiled_decode_and_prefill_are_unsupported(mode: str) -> None:
    with pytest.raises(ea.UnsupportedError, match="only forward and forward_backward are compiled"):
        Workload(tiny_suites.case("full", mode=mode, compiled=True)).warm()


@pytest.mark.parametrize("mode", ["forward", "forward_backward", "prefill", "decode"])
def test_mechanisms_that_compile_themselves_are_called_in_warm_up(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first sample, or the limit of a first step, would include the compilation otherwise."""
    calls: list[int] = []

    def counting(out: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return out

    with tiny_suites.isolated_registry():
        workload = _workload(tiny_suites.register_modified("zz_compiles", counting, advance=counting), mode=mode)
        workload.warm()
        assert not calls
        monkeypatch.setattr(type(workload.attn), "compiles", True)
        workload.warm()
        assert calls


@pytest.mark.slow
def test_compiling_counts_graph_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The eager backend has the same graph breaks, and compiles nothing."""
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda attn: original(attn, backend="eager"))

    def twist(out: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return out

    with tiny_suites.isolated_registry():
        name = tiny_suites.register_modified("zz_breaks", twist)
        plain, broken = (Workload(tiny_suites.case(v, compiled=True)) for v in ("full", name))
        for workload in (plain, broken):
            workload.warm()
            assert workload.call is not workload.attn
            reference = Workload(tiny_suites.case("full"))
            torch.testing.assert_close(workload.forward(workload.sample), reference.forward(reference.sample))
    assert broken.graph_breaks > plain.graph_breaks
