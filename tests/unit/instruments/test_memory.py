"""Memory footprints of allocation patterns with known sizes, and of attention."""

from __future__ import annotations

import gc
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_suites
import torch
import torch.nn.functional as F
from torch import Tensor

from efficient_attn.bench.measuring.kernel_counts import KernelTrace
from efficient_attn.bench.measuring.workload import Workload
from efficient_attn.instruments.memory import measure_footprint, verify_memory_counter

MIB = 2**20
KNOWN_COUNTS = runpy.run_path(str(Path(__file__).parents[3] / "suites/trials/memory_counts.py"))


def _mib(size: float) -> Tensor:
    return torch.ones(int(size * MIB), dtype=torch.uint8)


def _kept() -> Any:
    return _mib(4), _mib(8)


def _released_in_between() -> Tensor:
    first = _mib(6)
    second = _mib(4)
    del first
    return second[: _mib(5).numel()]  # 4 and 5 at once are less than 6 and 4


def _released_at_the_end() -> None:
    for _ in range(3):
        _mib(7)


def _in_place() -> Tensor:
    return _mib(4).add_(1).mul_(2)


def _out_of_place() -> Tensor:
    return _mib(4) + 1


def _shared() -> Any:
    whole = _mib(4)
    return whole, whole[:100], {"again": whole.view(2, -1)}


