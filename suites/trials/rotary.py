"""What rotary positions add to a layer of attention, and what a step of them costs.

    python suites/trials/rotary.py [--length 4096] [--rounds 25] [SPEC...]

prints the time of a multi-head layer of 4 heads, d_model 256, with `Rotary` over that without, forward and with
gradients, as a ratio with its 95% interval: float32, one thread, causal, calls in turns, and a ratio is one round's.
"""

from __future__ import annotations

import argparse

import torch
from turns import Run, take_turns, timed

import efficient_attn as ea
from efficient_attn.layers.positions import Rotary
from efficient_attn.results.stats import estimate_typical, paired_ratio

HEADS, WIDTH = 4, 256
SPECS = ["full", "sliding_window:window=256", "linear"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for spec in given.specs:
        for gradient in (False, True):
            print(tell(spec, given.length, gradient, given.rounds), flush=True)


def tell(spec: str, length: int, gradient: bool, rounds: int) -> str:
    x = torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(0))
    runs = {"plain": run_of(spec, None, x, gradient), "rotary": run_of(spec, Rotary(), x, gradient)}
    found = {name: values.tolist() for name, values in take_turns(runs, rounds=rounds).items()}
    ratio, plain = paired_ratio(found["rotary"], found["plain"]), estimate_typical(found["plain"])
    way = "with gradients" if gradient else "forward"
    return (
        f"{spec:28} N = {length}, {way:14} {plain.value * 1e3:8.1f} ms without, "
        f"rotary takes {ratio.value:.3f} of that ({ratio.low:.3f}-{ratio.high:.3f})"
    )


def run_of(spec: str, positions: Rotary | None, x: torch.Tensor, gradient: bool) -> Run:
    layer = ea.MultiHeadAttention(WIDTH, HEADS, variant=spec, positions=positions)
    x = x.clone().requires_grad_()
    return timed(lambda: layer(x, mask=ea.Mask(causal=True)), [x, *layer.parameters()], gradient)


if __name__ == "__main__":
    main()
