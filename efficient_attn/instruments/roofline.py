"""The roofline: the machine's highest rates, which measurements are compared with, and the overhead of the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from .environment import find_available_memory
from .environment.gpu import read_l2_bytes
from .environment.machine import count_cache_copies, read_cache_sizes
from .global_state import use_threads
from .timing import synchronize

GEMM_S = 0.02  # seconds of one product: longer than a launch, shorter than changes of the clock frequency
PROBE_ROWS = 256  # rows of the first product, from which the size is derived
MAX_ROWS = {"cpu": 8192, "cuda": 16384}  # rows of the last one
SKINNY_SIDE = 64  # the short side of skinny products: a head's width
BUFFER_BYTES = 256 * 2**20  # bytes read to measure the bandwidth of memory
BUFFER_CACHES = 2  # the buffer is at least this many times as large as the largest cache
GEMM_REPEATS = 7  # of each finalist
MEMORY_REPEATS = 3  # of each call that reads
CACHE_DIVISORS = (2, 4, 8)  # a cache is read at these parts of its size
CACHE_REPEATS = 30  # reads of a small cache: short, and easily disturbed
CACHE_READ_BYTES = 2**30  # total bytes that each call reads from a cache, so that large ones are read fewer times
N_FINALISTS = 3  # the fastest products, which are timed repeatedly


class MeasuredRate(NamedTuple):
    """The highest of several rates, and what reached it: a library or a call, with its shape or size."""

    rate: float
    by: str


@dataclass(frozen=True)
class CacheLevel:
    """A cache, with its size over all threads in bytes, and the best rate at which it was read."""

    name: str
    size: int
    bytes_per_s: float
    by: str = ""


@dataclass(frozen=True)
class Roofline:
    """The highest measured rates: floating-point operations a second in a matrix product, bytes a second from memory.

    gemm_by, read_by: the library and shape, and the call, that reached them. caches: the larger ones, smallest first.
    """

    gemm_flops_per_s: float
    bytes_per_s: float
    gemm_by: str = ""
    read_by: str = ""
    caches: tuple[CacheLevel, ...] = ()

    def estimate_read_seconds(self, size: int, *, cold: bool = False) -> float:
        """The shortest time to read so many bytes: as many as fit from the caches, the rest from memory.

        cold: all from memory.
        """
        seconds = 0.0
        for cache in () if cold else self.caches:
            cached = min(size, cache.size)
            seconds, size = seconds + cached / cache.bytes_per_s, size - cached
        return seconds + size / self.bytes_per_s

    def find_memory_level(self, size: int, *, cold: bool = False) -> str:
        """The level from which so many bytes are read repeatedly: a cache's name, or ``memory``."""
        for cache in () if cold else self.caches:
            if size <= cache.size:
                return cache.name
            size -= cache.size
        return "memory"


