"""Samples: calls on changing inputs, decode steps after a context, and the verification of one of the calls."""

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
from efficient_attn.bench.measuring.row_errors import InvalidResult
from efficient_attn.bench.measuring.samples import MIN_STEPS, WARMUP_STEPS, TimedSteps, make_timed, verify_workload
from efficient_attn.bench.measuring.workload import Workload, list_key_inputs
from efficient_attn.instruments.global_state import GlobalStateChanged
from efficient_attn.instruments.timing import TimedCall

MODES = ("forward", "forward_backward", "prefill", "decode")


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


def _workload(variant: str = "full", mode: str = "forward", **axes: Any) -> Workload:
    return Workload(tiny_suites.case(variant, mode, **axes))


def _make_timed(w: Workload) -> TimedCall:
    return make_timed(w, seed=0)


def _run_samples(timed: TimedCall, calls: int, *, n_samples: int) -> None:
    for _ in range(n_samples):
        timed.reset(calls)
        timed.run(calls)
        timed.settle()
        timed.verify()


def _steps(w: Workload, calls: int = 4) -> TimedSteps:
    steps = TimedSteps(w, 0)
    steps.reset(calls)
    return steps


# -- calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["forward", "forward_backward", "prefill"])
def test_the_timed_call_follows_the_mode(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("forward", "forward_backward", "prefill"):
        monkeypatch.setattr(Workload, name, lambda self, sample, name=name: calls.append(name))
    timed = _make_timed(_workload(mode=mode))
    timed.reset(3)
    timed.run(3)
    assert calls == [mode] * 3


def test_calls_of_all_samples_have_distinct_inputs() -> None:
    seen: list[Tensor] = []
    name = tiny_suites.register_modified("zz_sees", lambda out: seen.append(out.clone()) or out)
    timed = _make_timed(_workload(name))
    for _ in range(2):
        timed.reset(20)
        timed.run(20)
    assert len({out.numpy().tobytes() for out in seen}) == 40


def test_calls_that_warm_up_have_inputs_of_their_own() -> None:
    seen: list[Tensor] = []
    name = tiny_suites.register_modified("zz_sees", lambda out: seen.append(out.clone()) or out)
    text = tiny_suites.TINY + f'[[variant]]\nname = "{name}"\n'
    (case,) = tiny_suites.plan("warm_up_calls = 3\n" + text, variants=[name])
    timed = _make_timed(Workload(case))
    for _ in range(2):
        timed.reset(2)
        assert len(seen) % 5 == 3
        timed.run(2)
        timed.settle()
        timed.verify()
        del seen[5:]  # of the verification
    assert len({out.numpy().tobytes() for out in seen}) == 5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", ["full", "linear", "gqa:kv_heads=1", "sliding_window:window=3", "reformer"])
def test_correct_mechanisms_pass_every_check(variant: str, mode: str) -> None:
    if variant == "reformer" and mode in ("prefill", "decode"):
        pytest.skip("it does not decode")
    timed = _make_timed(_workload(variant, mode, heads=4, seq_len=40))
    _run_samples(timed, MIN_STEPS, n_samples=5)


@pytest.mark.parametrize("mode", MODES)
def test_calls_that_are_wrong_only_while_timed_are_detected(mode: str) -> None:
    calls = [0]

    def late(out: Tensor) -> Tensor:
        calls[0] += 1
        return out * (1.01 if calls[0] > 60 else 1)

    w = _workload(tiny_suites.register_modified("zz_late", late, advance=late), mode)
    assert verify_workload(w)[0] < 1e-5
    with pytest.raises(InvalidResult, match="differs from the reference"):
        _run_samples(_make_timed(w), MIN_STEPS, n_samples=40)  # a random call of each sample is verified


def test_writes_to_inputs_through_numpy_are_detected() -> None:
    class Writes(ea.SoftmaxAttention):
        """Exact attention that writes into its values through numpy, after it has used them."""

        def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
            out = super().compute(q, k, v, mask, **inputs)
            v.detach().numpy()[0, 0, 0, 0] += 1
            return out

    ea.register("zz_writes", family="full")(Writes)
    timed = _make_timed(_workload("zz_writes"))
    timed.reset(3)
    timed.run(3)
    timed.settle()
    with pytest.raises(GlobalStateChanged, match="it wrote into its input v"):
        timed.verify()


def test_results_that_share_memory_are_detected() -> None:
    kept: dict[str, Tensor] = {}

    def reuse(out: Tensor) -> Tensor:
        return kept.setdefault("buffer", torch.empty_like(out)).copy_(out)

    timed = _make_timed(_workload(tiny_suites.register_modified("zz_buffer", reuse)))
    with pytest.raises(InvalidResult, match="shares its memory with that of an earlier call"):
        _run_samples(timed, 9, n_samples=9)


class Lazy(torch.Tensor):
    """A subclass of tensors."""


@pytest.mark.parametrize(
    ("twist", "message"),
    [
        (lambda out: out.as_subclass(Lazy), "a Lazy, not a plain tensor"),
        (lambda out: out.to("meta"), "is on meta, not on cpu"),
    ],
)
def test_results_are_plain_tensors_on_the_device_of_inputs(twist: Any, message: str) -> None:
    with pytest.raises(InvalidResult, match=message):
        verify_workload(_workload(tiny_suites.register_modified("zz_unlike", twist)))


# -- steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["full", "linear", "mqa", "sliding_window:window=3"])
def test_a_decode_step_attends_to_the_whole_context(variant: str) -> None:
    w = _workload(variant, "decode", dtype="float64")
    steps = _steps(w)
    before, token = steps.token_samples[:WARMUP_STEPS], steps.token_samples[WARMUP_STEPS]
    out = steps.step(token)
    k, v = (torch.cat([getattr(s, name) for s in (steps.context_sample, *before, token)], 2) for name in ("k", "v"))
    with torch.no_grad():
        expected = w.case.create(backend="dense")(token.q, k, v, ea.Mask(causal=True))
    assert torch.allclose(out, expected, atol=1e-10)
    assert steps.state.length == 17 + WARMUP_STEPS


def test_reset_draws_a_new_context() -> None:
    steps = _steps(_workload(mode="decode"))
    first = [x.clone() for x in (steps.context_sample.k, steps.token_samples[0].q)]
    steps.run(3)
    assert steps.state.length == 16 + WARMUP_STEPS + 3
    steps.reset(3)
    assert steps.state.length == 16 + WARMUP_STEPS  # the first steps after a new state are not timed
    assert not torch.equal(steps.context_sample.k, first[0])


def test_the_state_has_room_for_a_sample_of_steps() -> None:
    timed = _make_timed(_workload(mode="decode"))
    assert timed.max_calls == MAX_DECODE_STEPS - WARMUP_STEPS >= MIN_STEPS
    for _ in range(2):
        timed.reset(timed.max_calls)
        timed.run(timed.max_calls)
        timed.settle()
        timed.verify()


@pytest.mark.parametrize("variant", ["random_feature:gated=true", "mla:latent_dim=16"])
def test_steps_with_extra_inputs_or_without_values_are_verified(variant: str) -> None:
    w = _workload(variant, "decode", dtype="float64")
    assert verify_workload(w)[0] < 1e-9


def test_query_inputs_belong_to_steps_and_not_to_the_context() -> None:
    traits = ea.Traits(inputs={"gate": ea.Input("query"), "rate": ea.Input("key", per_head=False)})
    w = _workload(tiny_suites.register_modified("zz_gated", traits=traits), "decode")
    assert w.sample.inputs["gate"].shape == (1, 2, 16)
    assert list_key_inputs(w.attn, w.sample).keys() == {"rate"}
    steps = _steps(w)
    assert steps.token_samples[0].inputs["gate"].shape == (1, 2, 1)
    steps.run(1)


# -- other conditions ----------------------------------------------------------------------------------------------


def test_cold_calls_are_timed_one_by_one_after_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "FLUSH_BYTES", 4096)
    case = tiny_suites.case("full", cache="cold")
    assert "-cold#" in case.key
    timed = _make_timed(Workload(case))
    assert (timed.max_calls, timed.min_calls) == (1, 1)
    assert _list_written_bytes(lambda: timed.reset(1)) == [4096]
    assert _list_written_bytes(lambda: timed.run(1)) == []
    assert _list_written_bytes(lambda: _make_timed(_workload()).reset(1)) == []


def _list_written_bytes(call: Callable[[], object]) -> list[int]:
    """Sizes of tensors that are modified by `add_`."""
    with torch.profiler.profile(record_shapes=True) as trace:
        call()
    return [4 * math.prod(e.input_shapes[0]) for e in trace.events() or () if e.name == "aten::add_"]


def test_cold_decode_steps_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "FLUSH_BYTES", 4096)
    timed = _make_timed(_workload(mode="decode", cache="cold"))
    assert timed.max_calls == 1
    for _ in range(3):
        timed.reset(1)
        timed.run(1)
        timed.settle()
        timed.verify()


def test_decode_steps_are_no_cuda_graphs() -> None:
    with pytest.raises(ea.UnsupportedError, match="decode steps are not captured"):
        _make_timed(_workload(mode="decode", cuda_graph=True))


def test_cuda_graphs_need_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ea.UnsupportedError, match="need a CUDA device"):
        _make_timed(_workload(cuda_graph=True))
