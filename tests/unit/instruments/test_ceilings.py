"""The machine's best rates: nothing that torch does is faster, and they come back alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch

from efficient_attn.instruments import ceilings
from efficient_attn.instruments.ceilings import Ceiling, ceiling, share, timer_overhead, timer_resolution

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _fastest(call: Callable[[], object], times: int = 7) -> float:
    call()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _some_time(holds: Callable[[], bool]) -> bool:
    """Whether something holds in one of some tries: other programs run beside the tests and slow some of them down."""
    return any(holds() for _ in range(8))


@pytest.mark.parametrize(("rows", "columns"), [(512, 512), (2048, 64), (64, 2048)])
def test_no_product_is_faster(rows: int, columns: int) -> None:
    a, b = torch.randn(rows, 512), torch.randn(512, columns)

    def holds() -> bool:
        rate = 2 * rows * 512 * columns / _fastest(lambda: a @ b, 20)
        return rate < 1.25 * ceiling("cpu", "float32", 1).gemm_flops_per_s

    assert _some_time(holds)


def test_nothing_reads_faster_from_memory() -> None:
    x = torch.ones(2**26)
    assert _some_time(lambda: 4 * x.numel() / _fastest(x.max) < 1.25 * ceiling("cpu", "float32", 1).bytes_per_s)


def test_the_rates_come_back() -> None:
    def holds() -> bool:
        one, two = (ceiling("cpu", "float32", 1) for _ in range(2))
        alike = two.gemm_flops_per_s == pytest.approx(one.gemm_flops_per_s, rel=0.2)
        return alike and two.bytes_per_s == pytest.approx(one.bytes_per_s, rel=0.3)

    assert _some_time(holds)


def test_a_rough_look_is_short_and_near() -> None:
    def holds() -> bool:
        start = time.perf_counter()
        rough = ceiling("cpu", "float32", 1, rough=True)
        short, found = time.perf_counter() - start < 0.3, ceiling("cpu", "float32", 1)
        near = rough.gemm_flops_per_s == pytest.approx(found.gemm_flops_per_s, rel=0.4)
        return short and near and rough.bytes_per_s == pytest.approx(found.bytes_per_s, rel=0.5)

    assert _some_time(holds)


def test_the_threads_are_as_they_were() -> None:
    torch.set_num_threads(1)
    ceiling("cpu", "float64", 2)
    assert torch.get_num_threads() == 1


def test_it_takes_about_a_second() -> None:
    assert _some_time(lambda: _fastest(lambda: ceiling("cpu", "float32", 1), 1) < 1)


def test_half_types_are_held_against_float32_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(ceilings, "_gemm", lambda device, dtype, repeats: asked.append(dtype) or 1.0)
    monkeypatch.setattr(ceilings, "_bandwidth", lambda *_: 1.0)
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        ceiling("cpu", dtype)
    assert asked == [torch.float32, torch.float32, torch.float32, torch.float64]


def test_the_share_is_of_what_binds() -> None:
    best = Ceiling(100.0, 10.0)
    assert share(200, 1, 4.0, best) == 0.5  # two seconds of arithmetic in four
    assert share(1, 20, 4.0, best) == 0.5  # two seconds of reading
    assert share(400, 20, 4.0, best) == 1.0


def test_the_clock() -> None:
    assert 0 <= timer_overhead() < 1e-5
    assert 0 < timer_resolution() < 1e-3
