"""Peak memory against patterns of allocation whose peak is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from efficient_attn.bench.memory import peak_memory

MIB = 2**20


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


@pytest.mark.parametrize(
    ("call", "mib"),
    [(_kept, 12), (_released_in_between, 10), (_released_at_the_end, 7), (_in_place, 4), (_out_of_place, 8)],
)
def test_known_patterns(call: Callable[[], Any], mib: float) -> None:
    peak = peak_memory(call, device="cpu")
    assert peak.reason is None
    assert peak.bytes == pytest.approx(mib * MIB, rel=0.01, abs=2**16)


def test_inputs_do_not_count_and_views_cost_nothing() -> None:
    x = _mib(16)
    assert peak_memory(lambda: x.view(4, -1).T, device="cpu").bytes == 0


def _qkv(n: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 64, generator=generator) for _ in range(3))
    return q, k, v


def test_naive_attention_holds_scores_and_weights_at_once() -> None:
    n, (q, k, v) = 512, _qkv(512)

    def naive() -> Tensor:
        scores = q @ k.mT
        weights = scores.softmax(-1)
        return weights @ v

    matrix, output = 2 * n * n * 4, 2 * n * 64 * 4
    assert peak_memory(naive, device="cpu").bytes == pytest.approx(2 * matrix + output, rel=0.01, abs=2**16)


def test_sdpa_holds_its_output_and_a_workspace_that_does_not_grow() -> None:
    over = {}
    for n in (1024, 4096):
        q, k, v = _qkv(n)
        output, logsumexp = 2 * n * 64 * 4, 2 * n * 4
        peak = peak_memory(lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v), device="cpu").bytes
        assert peak is not None
        over[n] = peak - output - logsumexp
        assert 0 <= over[n] <= 4 * MIB
    assert over[1024] == pytest.approx(over[4096], abs=2**16)


def test_the_call_is_warmed_up_first() -> None:
    cache: list[Tensor] = []

    def caching() -> Tensor:
        if not cache:
            cache.append(_mib(32))
        return _mib(1)

    assert peak_memory(caching, device="cpu").bytes == pytest.approx(MIB, rel=0.01, abs=2**16)


def test_a_device_without_a_counter_says_so_and_not_zero() -> None:
    peak = peak_memory(lambda: None, device="mps")
    assert peak.bytes is None
    assert "mps" in (peak.reason or "")


def test_an_error_in_the_call_is_the_callers() -> None:
    def failing() -> None:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        peak_memory(failing, device="cpu")