class _Kept(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def test_a_trace_that_begins_again_counts_the_same() -> None:
    modules = [_Kept() for _ in range(3)]
    cached: list[Tensor] = []

    def call() -> Tensor:
        x, before = _mib(4), _mib(6)
        for module in modules:
            x = module(x)  # releases what was allocated in an earlier trace
        del before
        cached.append(_mib(1))
        q, k, v = x[:96].float().view(3, 1, 2, 1, 16)
        return F.scaled_dot_product_attention(q, k, v)

    whole = measure_footprint(call, device="cpu")
    assert measure_footprint(call, device="cpu", modules=modules) == whole
    assert whole.peak is not None
    assert 15 * MIB <= whole.peak < 15 * MIB + 100  # some bytes are of the number that is added
    assert whole.growth == MIB
    assert whole.kernels
    assert not any(module._forward_hooks for module in modules)


def test_events_are_not_turned_into_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trained model's pass has millions, of which torch's objects take 3.6 KB and 47 us each."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("torch's objects were made")

    monkeypatch.setattr(torch.autograd.profiler.profile, "_parse_kineto_results", fail)
    monkeypatch.setattr(torch.autograd.profiler.profile, "_ensure_function_events", fail)
    assert measure_footprint(lambda: _mib(4), device="cpu").peak == 4 * MIB
    trace = KernelTrace()
    q, k, v = torch.ones(3, 1, 2, 8, 16)
    F.scaled_dot_product_attention(q, k, v)
    assert trace.stop()


@pytest.mark.parametrize(
    ("call", "peak", "output"),
    [
        (_kept, 12, 12),
        (_released_in_between, 10, 4),
        (_released_at_the_end, 7, 0),
        (_in_place, 4, 4),
        (_out_of_place, 8, 4),
        (_shared, 4, 4),
    ],
)
def test_allocation_patterns_have_exact_footprints(call: Callable[[], Any], peak: int, output: int) -> None:
    footprint = measure_footprint(call, device="cpu")
    assert footprint.reason is None
    assert footprint.peak is not None
    assert (footprint.retained, footprint.output) == (output * MIB, output * MIB)
    assert footprint.peak == pytest.approx(peak * MIB, abs=64)  # a Python number becomes a tensor of some bytes
    assert footprint.workspace == footprint.peak - output * MIB
    assert footprint.saved is None


@pytest.mark.parametrize("kind", KNOWN_COUNTS["KINDS"], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("mib", [1, 16])
def test_known_footprints_are_measured_repeatably(kind: Callable[..., Any], mib: int) -> None:
    known = kind(mib * MIB, "cpu")
    footprints = [known.measure() for _ in range(3)]
    assert footprints[0].peak == pytest.approx(known.expected, rel=0.01, abs=2**16)
    assert len(set(footprints)) == 1


def test_inputs_and_views_have_no_footprint() -> None:
    x = _mib(16)
    footprint = measure_footprint(lambda: x.view(4, -1).T, device="cpu")
    assert (footprint.peak, footprint.retained, footprint.output, footprint.workspace) == (0, 0, 0, 0)


def test_retained_memory_includes_more_than_the_output() -> None:
    hoard: list[Tensor] = []

    def hoarding() -> Tensor:
        hoard.append(_mib(2))
        return _mib(3)

    footprint = measure_footprint(hoarding, device="cpu")
    assert (footprint.retained, footprint.output) == (5 * MIB, 3 * MIB)


def test_replaced_memory_is_not_retained() -> None:
    last: list[Tensor] = []

    def replacing() -> None:
        last[:] = [_mib(8)]

    footprint = measure_footprint(replacing, device="cpu")
    # the new one exists before the old one is released
    assert (footprint.peak, footprint.retained, footprint.lasting, footprint.growth) == (16 * MIB, 0, 8 * MIB, 0)


def test_garbage_collection_is_disabled_while_measuring() -> None:
    class Loop:
        def __init__(self) -> None:
            self.tensor, self.me = _mib(4), self

    def leaving_a_cycle() -> None:
        Loop()

    footprint = measure_footprint(leaving_a_cycle, device="cpu")
    assert (footprint.retained, footprint.lasting, footprint.growth) == (4 * MIB, 0, 0)  # collected at the end
    assert gc.isenabled()


# -- attention -----------------------------------------------------------------------------------------------------


def _qkv(n: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 64, generator=generator) for _ in range(3))
    return q, k, v


def _naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    weights = scores.softmax(-1)
    return weights @ v


def test_naive_attention_stores_scores_and_weights() -> None:
    n, qkv = 512, _qkv(512)
    matrix, output = 2 * n * n * 4, 2 * n * 64 * 4
    footprint = measure_footprint(lambda: _naive(*qkv), device="cpu")
    assert (footprint.peak, footprint.output) == (2 * matrix + output, output)
    assert footprint.kernels == ()


def test_the_workspace_of_sdpa_does_not_grow_with_length() -> None:
    over = {}
    for n in (1024, 4096):
        qkv = _qkv(n)
        footprint = measure_footprint(lambda qkv=qkv: F.scaled_dot_product_attention(*qkv), device="cpu")
        assert footprint.output == 2 * n * 64 * 4
        assert footprint.workspace is not None
        over[n] = footprint.workspace - 2 * n * 4  # one number per row
        assert 0 <= over[n] <= 4 * MIB
    assert over[1024] == over[4096]


def test_footprints_list_the_executed_kernels() -> None:
    q, k, v = _qkv(64)
    fused = measure_footprint(lambda: F.scaled_dot_product_attention(q, k, v), device="cpu").kernels
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in fused
    plain = measure_footprint(
        lambda: F.scaled_dot_product_attention(q.double(), k.double(), v.double(), dropout_p=0.5), device="cpu"
    )
    assert "aten::_scaled_dot_product_attention_math" in plain.kernels
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" not in plain.kernels


def _step(attend: Callable[..., Tensor], n: int) -> tuple[Callable[[], Tensor], Callable[[Tensor], Any]]:
    leaves, upstream = [x.requires_grad_() for x in _qkv(n)], torch.ones(1, 2, n, 64)
    return lambda: attend(*leaves), lambda out: torch.autograd.grad(out, leaves, upstream)


def test_a_training_step_splits_into_output_saved_and_workspace() -> None:
    n = 512
    matrix, output = 2 * n * n * 4, 2 * n * 64 * 4
    footprint = measure_footprint(*_step(_naive, n), device="cpu")
    assert footprint.output == output
    assert footprint.saved == matrix  # the weights; the inputs were there before
    assert footprint.retained == 3 * output  # the gradients
    # gradients of the weights, the scores and the values
    assert footprint.workspace == 2 * matrix + output
    assert footprint.peak == 3 * matrix + 2 * output


def test_a_fused_training_step_saves_one_number_per_row() -> None:
    n = 512
    footprint = measure_footprint(*_step(F.scaled_dot_product_attention, n), device="cpu")
    assert (footprint.output, footprint.saved, footprint.retained) == (2 * n * 64 * 4, 2 * n * 4, 3 * 2 * n * 64 * 4)
    assert any("backward" in name for name in footprint.kernels)


def test_a_training_step_measured_as_one_call_has_the_same_peak() -> None:
    forward, backward = _step(_naive, 256)
    whole = measure_footprint(lambda: backward(forward()), device="cpu")
    parts = measure_footprint(forward, backward, device="cpu")
    assert whole.peak == parts.peak
    assert whole.output == parts.retained


def test_the_footprint_of_a_workload_is_measured() -> None:
    workload = Workload(tiny_suites.case("full", seq_len=256))
    footprint = measure_footprint(lambda: workload.forward(workload.sample), device="cpu")
    assert footprint.output == 2 * 256 * 8 * 4
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in footprint.kernels


# -- the counter and errors ----------------------------------------------------------------------------------------


def test_the_memory_counter_is_exact() -> None:
    result = verify_memory_counter("cpu")
    assert result == {
        "device": "cpu",
        "expected_bytes": 64 * MIB,
        "measured_bytes": 64 * MIB,
        "ok": True,
        "reason": None,
    }


def test_a_device_without_a_counter_has_a_reason_and_no_values() -> None:
    for footprint in (
        measure_footprint(lambda: None, device="mps"),
        measure_footprint(lambda: torch.ones(1), lambda out: None, device="mps"),
    ):
        values = footprint.peak, footprint.retained, footprint.output, footprint.saved, footprint.workspace
        assert values == (None,) * 5
        assert "mps" in (footprint.reason or "")
    result = verify_memory_counter("mps")
    assert result["ok"] is result["measured_bytes"] is None
    assert "mps" in result["reason"]


def test_errors_of_the_call_are_propagated() -> None:
    def failing() -> None:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        measure_footprint(failing, device="cpu")
    assert gc.isenabled()
    assert measure_footprint(lambda: _mib(1), device="cpu").peak == MIB  # later calls are measured as before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_footprints_are_repeatable() -> None:
    assert verify_memory_counter("cuda")["ok"] is True
    for kind in KNOWN_COUNTS["KINDS"]:
        known = kind(64 * MIB, "cuda")
        footprints = [known.measure() for _ in range(3)]
        assert len(set(footprints)) == 1, kind.__name__
