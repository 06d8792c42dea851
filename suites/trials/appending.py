"""The cost of appending a position to a decode cache, by its length.

    python suites/trials/appending.py [ROUNDS]    # about a minute, 1 GiB of memory

`KVCache.append` and `RollingCache.append` against joining the past and the new position by `torch.cat`: one row, eight
key-value heads of 64, float32, one thread, all timed in interleaved rounds of one process. An append at a fixed length
writes the same slot over and over, so it is one that the processor's cache holds. The last line is each one's exponent
over all lengths. Intervals are of 95%.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from efficient_attn.contract.decode_state import KVCache, RollingCache
from efficient_attn.instruments.timing import TimedCall, calibrate, plan_samples, run_rounds
from efficient_attn.results.stats import (
    Estimate,
    estimate_exponent,
    estimate_geometric_mean,
    estimate_paired_ratio,
    median,
)

LENGTHS = tuple(2**n for n in range(10, 17))
HEADS, WIDTH, WINDOW = 8, 64, 128
BUDGET_S = 30.0  # of one kind at one length
METHODS = ("append", "rolling", "cat")


def make_calls(length: int) -> dict[str, Callable[[], object]]:
    """Appending one position to a cache of a given length, in three ways."""
    k, v = (torch.randn(1, HEADS, 1, WIDTH) for _ in range(2))
    buffers = [torch.randn(1, HEADS, length + 1, WIDTH) for _ in range(2)]
    ring = [torch.randn(1, HEADS, WINDOW, WIDTH) for _ in range(2)]
    past: list[Tensor] = [x[:, :, :length] for x in buffers]
    cache = KVCache(length + 1, *buffers, length=length)
    rolling = RollingCache(WINDOW, length + 1, 0, *ring, length=length)
    calls = (
        lambda: cache.append(k, v),
        lambda: rolling.append(k, v),
        lambda: [torch.cat([x, new], 2) for x, new in zip(past, (k, v), strict=True)],
    )
    return dict(zip(METHODS, calls, strict=True))


def make_timed_call(call: Callable[[], object]) -> TimedCall:
    def run(count: int) -> None:
        for _ in range(count):
            call()

    return TimedCall(run)


def measure_microseconds(rounds: int) -> dict[tuple[str, int], list[float]]:
    """One value for each round, way and length."""
    keys = {f"{method} {length}": (method, length) for length in LENGTHS for method in METHODS}
    calls = {length: make_calls(length) for length in LENGTHS}
    subjects = {name: make_timed_call(calls[length][method]) for name, (method, length) in keys.items()}
    for call in subjects.values():
        call.run(2)
    costs = {name: calibrate(call, budget_s=BUDGET_S, device="cpu") for name, call in subjects.items()}
    plans = plan_samples(costs, rounds=rounds, processes=1, budget_s=BUDGET_S)
    values: dict[tuple[str, int], list[float]] = {key: [] for key in keys.values()}
    for result in run_rounds(
        subjects, plans, dict.fromkeys(subjects, rounds), seed=0, device="cpu", single_thread=True
    ):
        if result.errors:
            raise next(iter(result.errors.values()))
        for name, samples in result.samples.items():
            values[keys[name]].append(median(samples) * 1e3)
    return values


def format_estimate(estimate: Estimate, digits: int = 1) -> str:
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f}-{estimate.high:.{digits}f})"


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    values = measure_microseconds(rounds)
    print(f"{'context':>9}" + "".join(f"{f'{method}, us':>32}" for method in METHODS) + f"{'cat / append':>32}")
    for length in LENGTHS:
        cells = [format_estimate(estimate_geometric_mean(values[method, length])) for method in METHODS]
        cells.append(format_estimate(estimate_paired_ratio(values["cat", length], values["append", length])))
        print(f"{length:9}" + "".join(f"{cell:>32}" for cell in cells))
    growth = [
        estimate_exponent(LENGTHS, [estimate_geometric_mean(values[method, length]).value for length in LENGTHS])
        for method in METHODS
    ]
    print(f"{'exponent':>9}" + "".join(f"{format_estimate(estimate, 3):>32}" for estimate in growth))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
