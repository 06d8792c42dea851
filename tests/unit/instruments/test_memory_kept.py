"""Memory that is kept between calls, and memory that is kept anywhere."""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from efficient_attn.instruments.memory import (
    measure_allocated,
    measure_footprint,
    measure_growth,
)

MIB = 2**20


def _mib(size: int) -> Tensor:
    return torch.ones(size * MIB, dtype=torch.uint8)


def _make_step(n: int) -> tuple[Callable[[], Tensor], Callable[[Tensor], Any]]:
    q, k, v = (torch.randn(1, 2, n, 64, requires_grad=True) for _ in range(3))
    upstream = torch.ones(1, 2, n, 64)
    return (
        lambda: F.scaled_dot_product_attention(q, k, v),
        lambda out: torch.autograd.grad(out, (q, k, v), upstream),
    )


def _make_buffering(size: int) -> Callable[[], Tensor]:
    buffer: list[Tensor] = []

    def buffering() -> Tensor:
        if not buffer:
            buffer.append(_mib(size))
        return _mib(1)

    return buffering


def test_a_buffer_of_the_first_call_is_kept_and_part_of_the_peak() -> None:
    footprint = measure_footprint(_make_buffering(32), device="cpu")
    assert (footprint.peak, footprint.output, footprint.workspace) == (33 * MIB, MIB, 32 * MIB)
    assert (footprint.retained, footprint.lasting, footprint.growth) == (MIB, 32 * MIB, 0)


def test_memory_that_existed_before_the_first_call_is_not_kept() -> None:
    buffering = _make_buffering(32)
    buffering()
    footprint = measure_footprint(buffering, device="cpu")
    assert (footprint.peak, footprint.lasting) == (MIB, 0)


def test_a_growing_cache_is_kept_and_grows() -> None:
    cache: list[Tensor] = []
    footprint = measure_footprint(lambda: cache.append(_mib(2)), device="cpu")
    assert (footprint.lasting, footprint.growth) == (4 * MIB, 2 * MIB)
    assert measure_growth(lambda: cache.append(_mib(2)), 3, device="cpu") == 2 * MIB
    assert measure_growth(lambda: _mib(2), 3, device="cpu") == 0


def test_a_cache_with_a_largest_size_does_not_grow_with_each_call() -> None:
    cache: deque[Tensor] = deque(maxlen=3)
    assert measure_footprint(lambda: cache.append(_mib(2)), device="cpu").growth == 2 * MIB
    assert measure_growth(lambda: cache.append(_mib(2)), 4, device="cpu") == 0


def test_a_training_step_that_keeps_its_output_grows() -> None:
    outputs: list[Tensor] = []
    forward, backward = _make_step(512)

    def keeping() -> Tensor:
        out = forward()
        outputs.append(out.detach())
        return out

    footprint = measure_footprint(keeping, backward, device="cpu")
    output = 2 * 512 * 64 * 4
    assert (footprint.lasting, footprint.growth) == (2 * output, output)
    assert measure_footprint(forward, backward, device="cpu").lasting == 0


def test_another_first_call_is_not_measured() -> None:
    footprint = measure_footprint(lambda: _mib(2), device="cpu", first_call=lambda: _mib(64))
    assert (footprint.peak, footprint.lasting) == (2 * MIB, 0)
    seen: list[str] = []
    forward, backward = _make_step(64)
    measure_footprint(forward, backward, device="cpu", first_call=lambda: seen.append("first"))
    assert seen == ["first"]


@pytest.mark.parametrize(
    "make", [lambda: _mib(3), lambda: np.ones(3 * MIB, dtype=np.uint8), lambda: bytearray(3 * MIB)]
)
def test_allocations_are_found_wherever_they_are_kept(make: Callable[[], Any]) -> None:
    hidden: list[Any] = []

    def hide() -> str:
        hidden.append(make())
        make()  # released
        return "result"

    result, size = measure_allocated(hide, device="cpu")
    assert result == "result"
    assert size == pytest.approx(3 * MIB, abs=128)
    assert not tracemalloc.is_tracing()
