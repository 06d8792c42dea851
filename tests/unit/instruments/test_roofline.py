"""The machine's best rates: nothing that torch does is faster, and they come back alike."""

from __future__ import annotations

import math
import re
import time
import timeit
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

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
def looked() -> Roofline:
    """A look at this machine."""
    with pytest.MonkeyPatch.context() as patch:
        _use_own_time(patch)
        return measure_roofline_rates("cpu", "float32", 1)


@pytest.fixture
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _use_own_time(monkeypatch)


def _use_own_time(patch: pytest.MonkeyPatch) -> None:
    """The processor's time instead of the wall's: what other programs take meanwhile does not count."""
    patch.setattr(roofline, "time", SimpleNamespace(perf_counter=time.process_time))


def _fastest(call: Callable[[], object], times: int = 7) -> float:
    call()
    return min(timeit.repeat(call, timer=time.process_time, number=1, repeat=times))


def _some_time(holds: Callable[[Roofline], bool], found: Roofline) -> bool:
    """Whether something holds of what was found, or else of another look in one of some: other programs run beside the
    tests and slow some looks down."""
    return holds(found) or any(holds(measure_roofline_rates("cpu", "float32", 1)) for _ in range(7))


@pytest.mark.alone
@pytest.mark.sampled(3)
@pytest.mark.usefixtures("own_time")
@pytest.mark.parametrize(("rows", "columns"), [(512, 512), (2048, 64), (64, 2048)])
def test_no_product_is_faster(rows: int, columns: int, looked: Roofline) -> None:
    a, b = torch.randn(rows, 512), torch.randn(512, columns)
    rate = 2 * rows * 512 * columns / _fastest(lambda: a @ b, 20)
    assert _some_time(lambda found: rate < 1.25 * found.gemm_flops_per_s, looked)


@pytest.mark.alone
@pytest.mark.usefixtures("own_time")
def test_nothing_reads_faster_from_memory(looked: Roofline) -> None:
    x = torch.ones(2**26)
    rate = 4 * x.numel() / _fastest(x.max)
    assert _some_time(lambda found: rate < 1.25 * found.bytes_per_s, looked)


@pytest.mark.alone
@pytest.mark.usefixtures("own_time")
def test_the_rates_come_back(looked: Roofline) -> None:
    def holds(found: Roofline) -> bool:
        again = measure_roofline_rates("cpu", "float32", 1)
        alike = again.gemm_flops_per_s == pytest.approx(found.gemm_flops_per_s, rel=0.2)
        return alike and again.bytes_per_s == pytest.approx(found.bytes_per_s, rel=0.3)

    assert _some_time(holds, looked)


@pytest.mark.alone
@pytest.mark.usefixtures("own_time")
def test_a_rough_look_is_near(looked: Roofline) -> None:
    """Of torch's own product: oneDNN's may be more than twice as fast."""

    def holds(found: Roofline) -> bool:
        rough = measure_roofline_rates("cpu", "float32", 1, rough=True)
        near = 0.3 * found.gemm_flops_per_s < rough.gemm_flops_per_s < 1.4 * found.gemm_flops_per_s
        return near and rough.bytes_per_s == pytest.approx(found.bytes_per_s, rel=0.5)

    assert _some_time(holds, looked)


def test_the_threads_are_as_they_were() -> None:
    torch.set_num_threads(1)
    measure_roofline_rates("cpu", "float64", 2)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("rough", "longest"), [(False, 1.5), (True, 0.15)])
