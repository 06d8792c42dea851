"""What one call of a case is: its inputs and its modes."""

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


def test_inputs_are_a_function_of_seed_and_sizes() -> None:
    base = _workload()
    assert _same(base.sampled_inputs, _workload().sampled_inputs)
    assert _same(base.sampled_inputs, _workload("linear").sampled_inputs)  # all mechanisms of a cell get the same
    assert torch.equal(base.sample.q, _workload("mqa").sample.q)  # the queries, whatever the key-value heads
    assert _same(base.sampled_inputs, _workload(causal=True).sampled_inputs)
    other = replace(base.case, group=replace(base.case.group, sampling=Sampling(seed=1)))
    assert not torch.equal(base.sample.q, Workload(other).sample.q)
    assert not torch.equal(base.sample.q, _workload(batch=2).sample.q[:1])


def test_sizes_follow_the_case() -> None:
    q, k, v = _workload("mqa", seq_len=24, batch=3, dtype="float64").sampled_inputs
    assert (q.shape, k.shape, v.shape) == ((3, 2, 24, 8), (3, 1, 24, 8), (3, 1, 24, 8))
    assert q.dtype == k.dtype == v.dtype == torch.float64


def _decoding_bytes(variant: str) -> tuple[int, int]:
    """What a step must read after 64 positions of 2 heads, and what its state holds."""
    w = _workload(variant, "decode", seq_len=64)
    return w.bytes_moved, ea.state_bytes(w.after_context(64))


@pytest.mark.parametrize(("variant", "keys"), [("strided:stride=8", 8 + 7), ("dilated_window:window=3:dilation=8", 4)])
def test_of_a_whole_past_a_step_reads_the_keys_that_it_sees(variant: str, keys: int) -> None:
    moved, held = _decoding_bytes(variant)
    assert moved == keys * 2 * 2 * 8 * 4
    assert moved < held


@pytest.mark.parametrize(
    "variant", ["full", "mqa", "mla:latent_dim=8:rotary_dim=4", "linear", "sliding_window:window=7"]
)
def test_of_any_other_state_a_step_reads_all(variant: str) -> None:
    moved, held = _decoding_bytes(variant)
    assert moved == held


def test_forward_is_the_mechanism_under_the_cases_mask() -> None:
    w = _workload(causal=True)
    with torch.no_grad():
        assert torch.equal(w.forward(w.sample), ea.create("full")(*w.sampled_inputs, ea.Mask(causal=True)))
    assert not torch.equal(w.forward(w.sample), _workload(causal=False).forward(w.sample))
    assert not w.forward(w.sample).requires_grad


def test_forward_backward_gives_every_gradient_and_leaves_the_inputs_alone() -> None:
    w = _workload(mode="forward_backward", dtype="float64")
    out, *found = w.forward_backward(w.sample)
    assert torch.equal(out.detach(), w.forward(w.sample))
    assert [g.shape for g in found] == [x.shape for x in w.sampled_inputs]
    assert _same((out, *found), w.forward_backward(w.sample))  # of the same gradient of the output each time
    assert not any(x.requires_grad or x.grad is not None for x in w.sampled_inputs)
    leaves = [x.clone().requires_grad_() for x in w.sampled_inputs]
    upstream = torch.randn(w.forward(w.sample).shape, generator=torch.Generator().manual_seed(0)).double()
    wanted = torch.autograd.grad(ea.create("full:backend=dense")(*leaves), leaves, upstream)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(found, wanted, strict=True))


def test_prefill_gives_the_rows_of_the_causal_forward_pass() -> None:
    w = _workload("sliding_window:window=3", mode="prefill")
    assert torch.allclose(w.prefill(w.sample), w.forward(w.sample), atol=1e-6)


def test_another_shape_can_be_drawn_for_the_same_case() -> None:
    w = _workload()
    sample = draw_inputs(w.case, w.attn, replace(w.shape, n=3, m=5))
    assert (sample.q.shape[2], sample.k.shape[2]) == (3, 5)


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_what_is_not_compiled_says_so(mode: str) -> None:
    with pytest.raises(ea.UnsupportedError, match="only forward and forward_backward are compiled"):
        Workload(tiny_suites.case("full", mode=mode, compiled=True)).warm()


@pytest.mark.parametrize("mode", ["forward", "forward_backward", "prefill", "decode"])
def test_who_compiles_by_itself_does_so_in_a_call_of_its_own(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be in the first pass of all that take a second a call: these are not warmed up."""
    made: list[int] = []

    def counting(out: torch.Tensor) -> torch.Tensor:
        made.append(1)
        return out

    with tiny_suites.isolated_registry():
        workload = _workload(tiny_suites.register_modified("zz_compiles", counting, advance=counting), mode=mode)
        workload.warm()
        assert not made
        monkeypatch.setattr(type(workload.attn), "compiles", True)
        workload.warm()
        assert bool(made) == (mode != "decode")  # where some steps after the context are not timed


@pytest.mark.slow
def test_compiling_counts_graph_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backend that compiles nothing: what is compiled, and what breaks, is the same."""
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
            plain_one = Workload(tiny_suites.case("full"))
            torch.testing.assert_close(workload.forward(workload.sample), plain_one.forward(plain_one.sample))
    assert broken.graph_breaks > plain.graph_breaks
