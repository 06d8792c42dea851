"""What the machine can do at best: the rates that a measurement is held against, and what the clock itself costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch

from .environment import available_memory
from .environment.machine import caches
from .timing import synchronize

GEMM_S = 0.02  # seconds that one product should take: far above a launch, far below a change of the clock
PROBE = 256  # rows of the first product, from which the size is found
LARGEST = {"cpu": 8192, "cuda": 16384}  # rows of the last one
BUFFER = 256 * 2**20  # bytes read to measure bandwidth, or more where the caches are large
REPEATS = 7


@dataclass(frozen=True)
class Ceiling:
    """The best rates found: floating-point operations a second of a matrix product, bytes a second from memory."""

    gemm_flops_per_s: float
    bytes_per_s: float


def ceiling(device: str, dtype: str, threads: int | None = None, *, rough: bool = False) -> Ceiling:
    """Measure both rates, for about half a second. threads: as many as the measured code uses, else torch's own.

    rough: for a tenth of that, and perhaps 20% off.
    """
    kind = getattr(torch, dtype)
    if device == "cpu" and kind.itemsize < 4:
        kind = torch.float32  # half types are often computed in float32 there, and slower
    with _threads(threads), torch.no_grad():
        repeats = 2 if rough else REPEATS
        return Ceiling(_gemm(device, kind, repeats), _bandwidth(device, repeats, BUFFER // 4 if rough else BUFFER))


def share(flops: float, bytes_moved: float, seconds: float, best: Ceiling) -> float:
    """The roofline share: the least time that the machine allows for this work over the time that it took."""
    return max(flops / best.gemm_flops_per_s, bytes_moved / best.bytes_per_s) / seconds


def timer_overhead() -> float:
    """Seconds that reading the clock adds to what is timed: the least of many."""
    clock = time.perf_counter
    return min(-(clock() - clock()) for _ in range(2000))


def timer_resolution() -> float:
    """The smallest step of the clock that was seen, in seconds."""
    seen = sorted({time.perf_counter() for _ in range(2000)})
    return min(b - a for a, b in pairwise(seen))


def _gemm(device: str, dtype: torch.dtype, repeats: int) -> float:
    """The rate of a square product, made larger until it takes about `GEMM_S`."""
    n, largest = PROBE, LARGEST.get(device, LARGEST["cpu"])
    while (seconds := _product(n, 2, device, dtype)) < GEMM_S / 8 and 2 * n <= largest:
        n *= 2
    return 2 * n**3 / (_product(n, repeats, device, dtype) if repeats > 2 else seconds)


def _product(n: int, repeats: int, device: str, dtype: torch.dtype) -> float:
    """Seconds of the product of two square matrices of n rows."""
    a, b = (torch.ones(n, n, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(a)
    return _best(lambda: torch.mm(a, b, out=out), repeats, device)


def _bandwidth(device: str, repeats: int, least: int) -> float:
    """Bytes a second of a sum over a buffer that no cache holds; off the CPU, of a copy, which reads and writes."""
    size = max(least, 2 * max(caches().values(), default=0)) if device == "cpu" else 4 * least
    left = torch.cuda.mem_get_info()[0] if device == "cuda" else available_memory()
    size = size if left is None else min(size, left // 8)
    buffer = torch.ones(size // 4, device=device)
    if device == "cpu":
        return size / _best(lambda: buffer.sum(), repeats, device)
    target = torch.empty_like(buffer)
    return 2 * size / _best(lambda: target.copy_(buffer), repeats, device)


def _best(call: Callable[[], object], repeats: int, device: str) -> float:
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