def measure_roofline_rates(device: str, dtype: str, threads: int | None = None, *, rough: bool = False) -> Roofline:
    """Measure the rates, in half a second, or up to three where caches are large.

    threads: those of the measured code, by default torch's. rough: only torch's square product and memory, in a tenth
    of the time, and up to 20% off.
    """
    torch_dtype = getattr(torch, dtype)
    is_half = device == "cpu" and torch_dtype.itemsize < 4  # often computed in float32 there, and slower
    with use_threads(threads), torch.no_grad():
        if rough:
            read = _measure_memory_read(device, 1, BUFFER_BYTES // 4)
            return Roofline(_measure_product_roughly(device, torch.float32 if is_half else torch_dtype).rate, read.rate)
        best = _measure_products(device, torch.float32 if is_half else torch_dtype)
        if is_half and _measure_product_roughly(device, torch_dtype).rate > best.rate / 2:
            best = max(best, _measure_products(device, torch_dtype))
        read = _measure_memory_read(device, MEMORY_REPEATS, BUFFER_BYTES)
        return Roofline(best.rate, read.rate, best.by, read.by, _measure_cache_reads(device, read.rate))


def merge_rooflines(rooflines: Sequence[Roofline]) -> Roofline:
    """The highest rates of several measurements of one machine."""
    best_gemm = max(rooflines, key=lambda roofline: roofline.gemm_flops_per_s)
    best_read = max(rooflines, key=lambda roofline: roofline.bytes_per_s)
    caches = sorted((c for roofline in rooflines for c in roofline.caches), key=lambda c: c.bytes_per_s)
    fastest = {cache.name: cache for cache in caches}  # the last one of each name
    by_size = tuple(sorted(fastest.values(), key=lambda cache: cache.size))
    return Roofline(best_gemm.gemm_flops_per_s, best_read.bytes_per_s, best_gemm.gemm_by, best_read.read_by, by_size)


def compute_spread(rooflines: Sequence[Roofline]) -> dict[str, float]:
    """For each rate, the relative difference between its highest and its lowest measurement."""
    rates: dict[str, list[float]] = {}
    for roofline in rooflines:
        values = {"gemm": roofline.gemm_flops_per_s, "memory": roofline.bytes_per_s}
        for name, rate in (values | {cache.name: cache.bytes_per_s for cache in roofline.caches}).items():
            rates.setdefault(name, []).append(rate)
    return {name: 1 - min(measured) / max(measured) for name, measured in rates.items()}


def compute_roofline_share(
    flops: float, bytes_moved: int, seconds: float, roofline: Roofline, *, cold: bool = False
) -> float:
    """The roofline share: the shortest time that the machine allows for this work, over the measured time."""
    return max(flops / roofline.gemm_flops_per_s, roofline.estimate_read_seconds(bytes_moved, cold=cold)) / seconds


def measure_timer_overhead() -> float:
    """Seconds that reading the clock adds to a measurement: the smallest of many."""
    clock = time.perf_counter
    return min(-(clock() - clock()) for _ in range(2000))


def measure_timer_resolution() -> float:
    """The smallest observed step of the clock, in seconds."""
    times = sorted({time.perf_counter() for _ in range(2000)})
    return min(b - a for a, b in pairwise(times))


# -- arithmetic ----------------------------------------------------------------------------------------------------


ProductShape = tuple[int, int, int]  # rows, inner, columns


def _measure_products(device: str, dtype: torch.dtype) -> MeasuredRate:
    """The best rate of several products, square and skinny, each through all libraries that multiply here."""
    n = _find_size(device, dtype)
    square = [(n // 2, n // 2, n // 2), (n, n, n), (2 * n, n, n)]
    skinny = [(4 * n, SKINNY_SIDE, 4 * n), (4 * n, 4 * n, SKINNY_SIDE), (4 * n, n // 2, n // 2)]
    shapes = [shape for shape in (*square, *skinny) if max(shape) <= MAX_ROWS.get(device, MAX_ROWS["cpu"])]
    products = product(shapes, _list_libraries(device, dtype))
    products_by_rate = {_measure_product(name, shape, 1, device, dtype): (name, shape) for shape, name in products}
    fastest = [products_by_rate[rate] for rate in sorted(products_by_rate, reverse=True)[:N_FINALISTS]]
    return max(_measure_product(name, shape, GEMM_REPEATS, device, dtype) for name, shape in fastest)


def _measure_product_roughly(device: str, dtype: torch.dtype) -> MeasuredRate:
    n = _find_size(device, dtype)
    return _measure_product("torch.mm", (n, n, n), 2, device, dtype)


def _find_size(device: str, dtype: torch.dtype) -> int:
    """The rows of a square product that takes about `GEMM_S`."""
    n, largest = PROBE_ROWS, MAX_ROWS.get(device, MAX_ROWS["cpu"])
    while 2 * n**3 / _measure_product("torch.mm", (n, n, n), 2, device, dtype).rate < GEMM_S / 8 and 2 * n <= largest:
        n *= 2
    return n


def _list_libraries(device: str, dtype: torch.dtype) -> list[str]:
    """torch's own product (its BLAS for float32 on CPUs), and oneDNN's, as kernels call it, in both layouts."""
    has_pointwise = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    has_onednn = device == "cpu" and dtype != torch.float64 and has_pointwise
    return ["torch.mm", *(["oneDNN", "oneDNN (transposed)"] if has_onednn else [])]


def _measure_product(library: str, shape: ProductShape, repeats: int, device: str, dtype: torch.dtype) -> MeasuredRate:
    rows, inner, columns = shape
    # a GPU multiplies equal numbers at less power, and so at a higher clock, than those of attention
    make = torch.randn if device == "cuda" else torch.ones
    a, b = (make(size, dtype=dtype, device=device) for size in ((rows, inner), (inner, columns)))
    out = torch.empty(rows, columns, dtype=dtype, device=device)
    weight = b.mT if library == "oneDNN" else b.mT.contiguous()

    def call() -> Tensor:
        if library == "torch.mm":
            return torch.mm(a, b, out=out)
        return torch.ops.mkldnn._linear_pointwise(a, weight, None, "none", [], "")

    kind = str(dtype).removeprefix("torch.")
    by = f"{library} {rows}x{inner}x{columns} {kind}"
    return MeasuredRate(2 * rows * inner * columns / _time_best(call, repeats, device), by)


# -- reading -------------------------------------------------------------------------------------------------------


def _measure_memory_read(device: str, repeats: int, min_size: int) -> MeasuredRate:
    """The highest rate of reading a buffer larger than all caches; except on the CPU, of copying it."""
    largest_cache = max(read_cache_sizes().values(), default=0)
    size = max(min_size, BUFFER_CACHES * largest_cache) if device == "cpu" else 4 * min_size
    available = torch.cuda.mem_get_info()[0] if device == "cuda" else find_available_memory()
    return _measure_read(device, size if available is None else min(size, available // 8), repeats)


def _measure_cache_reads(device: str, lowest_rate: float) -> tuple[CacheLevel, ...]:
    """The caches above the first level, each read at parts of its size. No rate is below that of the next level."""
    caches: list[CacheLevel] = []
    for name, size in sorted(_list_caches(device).items(), key=lambda item: -item[1]):
        parts = [max(size // divisor, 1) for divisor in CACHE_DIVISORS]
        repeats = {part: min(CACHE_REPEATS, max(MEMORY_REPEATS, CACHE_READ_BYTES // part)) for part in parts}
        best = max(_measure_read(device, part, repeats[part]) for part in parts)
        lowest_rate = max(best.rate, lowest_rate)
        caches.insert(0, CacheLevel(name, size, lowest_rate, best.by))
    return tuple(caches)


def _list_caches(device: str) -> dict[str, int]:
    """Bytes of each larger cache, over as many of them as the threads can use."""
    if device == "cuda":
        return {"L2": read_l2_bytes()}
    if device != "cpu":
        return {}
    copies, threads = count_cache_copies(), torch.get_num_threads()
    sizes = {name: size for name, size in read_cache_sizes().items() if not name.startswith("L1")}
    return {name: size * min(threads, copies.get(name, 1)) for name, size in sizes.items()}


def _measure_read(device: str, size: int, repeats: int) -> MeasuredRate:
    """The highest rate at which simple calls read a buffer of a size; except on the CPU, copy one half of it to the
    other."""
    if device == "cpu":
        x = torch.ones(size // 4)
        calls: dict[str, Callable[[], object]] = {"sum": x.sum, "max": x.max, "dot": lambda: torch.dot(x, x)}
    else:
        x, target = (torch.ones(size // 8, device=device) for _ in range(2))
        calls = {"copy": lambda: target.copy_(x)}
    return max(
        MeasuredRate(size / _time_best(call, repeats, device), f"{name} of {size / 2**20:.4g} MiB")
        for name, call in calls.items()
    )


def _time_best(call: Callable[[], object], repeats: int, device: str) -> float:
    """Seconds of the fastest call, the first one left out."""
    call()
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)
