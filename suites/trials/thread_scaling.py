"""How much faster are mechanisms and decode steps on two threads than on one?

    python suites/trials/thread_scaling.py [--length 8192] [--threads 2] [SPEC...]

Rounds on one thread and on several are interleaved in one process. Decode steps read a context of 32,768 positions; the
first line is the speedup of reading memory, for comparison.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from interleaving import TimedRun, format_estimate, make_attention, make_call, measure_seconds

import efficient_attn as ea
from efficient_attn.results.stats import estimate_geometric_mean

SPECS = [
    *("full", "gqa:kv_heads=2", "sliding_window:window=128", "longformer:window=128:n_global=64", "strided", "bigbird"),
    *("linear", "performer:n_features=256", "retention", "linformer:rank=256", "nystromformer"),
    "reformer:n_hashes=4:bucket_size=64",
]
HEADS, WIDTH, CONTEXT = 8, 64, 32768


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    big = torch.randn(2**26)
    print(format_scaling("reading 256 MiB", lambda: big.sum(), args), flush=True)
    for spec in ("full", "gqa:kv_heads=2", "mqa"):
        print(format_scaling(f"decode step, {spec}", make_step(spec), args), flush=True)
    for spec in args.specs:
        attn, sample = make_attention(spec, (1, 4, args.length, WIDTH))
        causal = min(attn.traits.directions)
        for gradient in (False, True):
            title = f"{spec}, {'causal' if causal else 'both'}, {'with gradients' if gradient else 'forward'}"
            print(format_scaling(title, make_call(attn, sample, causal, gradient), args), flush=True)


def make_step(spec: str) -> TimedRun:
    """A decode step over a full context, repeated at the same position."""
    kv_heads = {"gqa": 2, "mqa": 1}.get(spec.partition(":")[0], HEADS)
    attn = ea.create(spec, dims=ea.Dims(heads=HEADS, head_dim=WIDTH, kv_heads=kv_heads))
    k = torch.randn(1, kv_heads, CONTEXT, WIDTH)
    state = attn.absorb(k, k, attn.init_state(1, CONTEXT + 1))
    q, new = torch.randn(1, HEADS, 1, WIDTH), torch.randn(1, kv_heads, 1, WIDTH)

    def run() -> None:
        with torch.no_grad():
            attn.step(q, new, new, state)

    return run


def format_scaling(name: str, run: TimedRun, args: argparse.Namespace) -> str:
    times: dict[int, list[float]] = {1: [], args.threads: []}
    for round_index in range(args.rounds + 1):
        for count, seconds in times.items():
            torch.set_num_threads(count)
            run()  # warms threads and caches; kernels are selected in the first sample
            if round_index:
                seconds.append(measure_seconds(run))
    speedup = estimate_geometric_mean((np.array(times[1]) / np.array(times[args.threads])).tolist())
    single_ms = np.median(times[1]) * 1e3
    return f"{name:60s} {single_ms:9.2f} ms on one thread, speedup on {args.threads}: {format_estimate(speedup)}"


if __name__ == "__main__":
    main()
