"""What the machine can do at best: the rates that a measurement is held against, and what the clock itself costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .environment import available_memory
from .environment.machine import cache_copies, caches
from .timing import synchronize

GEMM_S = 0.02  # seconds that one product should take: far above a launch, far below a change of the clock
PROBE = 256  # rows of the first product, from which the size is found
LARGEST = {"cpu": 8192, "cuda": 16384}  # rows of the last one
NARROW = 64  # the short side of skinny products: a head's width
BUFFER = 256 * 2**20  # bytes read to measure bandwidth, or more where the caches are large
REPEATS = 7  # of the products that were fastest
MEMORY_REPEATS = 3  # of each call that reads
CACHE_REPEATS = 30  # reads of a small cache: short, and easily disturbed
CACHE_READ = 2**30  # bytes that each call reads from a cache in all, so that large ones are read fewer times
N_FINALISTS = 3  # products that are timed again and again, of all that were tried


class MeasuredRate(NamedTuple):
    """The highest rate of several ways, and by which: a library or a call, and its shape or size."""

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
    """The best rates found: floating-point operations a second of a matrix product, bytes a second from memory.

    gemm_by, read_by: which library and shape, and which call, that was. caches: the larger ones, smallest first.
    """

    gemm_flops_per_s: float
    bytes_per_s: float
    gemm_by: str = ""
    read_by: str = ""
    caches: tuple[CacheLevel, ...] = ()

    def read_seconds(self, size: int, *, cold: bool = False) -> float:
        """The least time to read so many bytes: what the caches can hold at their rates, the rest from memory.

        cold: all from memory.
        """
        seconds = 0.0
        for cache in () if cold else self.caches:
            held = min(size, cache.size)
            seconds, size = seconds + held / cache.bytes_per_s, size - held
        return seconds + size / self.bytes_per_s

    def find_memory_level(self, size: int, *, cold: bool = False) -> str:
        """Where so many bytes lie when they are read again and again: a cache's name, or ``memory``."""
        for cache in () if cold else self.caches:
            if size <= cache.size:
                return cache.name
            size -= cache.size
        return "memory"


