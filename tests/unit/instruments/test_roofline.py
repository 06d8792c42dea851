"""The roofline: an upper bound of what torch reaches, and repeatable."""

from __future__ import annotations

import math
import re
import time
import timeit
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from simulated_cuda import simulated_cuda

from efficient_attn.instruments import roofline
from efficient_attn.instruments.roofline import (
    CacheLevel,
    MeasuredRate,
    Roofline,
    compute_roofline_share,
    compute_spread,
    measure_roofline_rates,
    measure_timer_overhead,
    measure_timer_resolution,
    merge_rooflines,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def measured() -> Roofline:
    """The roofline of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        _use_processor_time(patch)
        return measure_roofline_rates("cpu", "float32", 1)


@pytest.fixture
def processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _use_processor_time(monkeypatch)


def _use_processor_time(patch: pytest.MonkeyPatch) -> None:
    """Measure processor time instead of wall time, to exclude other programs."""
    patch.setattr(roofline, "time", SimpleNamespace(perf_counter=time.process_time))


def _fastest(call: Callable[[], object], times: int = 7) -> float:
    call()
    return min(timeit.repeat(call, timer=time.process_time, number=1, repeat=times))


def _holds_sometimes(holds: Callable[[Roofline], bool], measured: Roofline) -> bool:
    """Whether a condition holds for the roofline or one of 7 repetitions: other programs slow some of them down."""
    return holds(measured) or any(holds(measure_roofline_rates("cpu", "float32", 1)) for _ in range(7))


@pytest.mark.alone
@pytest.mark.sampled(3)
@pytest.mark.usefixtures("processor_time")
@pytest.mark.parametrize(("rows", "columns"), [(512, 512), (2048, 64), (64, 2048)])
def test_no_matrix_product_exceeds_the_roofline(rows: int, columns: int, measured: Roofline) -> None:
    a, b = torch.randn(rows, 512), torch.randn(512, columns)
    rate = 2 * rows * 512 * columns / _fastest(lambda: a @ b, 20)
    assert _holds_sometimes(lambda best: rate < 1.25 * best.gemm_flops_per_s, measured)


@pytest.mark.parametrize(("device", "is_random"), [("cuda", True), ("cpu", False)])
def test_products_on_a_gpu_are_of_random_numbers(device: str, is_random: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    factors: list[torch.Tensor] = []
    monkeypatch.setattr(torch, "mm", lambda a, b, out: factors.extend((a, b)))
    with simulated_cuda():
        roofline._measure_product("torch.mm", (64, 32, 16), 1, device, torch.bfloat16)
    assert {x.dtype for x in factors} == {torch.bfloat16}
    assert all((x.unique().numel() > 100) is is_random for x in factors)


@pytest.mark.alone
@pytest.mark.usefixtures("processor_time")
def test_no_memory_read_exceeds_the_roofline(measured: Roofline) -> None:
    x = torch.ones(2**26)
    rate = 4 * x.numel() / _fastest(x.max)
    assert _holds_sometimes(lambda best: rate < 1.25 * best.bytes_per_s, measured)


@pytest.mark.alone
@pytest.mark.usefixtures("processor_time")
@pytest.mark.sampled(6)
def test_rates_are_repeatable(measured: Roofline) -> None:
    def holds(best: Roofline) -> bool:
        again = measure_roofline_rates("cpu", "float32", 1)
        alike = again.gemm_flops_per_s == pytest.approx(best.gemm_flops_per_s, rel=0.2)
        return alike and again.bytes_per_s == pytest.approx(best.bytes_per_s, rel=0.3)

    assert _holds_sometimes(holds, measured)


@pytest.mark.alone
@pytest.mark.usefixtures("processor_time")
def test_rough_rates_are_near_exact_ones(measured: Roofline) -> None:
    """The rough rate is that of torch.mm; oneDNN may be more than twice as fast."""

    def holds(best: Roofline) -> bool:
        rough = measure_roofline_rates("cpu", "float32", 1, rough=True)
        near = 0.3 * best.gemm_flops_per_s < rough.gemm_flops_per_s < 1.4 * best.gemm_flops_per_s
        return near and rough.bytes_per_s == pytest.approx(best.bytes_per_s, rel=0.5)

    assert _holds_sometimes(holds, measured)


def test_the_number_of_threads_is_restored() -> None:
    torch.set_num_threads(1)
    measure_roofline_rates("cpu", "float64", 2)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("rough", "longest"), [(False, 1.5), (True, 0.15)])
def test_measuring_takes_about_a_second(rough: bool, longest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a simulated machine: 100 GFLOP/s, 20 GB/s from memory, 40 GB/s from caches of 1 and 32 MiB."""
    spent = 0.0

    def product(
        library: str, shape: roofline.ProductShape, repeats: int, device: str, dtype: torch.dtype
    ) -> MeasuredRate:
        nonlocal spent
        spent += 2 * math.prod(shape) * (1 + repeats) / 1e11
        return MeasuredRate(1e11, library)

    def read(device: str, size: int, repeats: int) -> MeasuredRate:
        nonlocal spent
        rate = 2e10 if size > 2**25 else 4e10
        spent += 3 * size * (1 + repeats) / rate
        return MeasuredRate(rate, "sum")

    monkeypatch.setattr(roofline, "_measure_product", product)
    monkeypatch.setattr(roofline, "_measure_read", read)
    monkeypatch.setattr(roofline, "_list_caches", lambda device: {"L2": 2**20, "L3": 2**25})
    monkeypatch.setattr(roofline, "read_cache_sizes", lambda: {"L2": 2**20, "L3": 2**25})
    measure_roofline_rates("cpu", "float32", 1, rough=rough)
    assert longest / 10 < spent < longest


def test_the_fastest_operations_are_recorded(measured: Roofline) -> None:
    assert re.fullmatch(r"(torch\.mm|oneDNN|oneDNN \(transposed\)) \d+x\d+x\d+ float32", measured.gemm_by)
    assert re.fullmatch(r"(sum|max|dot) of [\d.]+ MiB", measured.read_by)
    rates = [cache.bytes_per_s for cache in measured.caches]
    assert rates == sorted(rates, reverse=True)
    assert min([*rates, measured.bytes_per_s]) == measured.bytes_per_s
    assert [cache.size for cache in measured.caches] == sorted(cache.size for cache in measured.caches)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """A machine with known rates of matrix products; returns the dtypes of all timed products."""
    monkeypatch.setattr(roofline, "_measure_memory_read", lambda *_: MeasuredRate(1.0, "sum of nothing"))
    monkeypatch.setattr(roofline, "_list_caches", lambda device: {})
    monkeypatch.setattr(roofline, "_list_libraries", lambda device, dtype: ["torch.mm", "oneDNN"])

    def make(**rates: float) -> list[str]:
        timed: list[str] = []

        def product(
            library: str, shape: roofline.ProductShape, repeats: int, device: str, dtype: torch.dtype
        ) -> MeasuredRate:
            kind = str(dtype).removeprefix("torch.")
            timed.append(kind)
            bonus = 2 if library == "oneDNN" and shape[1] == roofline.SKINNY_SIDE else 1
            return MeasuredRate(bonus * rates[kind], f"{library} {'x'.join(map(str, shape))} {kind}")

        monkeypatch.setattr(roofline, "_measure_product", product)
        return timed

    return make


def test_the_fastest_library_and_shape_set_the_rate(products: Callable[..., list[str]]) -> None:
    products(float32=1e11)
    best = measure_roofline_rates("cpu", "float32")
    assert (best.gemm_flops_per_s, best.gemm_by) == (2e11, "oneDNN 2048x64x2048 float32")


@pytest.mark.parametrize(("half", "dtype"), [(5e11, "bfloat16"), (2e9, "float32")])
def test_half_types_use_the_larger_of_their_and_float32_rates(
    half: float, dtype: str, products: Callable[..., list[str]]
) -> None:
    timed = products(float32=1e11, bfloat16=half)
    best = measure_roofline_rates("cpu", "bfloat16")
    assert best.gemm_by.endswith(dtype)
    assert best.gemm_flops_per_s == 2 * max(half, 1e11)
    assert (timed.count("bfloat16") > 4) == (dtype == "bfloat16")  # a far slower dtype is tried with few shapes only


def test_float64_uses_its_own_rate(products: Callable[..., list[str]]) -> None:
    products(float64=1e10)
    assert measure_roofline_rates("cpu", "float64").gemm_by.endswith("float64")


CACHES = (CacheLevel("L2", 10, 40.0), CacheLevel("L3", 100, 20.0))


@pytest.mark.parametrize(
    ("size", "seconds", "holder"),
    [(4, 0.1, "L2"), (10, 0.25, "L2"), (50, 0.25 + 2.0, "L3"), (210, 0.25 + 5.0 + 10.0, "memory")],
)
def test_bytes_are_read_from_the_smallest_level_that_fits(size: int, seconds: float, holder: str) -> None:
    best = Roofline(1.0, 10.0, caches=CACHES)
    assert (best.estimate_read_seconds(size), best.find_memory_level(size)) == (pytest.approx(seconds), holder)
    assert (best.estimate_read_seconds(size, cold=True), best.find_memory_level(size, cold=True)) == (
        size / 10,
        "memory",
    )
    assert compute_roofline_share(0, size, 2 * seconds, best) == pytest.approx(0.5)


def test_no_cache_is_slower_than_the_next_level(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {16: 30.0, 8: 50.0, 4: 45.0, 2: 20.0, 1: 9.0}
    monkeypatch.setattr(roofline, "_list_caches", lambda device: {"L2": 8, "L3": 32})
    monkeypatch.setattr(
        roofline, "_measure_read", lambda device, size, repeats: MeasuredRate(rates[size], f"sum of {size}")
    )
    levels = roofline._measure_cache_reads("cpu", 10.0)
    assert [(c.name, c.size, c.bytes_per_s) for c in levels] == [("L2", 8, 50.0), ("L3", 32, 50.0)]
    assert [c.bytes_per_s for c in roofline._measure_cache_reads("cpu", 99.0)] == [99.0, 99.0]


def test_cache_sizes_scale_with_threads_up_to_all_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "read_cache_sizes", lambda: {"L1d": 1, "L1i": 1, "L2": 10, "L3": 100})
    monkeypatch.setattr(roofline, "count_cache_copies", lambda: {"L1d": 8, "L2": 8, "L3": 2})
    for threads, sizes in ((1, (10, 100)), (4, (40, 200))):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert tuple(roofline._list_caches("cpu").values()) == sizes


def test_merged_rooflines_have_the_highest_rates_and_a_spread() -> None:
    one, other = Roofline(100.0, 10.0, "a", "b", CACHES), Roofline(80.0, 20.0, "c", "d", (CacheLevel("L3", 100, 50.0),))
    assert merge_rooflines([one, other]) == Roofline(100.0, 20.0, "a", "d", (CACHES[0], CacheLevel("L3", 100, 50.0)))
    assert compute_spread([one, other]) == pytest.approx({"gemm": 0.2, "memory": 0.5, "L2": 0.0, "L3": 0.6})
    assert merge_rooflines([one]) == one


def test_the_roofline_share_is_that_of_the_bottleneck() -> None:
    best = Roofline(100.0, 10.0)
    assert compute_roofline_share(200, 1, 4.0, best) == 0.5  # two of four seconds are arithmetic
    assert compute_roofline_share(1, 20, 4.0, best) == 0.5  # two of four seconds are reading
    assert compute_roofline_share(400, 20, 4.0, best) == 1.0


def test_timer_overhead_and_resolution_are_small() -> None:
    assert 0 <= measure_timer_overhead() < 1e-5
    assert 0 < measure_timer_resolution() < 1e-3
