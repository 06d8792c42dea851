"""The overhead of rotary positions in a layer of attention.

    python suites/trials/rotary.py [--length 4096] [--rounds 25] [SPEC...]

prints the time of a multi-head layer of 4 heads, d_model 256, with `Rotary` over that without, forward and with
gradients, as a ratio with its 95% interval: float32, one thread, causal, calls in turns, and a ratio is one round's.
"""

from __future__ import annotations

import argparse

import torch
from turns import TimedRun, make_run, time_interleaved

import efficient_attn as ea
from efficient_attn.layers.positions import Rotary
from efficient_attn.results.stats import estimate_geometric_mean, estimate_paired_ratio

HEADS, WIDTH = 4, 256
SPECS = ["full", "sliding_window:window=256", "linear"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=25)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for spec in args.specs:
        for gradient in (False, True):
            print(format_comparison(spec, args.length, gradient, args.rounds), flush=True)


def format_comparison(spec: str, length: int, gradient: bool, rounds: int) -> str:
    x = torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(0))
    runs = {"plain": make_layer_run(spec, None, x, gradient), "rotary": make_layer_run(spec, Rotary(), x, gradient)}
    times = {name: values.tolist() for name, values in time_interleaved(runs, rounds=rounds).items()}
    ratio, plain = estimate_paired_ratio(times["rotary"], times["plain"]), estimate_geometric_mean(times["plain"])
    pass_name = "with gradients" if gradient else "forward"
    return (
        f"{spec:28} N = {length}, {pass_name:14} {plain.value * 1e3:8.1f} ms without, "
        f"rotary takes {ratio.value:.3f} of that ({ratio.low:.3f}-{ratio.high:.3f})"
    )


def make_layer_run(spec: str, positions: Rotary | None, x: torch.Tensor, gradient: bool) -> TimedRun:
    layer = ea.MultiHeadAttention(WIDTH, HEADS, variant=spec, positions=positions)
    x = x.clone().requires_grad_()
    return make_run(lambda: layer(x, mask=ea.Mask(causal=True)), [x, *layer.parameters()], gradient)


if __name__ == "__main__":
    main()