def measure_roofline_rates(device: str, dtype: str, threads: int | None = None, *, rough: bool = False) -> Roofline:
    """Measure the rates, for about half a second. threads: as many as the measured code uses, else torch's own.

    rough: torch's own square product and memory alone, for a tenth of that, and perhaps 20% off.
    """
    kind = getattr(torch, dtype)
    half = device == "cpu" and kind.itemsize < 4  # often computed in float32 there, and slower
    with _threads(threads), torch.no_grad():
        if rough:
            read = _read_memory(device, 1, BUFFER // 4)
            return Roofline(_multiply_roughly(device, torch.float32 if half else kind).rate, read.rate)
        best = _multiply(device, torch.float32 if half else kind)
        if half and _multiply_roughly(device, kind).rate > best.rate / 2:
            best = max(best, _multiply(device, kind))
        read = _read_memory(device, MEMORY_REPEATS, BUFFER)
        return Roofline(best.rate, read.rate, best.by, read.by, _read_caches(device, read.rate))


def merge_highest(looks: Sequence[Roofline]) -> Roofline:
    """The best of several looks at one machine."""
    product = max(looks, key=lambda look: look.gemm_flops_per_s)
    memory = max(looks, key=lambda look: look.bytes_per_s)
    held: dict[str, CacheLevel] = {}
    for cache in sorted((c for look in looks for c in look.caches), key=lambda c: c.bytes_per_s):
        held[cache.name] = cache  # the fastest comes last
    by_size = tuple(sorted(held.values(), key=lambda cache: cache.size))
    return Roofline(product.gemm_flops_per_s, memory.bytes_per_s, product.gemm_by, memory.read_by, by_size)


def spread(looks: Sequence[Roofline]) -> dict[str, float]:
    """How far each rate's lowest look lies below its highest, as a share."""
    rates: dict[str, list[float]] = {}
    for look in looks:
        values = {"gemm": look.gemm_flops_per_s, "memory": look.bytes_per_s}
        for name, rate in (values | {cache.name: cache.bytes_per_s for cache in look.caches}).items():
            rates.setdefault(name, []).append(rate)
    return {name: 1 - min(all_) / max(all_) for name, all_ in rates.items()}


def compute_roofline_share(
    flops: float, bytes_moved: int, seconds: float, best: Roofline, *, cold: bool = False
) -> float:
    """The roofline share: the least time that the machine allows for this work over the time that it took."""
    return max(flops / best.gemm_flops_per_s, best.read_seconds(bytes_moved, cold=cold)) / seconds


def timer_overhead() -> float:
    """Seconds that reading the clock adds to what is timed: the least of many."""
    clock = time.perf_counter
    return min(-(clock() - clock()) for _ in range(2000))


def timer_resolution() -> float:
    """The smallest step of the clock that was seen, in seconds."""
    times = sorted({time.perf_counter() for _ in range(2000)})
    return min(b - a for a, b in pairwise(times))


# -- arithmetic ----------------------------------------------------------------------------------------------------


Shape = tuple[int, int, int]  # rows, inner, columns


def _multiply(device: str, dtype: torch.dtype) -> MeasuredRate:
    """The best rate of several products, square and skinny, each through all libraries that multiply here."""
    tried = {}
    for shape in _shapes(device, dtype):
        for name in _libraries(device, dtype):
            tried[_product(name, shape, 1, device, dtype)] = name, shape
    fastest = [tried[rate] for rate in sorted(tried, reverse=True)[:N_FINALISTS]]
    return max(_product(name, shape, REPEATS, device, dtype) for name, shape in fastest)


def _multiply_roughly(device: str, dtype: torch.dtype) -> MeasuredRate:
    n = _find_size(device, dtype)
    return _product("torch.mm", (n, n, n), 2, device, dtype)


def _shapes(device: str, dtype: torch.dtype) -> list[Shape]:
    n = _find_size(device, dtype)
    square = [(n // 2, n // 2, n // 2), (n, n, n), (2 * n, n, n)]
    skinny = [(4 * n, NARROW, 4 * n), (4 * n, 4 * n, NARROW), (4 * n, n // 2, n // 2)]
    return [shape for shape in (*square, *skinny) if max(shape) <= LARGEST.get(device, LARGEST["cpu"])]


def _find_size(device: str, dtype: torch.dtype) -> int:
    """The rows of a square product that takes about `GEMM_S`."""
    n, largest = PROBE, LARGEST.get(device, LARGEST["cpu"])
    while 2 * n**3 / _product("torch.mm", (n, n, n), 2, device, dtype).rate < GEMM_S / 8 and 2 * n <= largest:
        n *= 2
    return n


def _libraries(device: str, dtype: torch.dtype) -> list[str]:
    """torch's own product, of its BLAS for float32 on CPUs; and oneDNN's, as kernels call it, in both layouts."""
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    reaches = device == "cpu" and dtype != torch.float64 and there
    return ["torch.mm", *(["oneDNN", "oneDNN (transposed)"] if reaches else [])]


def _product(library: str, shape: Shape, repeats: int, device: str, dtype: torch.dtype) -> MeasuredRate:
    rows, inner, columns = shape
    a, b = (torch.ones(size, dtype=dtype, device=device) for size in ((rows, inner), (inner, columns)))
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


def _read_memory(device: str, repeats: int, least: int) -> MeasuredRate:
    """The best rate of reading a buffer that no cache holds; off the CPU, of a copy, which reads and writes."""
    size = max(least, 2 * max(caches().values(), default=0)) if device == "cpu" else 4 * least
    left = torch.cuda.mem_get_info()[0] if device == "cuda" else available_memory()
    return _read(device, size if left is None else min(size, left // 8), repeats)


def _read_caches(device: str, slowest: float) -> tuple[CacheLevel, ...]:
    """The caches beyond a core's first, each read at parts of its size. None is slower than what lies after it."""
    caches: list[CacheLevel] = []
    for name, size in sorted(_list_caches(device).items(), key=lambda named: -named[1]):
        best = max(_read(device, size // part, _count_reads(size // part)) for part in (2, 4, 8))
        slowest = max(best.rate, slowest)
        caches.insert(0, CacheLevel(name, size, slowest, best.by))
    return tuple(caches)


def _count_reads(size: int) -> int:
    return min(CACHE_REPEATS, max(MEMORY_REPEATS, CACHE_READ // max(size, 1)))


def _list_caches(device: str) -> dict[str, int]:
    """Bytes of each larger cache, of as many of them as threads can fill."""
    if device == "cuda":
        return {"L2": torch.cuda.get_device_properties(0).L2_cache_size}
    copies, threads = cache_copies(), torch.get_num_threads()
    sizes = {name: size for name, size in caches().items() if not name.startswith("L1")} if device == "cpu" else {}
    return {name: size * min(threads, copies.get(name, 1)) for name, size in sizes.items()}


def _read(device: str, size: int, repeats: int) -> MeasuredRate:
    """The best rate at which a buffer is read, of several calls that do little else; off the CPU, at which it is copied
    to another that shares its size."""
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


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
