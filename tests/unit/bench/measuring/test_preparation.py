"""Counting the memory of a case: what its calls keep, and caches that grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import tiny_suites
import torch
from inline_measurement import measure_variants
from torch import Tensor

import efficient_attn as ea
from efficient_attn.results.rows import Row

MIB = 2**20
BUFFERS: dict[Any, Tensor] = {}


class Keeping(ea.SoftmaxAttention):
    """Keeps an N x N buffer in a global."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        sizes = q.shape[2], k.shape[2]
        if sizes not in BUFFERS:
            BUFFERS[sizes] = torch.empty(sizes)
        BUFFERS[sizes].fill_(1)
        return super().compute(q, k, v, mask, **inputs)


class Growing(ea.SoftmaxAttention):
    """Keeps a copy of each output."""

    most: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.outputs: deque[Tensor] = deque(maxlen=self.most)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        out = super().compute(q, k, v, mask, **inputs)
        self.outputs.append(out.detach().clone())
        return out


class Ring(Growing):
    """Keeps copies of its last three outputs."""

    most = 3


class Remembering(ea.SoftmaxAttention):
    """Remembers its outputs by the contents of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[int, Tensor] = {}

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        key = hash(q.detach().numpy().tobytes())
        if key not in self.outputs:
            self.outputs[key] = super().compute(q, k, v, mask, **inputs)
        return self.outputs[key].clone()


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        for cls in (Keeping, Growing, Ring, Remembering):
            ea.register(f"zz_{cls.__name__.lower()}", family="full")(cls)
        yield
    BUFFERS.clear()


def _measure(variant: str, mode: str, **axes: Any) -> Row:
    return measure_variants(variant, mode=f'"{mode}", "peak_memory"', **axes)[0].row


@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize("n", [100, 500])
def test_a_kept_buffer_is_part_of_the_peak(mode: str, n: int) -> None:
    full, keeping = _measure("full", mode, seq_len=n), _measure("zz_keeping", mode, seq_len=n)
    matrix = n * n * 4
    assert (full.kept_between_calls_bytes, keeping.kept_between_calls_bytes) == (0, matrix)
    assert keeping.status == "ok"
    assert keeping.peak_memory_bytes == (full.peak_memory_bytes or 0) + matrix
    assert keeping.workspace_bytes == (full.workspace_bytes or 0) + matrix
    assert keeping.retained_bytes == full.retained_bytes
    assert keeping.reason is None


def test_much_kept_memory_is_a_reason() -> None:
    row = _measure("zz_keeping", "forward", seq_len=2200)
    assert row.status == "ok"
    assert row.reason == "it keeps 18.5 MiB between calls, which its peak includes"


@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize("name", ["growing", "remembering"])
@pytest.mark.parametrize("axes", [{}, {"seq_len": 300, "batch": 2}])
def test_memory_that_grows_with_each_call_is_invalid(name: str, mode: str, axes: dict[str, int]) -> None:
    row = _measure(f"zz_{name}", mode, **axes)
    output = axes.get("batch", 1) * 2 * axes.get("seq_len", 16) * 8 * 4
    assert row.status == "invalid"
    assert "its memory grows: each of 4 calls with other inputs kept" in (row.reason or "")
    assert row.latency_ms is None
    assert row.kept_between_calls_bytes == 2 * output  # of the first two calls


@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
def test_a_cache_with_a_largest_size_is_not_invalid(mode: str) -> None:
    row = _measure("zz_ring", mode)
    assert (row.status, row.reason) == ("ok", None)
    assert row.kept_between_calls_bytes == 2 * 2 * 16 * 8 * 4


@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize("variant", ["full", "sliding_window:window=4", "linear", "performer", "bigbird", "reformer"])
def test_built_in_mechanisms_keep_plans_and_masks_only(variant: str, mode: str) -> None:
    row = _measure(variant, mode, seq_len=256)
    assert (row.status, row.reason) == ("ok", None)
    assert (row.kept_between_calls_bytes or 0) <= 6 * 256 * 256  # masks of short sequences as numbers and as bits


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_modes_without_a_peak_report_no_kept_memory(mode: str) -> None:
    assert measure_variants("full", mode=mode)[0].row.kept_between_calls_bytes is None


def test_memory_does_not_depend_on_what_was_measured_before() -> None:
    """Neither a shared mask, made before, nor those that are dropped to make room for this one."""
    bytes_by_order = {}
    for order in ("alone", "after the same", "after others"):
        variants = {"after the same": ["bigbird"], "after others": [f"bigbird:window={2 * i}" for i in range(4, 10)]}
        for variant in variants.get(order, []):
            _measure(variant, "forward", seq_len=900)
        row = _measure("bigbird", "forward", seq_len=900)
        bytes_by_order[order] = row.peak_memory_bytes, row.kept_between_calls_bytes
    assert len(set(bytes_by_order.values())) == 1
    assert (bytes_by_order["alone"][1] or 0) >= 4 * 900**2
