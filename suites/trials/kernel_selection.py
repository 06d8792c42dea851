"""Does the timing table select faster kernels than the rule and the former constants?

    python suites/trials/kernel_selection.py [--shapes 40] [--seed 0]

draws random shapes, times all implementations of each autotuned kernel, and prints the time of the implementations
selected by the table, the rule and the constant relative to the fastest one: geometric means over shapes with 95%
intervals, and how many shapes are more than 10% slower. The table is that of this machine and one thread; it is created
if it does not exist.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import torch
from interleaving import format_estimate, time_interleaved

from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.autotuning.candidates import GRADIENTS, Tunable, TuningPoint
from efficient_attn.kernels.half_precision import HALF
from efficient_attn.kernels.linear.bidirectional import SUMS
from efficient_attn.kernels.linear.scan import SCAN
from efficient_attn.kernels.native.building import build_all
from efficient_attn.kernels.products import PRODUCTS
from efficient_attn.kernels.softmax.decode import DECODE
from efficient_attn.kernels.sparse.implementation_choice import TILES
from efficient_attn.results.stats import estimate_geometric_mean

MAX_MULTIPLY_ADDS = 2**28  # multiply-adds of a drawn call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=40, help="of each kernel")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("C++ kernels:", ", ".join(f"{name}: {reason or 'built'}" for name, reason in build_all().items()))
    for tunable, draw, constant in (
        (PRODUCTS, draw_product, product_constant),
        (HALF, draw_half, lambda point: "own"),
        (DECODE, draw_decode, decode_constant),
        (SCAN, draw_scan, lambda point: "chunks"),
        (SUMS, draw_sums, lambda point: "torch"),
        (TILES, draw_tiles, lambda point: "torch"),
    ):
        compare_choices(tunable, draw, constant, args.shapes, np.random.default_rng(args.seed))


def compare_choices(
    tunable: Tunable,
    draw: Callable[[np.random.Generator], TuningPoint],
    constant: Callable[[TuningPoint], str],
    count: int,
    rng: np.random.Generator,
) -> None:
    table = autotuner.find_table(tunable, 1)
    print(f"\n{tunable.name}: {len(table.timings)} points timed in {table.seconds:.1f} s ({table.source})")
    relative_times: dict[str, list[float]] = defaultdict(list)
    for _ in range(count):
        point = draw(rng)
        with torch.no_grad():
            times = {
                implementation: np.median(t)
                for implementation, t in time_interleaved(tunable.make_candidates(point), rounds=7).items()
            }
        best = min(times.values())
        for chooser, implementation in (
            ("table", autotuner.select_implementation(tunable, 1, point)),
            ("rule", tunable.rule(point)),
            ("constant", constant(point)),
        ):
            relative_times[chooser].append(float(times[implementation] / best))
    for chooser, ratios in relative_times.items():
        mean = estimate_geometric_mean(ratios)
        late = sum(ratio > 1.1 for ratio in ratios)
        worst = f"{late} of {count} beyond 1.10, at worst {max(ratios):.2f}"
        print(f"  {chooser:8s} relative to the fastest: {format_estimate(mean, 3)}, {worst}", flush=True)


def draw_product(rng: np.random.Generator) -> TuningPoint:
    while True:
        heads, rows = int(rng.integers(1, 40)), int(rng.integers(20, 3000))
        inner, columns = (int(rng.integers(16, 300)) for _ in range(2))
        if heads * rows * inner * columns <= MAX_MULTIPLY_ADDS:
            return TuningPoint(str(rng.choice(["rows", "sums"])), (heads, rows, inner, columns))


def product_constant(point: TuningPoint) -> str:
    """256 rows, measured on an AMD Zen 5."""
    return "by_head" if point.sizes[1] >= 256 else "batched"


def draw_half(rng: np.random.Generator) -> TuningPoint:
    dtype, part = rng.choice(["bfloat16", "float16"]), rng.choice(["forward", "backward", "product"])
    return TuningPoint(
        f"{dtype} {part}", tuple(int(rng.integers(low, high)) for low, high in ((20, 800), (30, 500), (24, 160)))
    )


def draw_decode(rng: np.random.Generator) -> TuningPoint:
    heads, rows, keys = int(rng.integers(1, 12)), int(rng.integers(1, 9)), int(rng.integers(600, 30000))
    kind = f"{rng.choice(['float32', 'bfloat16', 'float16'])} {'row' if rows == 1 else 'rows'}"
    return TuningPoint(kind, (heads, rows, keys, int(rng.choice([48, 64, 96, 128]))))


def draw_scan(rng: np.random.Generator) -> TuningPoint:
    kind = str(rng.choice(["float32", "float64"])) + str(rng.choice(["", GRADIENTS]))
    features, columns = (int(rng.choice([16, 24, 32, 64, 96, 128, 256])) for _ in range(2))
    return TuningPoint(kind, (int(rng.integers(1, 17)), int(rng.integers(1, 5)), features, columns))


def draw_sums(rng: np.random.Generator) -> TuningPoint:
    kind = str(rng.choice(["float32", "bfloat16", "float16"])) + str(rng.choice(["", GRADIENTS]))
    while True:
        width, columns = (int(rng.choice([16, 24, 32, 64, 80, 96, 128])) for _ in range(2))
        heads, group, length = int(rng.integers(1, 33)), int(rng.integers(1, 5)), int(2 ** rng.uniform(4, 13))
        if heads * group * length * width * columns <= MAX_MULTIPLY_ADDS:
            return TuningPoint(kind, (heads, group, length, width, columns))


def draw_tiles(rng: np.random.Generator) -> TuningPoint:
    kind = str(rng.choice(["float32", "bfloat16", "float16"])) + str(rng.choice(["", GRADIENTS]))
    while True:
        heads, group, width = int(rng.integers(1, 33)), int(rng.integers(1, 5)), int(rng.choice([32, 64, 80, 96, 128]))
        length, keys = int(2 ** rng.uniform(6, 13)), int(2 ** rng.uniform(4, 10))
        if keys < length and 2 * heads * group * length * keys * width <= MAX_MULTIPLY_ADDS:
            return TuningPoint(kind, (heads, group, length, keys, width))


def decode_constant(point: TuningPoint) -> str:
    """oneDNN for grouped heads over long caches in float32, else torch's kernel."""
    _, _, keys, width = point.sizes
    return "by_head" if point.kind == "float32 rows" and keys * width >= 2**19 else "fold"


if __name__ == "__main__":
    main()
