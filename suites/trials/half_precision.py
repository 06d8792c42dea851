"""Is any mechanism slower in bfloat16 or float16 than in float32, forward or with gradients?

    python suites/trials/half_precision.py [--shape 1,4,2048,64] [SPEC...]

prints the milliseconds in float32, and the ratio of the time in each other dtype to it with a 95% interval. Calls are
interleaved, on one thread.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from interleaving import format_estimate, make_attention, make_call, time_interleaved

from efficient_attn.results.stats import estimate_geometric_mean

SPECS = [
    *("full", "gqa:kv_heads=2", "mqa", "mla", "sliding_window:window=128", "longformer:window=128:n_global=64"),
    *("strided", "fixed", "bigbird", "attention_sinks", "random_blocks", "linear", "relu_linear", "cosformer"),
    *("performer:n_features=256", "random_feature", "retention", "linformer:rank=256", "nystromformer"),
    "reformer:n_hashes=4:bucket_size=64",
]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--shape", default="1,4,2048,64", help="batch, heads, length, width")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = [int(size) for size in args.shape.split(",")]
    for spec in args.specs:
        for causal in (False, True):
            for gradient in (False, True):
                if causal in make_attention(spec, shape)[0].traits.directions:
                    print(compare(spec, shape, causal, gradient, args.rounds), flush=True)


def compare(spec: str, shape: list[int], causal: bool, gradient: bool, rounds: int) -> str:
    runs = {name: make_call(*make_attention(spec, shape, dtype), causal, gradient) for name, dtype in DTYPES.items()}
    times = time_interleaved(runs, rounds=rounds)
    line = f"{spec:40s} {'causal' if causal else 'both':6s} {'with gradients' if gradient else 'forward':14s}"
    line += f" {np.median(times['float32']) * 1e3:8.2f} ms"
    for half in ("bfloat16", "float16"):
        ratio = estimate_geometric_mean((times[half] / times["float32"]).tolist())
        line += f"   {half} {format_estimate(ratio)}"
    return line


if __name__ == "__main__":
    main()
