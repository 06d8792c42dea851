"""Does the cost of appending a position to a decode cache depend on its length?

    python suites/trials/cache_append.py [ROUNDS]    # about a minute, 1 GiB of memory

Times `KVCache.append`, `RollingCache.append` and `torch.cat` of the past and the new position, interleaved: batch 1,
eight key-value heads of 64, float32, one thread. An append at a fixed length writes to the same slot repeatedly, which
is therefore in the processor's cache. The last line has each exponent over all lengths. Intervals are of 95%.
"""

from __future__ import annotations

import sys

import torch
from interleaving import TimedRun, format_estimate, time_interleaved

from efficient_attn.contract.decode_state import KVCache, RollingCache
from efficient_attn.results.stats import estimate_exponent, estimate_geometric_mean, estimate_paired_ratio

LENGTHS = tuple(2**n for n in range(10, 17))
HEADS, WIDTH, WINDOW = 8, 64, 128
METHODS = ("append", "rolling", "cat")


def make_calls(length: int) -> dict[str, TimedRun]:
    """Three methods of appending one position to a cache of a given length."""
    k, v = (torch.randn(1, HEADS, 1, WIDTH) for _ in range(2))
    buffers = [torch.randn(1, HEADS, length + 1, WIDTH) for _ in range(2)]
    ring = [torch.randn(1, HEADS, WINDOW, WIDTH) for _ in range(2)]
    past = [x[:, :, :length] for x in buffers]
    cache = KVCache(length + 1, *buffers, length=length)
    rolling = RollingCache(WINDOW, *ring, length=length, max_len=length + 1)
    calls = (
        lambda: cache.append(k, v),
        lambda: rolling.append(k, v),
        lambda: [torch.cat([x, new], 2) for x, new in zip(past, (k, v), strict=True)],
    )
    return dict(zip(METHODS, calls, strict=True))


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    runs = {f"{method} {n}": run for n in LENGTHS for method, run in make_calls(n).items()}
    values = {name: (1e6 * seconds).tolist() for name, seconds in time_interleaved(runs, rounds=rounds).items()}
    means = {name: estimate_geometric_mean(microseconds) for name, microseconds in values.items()}
    print(f"{'context':>9}" + "".join(f"{f'{method}, us':>32}" for method in METHODS) + f"{'cat / append':>32}")
    for n in LENGTHS:
        cells = [means[f"{method} {n}"] for method in METHODS]
        cells.append(estimate_paired_ratio(values[f"cat {n}"], values[f"append {n}"]))
        print(f"{n:9}" + "".join(f"{format_estimate(cell, 1):>32}" for cell in cells))
    growth = [estimate_exponent(LENGTHS, [means[f"{method} {n}"].value for n in LENGTHS]) for method in METHODS]
    print(f"{'exponent':>9}" + "".join(f"{format_estimate(estimate, 3):>32}" for estimate in growth))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
