"""What one call of a case is: its inputs, its modes, and decoding after a context."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import planted
import pytest
import torch

import efficient_attn as ea
from efficient_attn.bench import workload as workload_module
from efficient_attn.bench.gate import gate
from efficient_attn.bench.place import Effort
from efficient_attn.bench.workload import LEAST_STEPS, RESERVE, SETTLING, Decoding, Workload, draw, of_keys, repeat


def _workload(variant: str = "full", mode: str = "forward", **axes: Any) -> Workload:
    return Workload(planted.case(variant, mode, **axes))


def _same(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_inputs_are_a_function_of_seed_and_sizes() -> None:
    base = _workload()
    assert _same(base.tensors, _workload().tensors)
    assert _same(base.tensors, _workload("linear").tensors)  # all mechanisms of a cell get the same
    assert torch.equal(base.sample.q, _workload("mqa").sample.q)  # the queries, whatever the key-value heads
    assert _same(base.tensors, _workload(causal=True).tensors)
    other = replace(base.case, cell=replace(base.case.cell, effort=Effort(seed=1)))
    assert not torch.equal(base.sample.q, Workload(other).sample.q)
    assert not torch.equal(base.sample.q, _workload(batch=2).sample.q[:1])


def test_sizes_follow_the_case() -> None:
    q, k, v = _workload("mqa", seq_len=24, batch=3, dtype="float64").tensors
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
        assert torch.equal(w.forward(), ea.create("full")(*w.tensors, ea.Mask(causal=True)))
    assert not torch.equal(w.forward(), _workload(causal=False).forward())
    assert not w.forward().requires_grad


def test_forward_backward_gives_every_gradient_and_leaves_the_inputs_alone() -> None:
    w = _workload(mode="forward_backward", dtype="float64")
    found = w.forward_backward()
    assert [g.shape for g in found] == [x.shape for x in w.tensors]
    assert _same(found, w.forward_backward())  # of the same gradient of the output each time
    assert not any(x.requires_grad or x.grad is not None for x in w.tensors)
    leaves = [x.clone().requires_grad_() for x in w.tensors]
    upstream = torch.randn(w.forward().shape, generator=torch.Generator().manual_seed(0)).double()
    wanted = torch.autograd.grad(ea.create("full:backend=dense")(*leaves), leaves, upstream)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(found, wanted, strict=True))


def test_prefill_gives_the_rows_of_the_causal_forward_pass() -> None:
    w = _workload("sliding_window:window=3", mode="prefill")
    out, state = w.prefill()
    assert torch.allclose(out, w.forward(), atol=1e-6)
    assert state.length == 16


@pytest.mark.parametrize("variant", ["full", "linear", "mqa", "sliding_window:window=3"])
def test_a_step_stands_behind_the_whole_context(variant: str) -> None:
    w = _workload(variant, "decode", dtype="float64")
    decoding = Decoding(w)
    out = decoding.step()
    k, v = torch.cat([w.sample.k, decoding.token.k], 2), torch.cat([w.sample.v, decoding.token.v], 2)
    with torch.no_grad():
        wanted = w.case.create(backend="dense")(decoding.token.q, k, v, ea.Mask(causal=True))
    assert torch.allclose(out, wanted, atol=1e-10)
    assert decoding.state.length == 17


def test_a_reset_goes_back_to_the_context() -> None:
    decoding = Decoding(_workload(mode="decode"))
    first = decoding.step()
    second = decoding.step()
    assert decoding.state.length == 18
    decoding.reset()
    assert decoding.state.length == 16
    assert torch.equal(decoding.step(), first)
    assert not torch.equal(first, second)


def test_a_pass_of_steps_fits_its_reserve() -> None:
    subject = _workload(mode="decode").subject()
    assert subject.limit == RESERVE - SETTLING >= LEAST_STEPS
    for _ in range(2):
        subject.reset()
        subject.run(subject.limit)


@pytest.mark.parametrize("mode", ["forward", "forward_backward", "prefill"])
def test_the_subject_calls_what_the_mode_says(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("forward", "forward_backward", "prefill"):
        monkeypatch.setattr(Workload, name, lambda self, name=name: calls.append(name))
    _workload(mode=mode).subject().run(3)
    assert calls == [mode] * 3


def test_repeat_makes_as_many_calls_as_asked() -> None:
    calls: list[int] = []
    repeat(lambda: calls.append(1)).run(5)
    assert len(calls) == 5


def test_the_first_steps_behind_a_new_state_are_not_timed() -> None:
    w = _workload(mode="decode")
    w.subject().reset()
    assert w.decoding.state.length == 16 + SETTLING


@pytest.mark.parametrize("variant", ["random_feature:gated=true", "mla:latent_dim=16"])
def test_steps_with_further_inputs_or_without_values_pass_the_gate(variant: str) -> None:
    w = _workload(variant, "decode", dtype="float64")
    assert gate(w) < 1e-9
    w.subject().run(2)


def test_inputs_of_queries_come_with_the_steps_only() -> None:
    with planted.undone():
        traits = ea.Traits(inputs={"gate": ea.Input("query"), "rate": ea.Input("key", per_head=False)})
        w = _workload(planted.plant("zz_gated", traits=traits), "decode")
        assert w.sample.inputs["gate"].shape == (1, 2, 16)
        assert of_keys(w.attn, w.sample).keys() == {"rate"}
        assert w.decoding.token.inputs["gate"].shape == (1, 2, 1)
        w.decoding.step()


def test_another_shape_can_be_drawn_for_the_same_case() -> None:
    w = _workload()
    sample = draw(w.case, w.attn, replace(w.shape, n=3, m=5))
    assert (sample.q.shape[2], sample.k.shape[2]) == (3, 5)


# -- other conditions ----------------------------------------------------------------------------------------------


def test_cold_calls_are_timed_singly_behind_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_module, "FLUSH", 4096)
    case = planted.case("full", cache="cold")
    assert "-cold#" in case.key
    subject = Workload(case).subject()
    assert (subject.limit, subject.least) == (1, 1)
    assert _written(subject.reset) == [4096]
    assert _written(lambda: subject.run(1)) == []
    assert _written(Workload(planted.case("full")).subject().reset) == []


def _written(call: Callable[[], object]) -> list[int]:
    """Bytes of every tensor that is added to in place."""
    with torch.profiler.profile(record_shapes=True) as trace:
        call()
    return [4 * math.prod(e.input_shapes[0]) for e in trace.events() or () if e.name == "aten::add_"]


def test_a_cold_decode_step_is_single_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_module, "FLUSH", 4096)
    workload = Workload(planted.case("full", mode="decode", cache="cold"))
    subject = workload.subject()
    assert subject.limit == 1
    for _ in range(3):
        subject.reset()
        subject.run(1)
    assert workload.decoding.state.length == 17 + SETTLING  # the context is set up anew each time


def test_cuda_graphs_need_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ea.UnsupportedError, match="need a CUDA device"):
        Workload(planted.case("full", cuda_graph=True)).subject()


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_what_is_not_compiled_says_so(mode: str) -> None:
    with pytest.raises(ea.UnsupportedError, match="only forward and forward_backward are compiled"):
        Workload(planted.case("full", mode=mode, compiled=True)).warm()


@pytest.mark.slow
def test_compiling_counts_graph_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backend that compiles nothing: what is compiled, and what breaks, is the same."""
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda attn: original(attn, backend="eager"))

    def twist(out: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return out

    with planted.undone():
        name = planted.plant("zz_breaks", twist)
        plain, broken = (Workload(planted.case(v, compiled=True)) for v in ("full", name))
        for workload in (plain, broken):
            workload.warm()
            assert workload.call is not workload.attn
            torch.testing.assert_close(workload.forward(), Workload(planted.case("full")).forward())
    assert broken.graph_breaks > plain.graph_breaks