def test_it_takes_about_a_second(rough: bool, longest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a pretend machine: 100 GFLOP/s, 20 GB/s from memory, 40 GB/s from caches of 1 and 32 MiB."""
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


def test_it_is_said_what_was_fastest(looked: Roofline) -> None:
    assert re.fullmatch(r"(torch\.mm|oneDNN|oneDNN \(transposed\)) \d+x\d+x\d+ float32", looked.gemm_by)
    assert re.fullmatch(r"(sum|max|dot) of [\d.]+ MiB", looked.read_by)
    rates = [cache.bytes_per_s for cache in looked.caches]
    assert rates == sorted(rates, reverse=True)
    assert min([*rates, looked.bytes_per_s]) == looked.bytes_per_s
    assert [cache.size for cache in looked.caches] == sorted(cache.size for cache in looked.caches)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """A machine whose products have known rates, by library and dtype; returns all that were timed."""
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


def test_the_best_library_and_shape_count(products: Callable[..., list[str]]) -> None:
    products(float32=1e11)
    found = measure_roofline_rates("cpu", "float32")
    assert (found.gemm_flops_per_s, found.gemm_by) == (2e11, "oneDNN 2048x64x2048 float32")


@pytest.mark.parametrize(("half", "by"), [(5e11, "bfloat16"), (2e9, "float32")])
def test_half_types_have_their_own_rate_where_it_is_larger(
    half: float, by: str, products: Callable[..., list[str]]
) -> None:
    timed = products(float32=1e11, bfloat16=half)
    found = measure_roofline_rates("cpu", "bfloat16")
    assert found.gemm_by.endswith(by)
    assert found.gemm_flops_per_s == 2 * max(half, 1e11)
    assert (timed.count("bfloat16") > 4) == (by == "bfloat16")  # what is far slower is not tried in all ways


def test_whole_types_are_held_against_themselves(products: Callable[..., list[str]]) -> None:
    products(float64=1e10)
    assert measure_roofline_rates("cpu", "float64").gemm_by.endswith("float64")


CACHES = (CacheLevel("L2", 10, 40.0), CacheLevel("L3", 100, 20.0))


@pytest.mark.parametrize(
    ("size", "seconds", "holder"),
    [(4, 0.1, "L2"), (10, 0.25, "L2"), (50, 0.25 + 2.0, "L3"), (210, 0.25 + 5.0 + 10.0, "memory")],
)
def test_bytes_are_read_from_what_holds_them(size: int, seconds: float, holder: str) -> None:
    best = Roofline(1.0, 10.0, caches=CACHES)
    assert (best.estimate_read_seconds(size), best.find_memory_level(size)) == (pytest.approx(seconds), holder)
    assert (best.estimate_read_seconds(size, cold=True), best.find_memory_level(size, cold=True)) == (
        size / 10,
        "memory",
    )
    assert compute_roofline_share(0, size, 2 * seconds, best) == pytest.approx(0.5)


def test_no_cache_is_slower_than_what_lies_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {16: 30.0, 8: 50.0, 4: 45.0, 2: 20.0, 1: 9.0}
    monkeypatch.setattr(roofline, "_list_caches", lambda device: {"L2": 8, "L3": 32})
    monkeypatch.setattr(
        roofline, "_measure_read", lambda device, size, repeats: MeasuredRate(rates[size], f"sum of {size}")
    )
    found = roofline._measure_cache_reads("cpu", 10.0)
    assert [(c.name, c.size, c.bytes_per_s) for c in found] == [("L2", 8, 50.0), ("L3", 32, 50.0)]
    assert [c.bytes_per_s for c in roofline._measure_cache_reads("cpu", 99.0)] == [99.0, 99.0]


def test_threads_fill_as_many_caches_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "read_cache_sizes", lambda: {"L1d": 1, "L1i": 1, "L2": 10, "L3": 100})
    monkeypatch.setattr(roofline, "count_cache_copies", lambda: {"L1d": 8, "L2": 8, "L3": 2})
    for threads, sizes in ((1, (10, 100)), (4, (40, 200))):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert tuple(roofline._list_caches("cpu").values()) == sizes


def test_several_looks_give_the_highest_rates_and_their_spread() -> None:
    one, two = Roofline(100.0, 10.0, "a", "b", CACHES), Roofline(80.0, 20.0, "c", "d", (CacheLevel("L3", 100, 50.0),))
    assert merge_rooflines([one, two]) == Roofline(100.0, 20.0, "a", "d", (CACHES[0], CacheLevel("L3", 100, 50.0)))
    assert compute_spread([one, two]) == pytest.approx({"gemm": 0.2, "memory": 0.5, "L2": 0.0, "L3": 0.6})
    assert merge_rooflines([one]) == one


def test_the_share_is_of_what_binds() -> None:
    best = Roofline(100.0, 10.0)
    assert compute_roofline_share(200, 1, 4.0, best) == 0.5  # two seconds of arithmetic in four
    assert compute_roofline_share(1, 20, 4.0, best) == 0.5  # two seconds of reading
    assert compute_roofline_share(400, 20, 4.0, best) == 1.0


def test_the_clock() -> None:
    assert 0 <= measure_timer_overhead() < 1e-5
    assert 0 < measure_timer_resolution() < 1e-3
