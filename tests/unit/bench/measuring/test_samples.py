"""What is timed: passes of calls on changing inputs, steps after a context, and the look at one of those calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny_suites
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench.case_config import MAX_DECODE_STEPS
from efficient_attn.bench.measuring import samples
from efficient_attn.bench.measuring.output_comparison import InvalidResult
from efficient_attn.bench.measuring.samples import MIN_STEPS, WARMUP_STEPS, TimedSteps, make_timed, verify_workload
from efficient_attn.bench.measuring.workload import Workload, list_key_inputs
from efficient_attn.instruments.global_state import GlobalStateChanged
from efficient_attn.instruments.timing import TimedCall

MODES = ("forward", "forward_backward", "prefill", "decode")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


def _workload(variant: str = "full", mode: str = "forward", **axes: Any) -> Workload:
    return Workload(tiny_suites.case(variant, mode, **axes))


def _subject(w: Workload) -> TimedCall:
    return make_timed(w, seed=0)


def _judge(subject: TimedCall, calls: int, *, passes: int) -> None:
    for _ in range(passes):
        subject.reset(calls)
        subject.run(calls)
        subject.verify()


def _steps(w: Workload, calls: int = 4) -> TimedSteps:
    steps = TimedSteps(w, 0)
    steps.reset(calls)
    return steps


# -- calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["forward", "forward_backward", "prefill"])
def test_the_subject_calls_what_the_mode_says(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("forward", "forward_backward", "prefill"):
        monkeypatch.setattr(Workload, name, lambda self, sample, name=name: calls.append(name))
    subject = _subject(_workload(mode=mode))
    subject.reset(3)
    subject.run(3)
    assert calls == [mode] * 3


def test_no_two_calls_of_a_pass_get_the_same_contents_nor_the_next_pass() -> None:
    seen: list[Tensor] = []
    name = tiny_suites.register_modified("zz_sees", lambda out: seen.append(out.clone()) or out)
    subject = _subject(_workload(name))
    for _ in range(2):
        subject.reset(20)
        subject.run(20)
    assert len({out.numpy().tobytes() for out in seen}) == 40


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", ["full", "linear", "gqa:kv_heads=1", "sliding_window:window=3", "reformer"])
def test_honest_calls_pass_every_look(variant: str, mode: str) -> None:
    if variant == "reformer" and mode in ("prefill", "decode"):
        pytest.skip("it does not decode")
    subject = _subject(_workload(variant, mode, heads=4, seq_len=40))
    _judge(subject, MIN_STEPS, passes=5)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_wrong_only_while_it_is_timed_is_caught(mode: str) -> None:
    calls = [0]

    def late(out: Tensor) -> Tensor:
        calls[0] += 1
        return out * (1.01 if calls[0] > 60 else 1)

    w = _workload(tiny_suites.register_modified("zz_late", late, advance=late), mode)
    assert verify_workload(w)[0] < 1e-5
    with pytest.raises(InvalidResult, match="differs from the reference"):
        _judge(_subject(w), MIN_STEPS, passes=40)  # the call that is looked at is drawn


def test_inputs_that_are_written_past_their_version_are_caught() -> None:
    class Writes(ea.SoftmaxAttention):
        """Exact attention that writes into its values through numpy, after it has used them."""

        def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
            out = super().compute(q, k, v, mask, **inputs)
            v.detach().numpy()[0, 0, 0, 0] += 1
            return out

    ea.register("zz_writes", family="full")(Writes)
    subject = _subject(_workload("zz_writes"))
    subject.reset(3)
    subject.run(3)
    with pytest.raises(GlobalStateChanged, match="it wrote into its input v"):
        subject.verify()


def test_a_result_in_the_memory_of_an_earlier_one_is_caught() -> None:
    kept: dict[str, Tensor] = {}

    def reuse(out: Tensor) -> Tensor:
        return kept.setdefault("buffer", torch.empty_like(out)).copy_(out)

    subject = _subject(_workload(tiny_suites.register_modified("zz_buffer", reuse)))
    with pytest.raises(InvalidResult, match="shares its memory with that of an earlier call"):
        _judge(subject, 9, passes=9)


class Lazy(torch.Tensor):
    """A tensor of a kind of its own."""


@pytest.mark.parametrize(
    ("twist", "says"),
    [
        (lambda out: out.as_subclass(Lazy), "a Lazy, not a plain tensor"),
        (lambda out: out.to("meta"), "is on meta, not on cpu"),
    ],
)
def test_results_are_plain_tensors_where_the_inputs_are(twist: Any, says: str) -> None:
    with pytest.raises(InvalidResult, match=says):
        verify_workload(_workload(tiny_suites.register_modified("zz_unlike", twist)))


# -- steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["full", "linear", "mqa", "sliding_window:window=3"])
def test_a_step_stands_after_the_whole_context(variant: str) -> None:
    w = _workload(variant, "decode", dtype="float64")
    steps = _steps(w)
    before, token = steps.token_samples[:WARMUP_STEPS], steps.token_samples[WARMUP_STEPS]
    out = steps.step(token)
    k, v = (torch.cat([getattr(s, name) for s in (steps.context_sample, *before, token)], 2) for name in ("k", "v"))
    with torch.no_grad():
        wanted = w.case.create(backend="dense")(token.q, k, v, ea.Mask(causal=True))
    assert torch.allclose(out, wanted, atol=1e-10)
    assert steps.state.length == 17 + WARMUP_STEPS


def test_a_reset_makes_a_new_context() -> None:
    steps = _steps(_workload(mode="decode"))
    first = [x.clone() for x in (steps.context_sample.k, steps.token_samples[0].q)]
    steps.run(3)
    assert steps.state.length == 16 + WARMUP_STEPS + 3
    steps.reset(3)
    assert steps.state.length == 16 + WARMUP_STEPS  # the first steps after a new state are not timed
    assert not torch.equal(steps.context_sample.k, first[0])


def test_a_pass_of_steps_fits_its_reserve() -> None:
    subject = _subject(_workload(mode="decode"))
    assert subject.max_calls == MAX_DECODE_STEPS - WARMUP_STEPS >= MIN_STEPS
    for _ in range(2):
        subject.reset(subject.max_calls)
        subject.run(subject.max_calls)
        subject.verify()


@pytest.mark.parametrize("variant", ["random_feature:gated=true", "mla:latent_dim=16"])
def test_steps_with_further_inputs_or_without_values_pass_the_gate(variant: str) -> None:
    w = _workload(variant, "decode", dtype="float64")
    assert verify_workload(w)[0] < 1e-9


def test_inputs_of_queries_come_with_the_steps_only() -> None:
    traits = ea.Traits(inputs={"gate": ea.Input("query"), "rate": ea.Input("key", per_head=False)})
    w = _workload(tiny_suites.register_modified("zz_gated", traits=traits), "decode")
    assert w.sample.inputs["gate"].shape == (1, 2, 16)
    assert list_key_inputs(w.attn, w.sample).keys() == {"rate"}
    steps = _steps(w)
    assert steps.token_samples[0].inputs["gate"].shape == (1, 2, 1)
    steps.run(1)


# -- other conditions ----------------------------------------------------------------------------------------------


def test_cold_calls_are_timed_singly_behind_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "FLUSH_BYTES", 4096)
    case = tiny_suites.case("full", cache="cold")
    assert "-cold#" in case.key
    subject = _subject(Workload(case))
    assert (subject.max_calls, subject.min_calls) == (1, 1)
    assert _written(lambda: subject.reset(1)) == [4096]
    assert _written(lambda: subject.run(1)) == []
    assert _written(lambda: _subject(_workload()).reset(1)) == []


def _written(call: Callable[[], object]) -> list[int]:
    """Bytes of every tensor that is added to in place."""
    with torch.profiler.profile(record_shapes=True) as trace:
        call()
    return [4 * math.prod(e.input_shapes[0]) for e in trace.events() or () if e.name == "aten::add_"]


def test_a_cold_decode_step_is_single_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "FLUSH_BYTES", 4096)
    subject = _subject(_workload(mode="decode", cache="cold"))
    assert subject.max_calls == 1
    for _ in range(3):
        subject.reset(1)
        subject.run(1)
        subject.verify()


def test_cuda_graphs_need_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ea.UnsupportedError, match="need a CUDA device"):
        _subject(_workload(cuda_graph=True))
