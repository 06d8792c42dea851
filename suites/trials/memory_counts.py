"""Does the memory counter agree with calls of known footprints, from 1 MiB to 1 GiB?

    python suites/trials/memory_counts.py                 # a minute or two, 4 GiB of memory
    python suites/trials/memory_counts.py --largest 64    # MiB; seconds
    python suites/trials/memory_counts.py --device cuda

A line is right if the peak is within 1% or 64 KiB of the known footprint and identical in all repeats. The exit code is
1 if a line is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from efficient_attn.instruments.memory import Footprint, measure_footprint

MIB, WIDTH, FLOAT_BYTES = 2**20, 64, 4  # bytes, head dimension, bytes of a float32
SIZES = (1, 16, 128, 1024)  # MiB
REPEATS = 3


class KnownFootprint(NamedTuple):
    """The known footprint of a call in bytes, and how to count it."""

    expected: int
    measure: Callable[[], Footprint]


def make_allocation(size: int, device: str) -> KnownFootprint:
    """One allocation of ``size`` bytes."""
    return KnownFootprint(
        size, lambda: measure_footprint(lambda: torch.ones(size, dtype=torch.uint8, device=device), device=device)
    )


def make_naive(size: int, device: str) -> KnownFootprint:
    """Softmax attention in three operations: scores and weights of about ``size`` bytes each, at the same time."""
    q, k, v = _make_inputs(size, device)
    return KnownFootprint(
        2 * _find_length(size) ** 2 * FLOAT_BYTES, lambda: measure_footprint(lambda: _naive(q, k, v), device=device)
    )


def make_sdpa(size: int, device: str) -> KnownFootprint:
    """The fused kernel on short sequences: an output of ``size`` bytes, a number per row, and a buffer per thread."""
    length, queries = 128, 32  # queries that torch's CPU kernel processes at a time at this length
    buffer = (queries * length + 2 * queries + queries * WIDTH) * FLOAT_BYTES  # scores, two sums, the output
    threads = torch.get_num_threads() if device == "cpu" else 0
    q, k, v = (torch.randn(size // (length * WIDTH * FLOAT_BYTES), 1, length, WIDTH, device=device) for _ in range(3))
    expected = size + size // WIDTH + threads * buffer
    return KnownFootprint(
        expected, lambda: measure_footprint(lambda: F.scaled_dot_product_attention(q, k, v), device=device)
    )


def make_training(size: int, device: str) -> KnownFootprint:
    """A training step of softmax attention in three operations: at the peak there are the weights, their gradient, the
    gradient of the scores, the output, and one more gradient of its size."""
    length, leaves = _find_length(size), [x.requires_grad_() for x in _make_inputs(size, device)]
    upstream = torch.ones(1, 1, length, WIDTH, device=device)
    expected = (3 * length**2 + 2 * length * WIDTH) * FLOAT_BYTES

    def backward(out: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, leaves, upstream)

    return KnownFootprint(expected, lambda: measure_footprint(lambda: _naive(*leaves), backward, device=device))


KINDS = (make_allocation, make_naive, make_sdpa, make_training)


def _naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


def _find_length(size: int) -> int:
    """The sequence length at which the matrix of scores has ``size`` bytes."""
    return int((size / FLOAT_BYTES) ** 0.5)


def _make_inputs(size: int, device: str) -> list[Tensor]:
    return [torch.randn(1, 1, _find_length(size), WIDTH, device=device) for _ in range(3)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=max(SIZES), help="MiB")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(f"{'kind':10}{'size':>9}{'expected':>14}{'measured':>14}{'difference':>12}{'':>10}  identical  right")
    wrong = 0
    for kind in KINDS:
        for size in (s * MIB for s in SIZES if s <= options.largest):
            case = kind(size, options.device)
            footprints = [case.measure() for _ in range(REPEATS)]
            peak, same = footprints[0].peak or 0, len(set(footprints)) == 1
            difference = peak - case.expected
            is_right = same and abs(difference) <= max(case.expected / 100, 2**16)
            wrong += not is_right
            line = (
                f"{kind.__name__.removeprefix('make_'):10}{size // MIB:5} MiB{case.expected:14}{peak:14}{difference:12}"
            )
            answers = ["yes" if answer else "NO" for answer in (same, is_right)]
            print(f"{line}{difference / case.expected:10.4%}  {answers[0]:>9}  {answers[1]:>5}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
