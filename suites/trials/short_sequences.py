"""How large is the overhead of calls with 64 to 512 positions?

    python suites/trials/short_sequences.py [--lengths 64,128] [--batch 1] [SPEC...]

compares each mechanism with one call of torch's attention and with its own matrix products, and prints the time of a
call in microseconds, the excess, and the ratio with a 95% interval: forward and with gradients, causal and not, one
thread, float32, 4 heads of 64. Calls are interleaved, and ratios are paired by round. All implementations of a pattern
are timed as well: the rule in kernels/sparse/implementation_choice.py follows from these times.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from interleaving import format_estimate, make_attention, make_call, make_run, time_interleaved
from torch import Tensor

import efficient_attn as ea
from efficient_attn.results.stats import estimate_geometric_mean
from efficient_attn.variants.shared_kv.mla import MultiHeadLatent

HEADS, WIDTH, ROUNDS, MIN_SAMPLE_S = 4, 64, 25, 0.002
SPECS = [
    *("full", "gqa:kv_heads=2", "mqa", "mla", "sliding_window:window=128", "strided", "fixed", "longformer", "bigbird"),
    *(
        "attention_sinks",
        "linear",
        "cosformer",
        "performer:n_features=256",
        "taylor",
        "retention",
        "linformer:rank=256",
    ),
    *("nystromformer", "reformer"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--lengths", default="64,128,256,512")
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for n in map(int, args.lengths.split(",")):
        for causal in (False, True):
            for gradient in (False, True):
                print(
                    f"\nN = {n}, {'causal' if causal else 'not causal'}, {'with gradients' if gradient else 'forward'}"
                )
                for spec in args.specs:
                    for line in compare(spec, n, args.batch, causal, gradient):
                        print(line, flush=True)


def compare(spec: str, n: int, batch: int, causal: bool, gradient: bool) -> Iterator[str]:
    """The lines of one spec; none if it does not support the direction."""
    attn, sample = make_attention(spec, (batch, HEADS, n, WIDTH))
    if causal not in attn.traits.directions:
        return
    q, k, v = (torch.randn(batch, HEADS, n, WIDTH, requires_grad=True) for _ in range(3))
    runs = {"torch": make_run(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), [q, k, v], gradient)}
    backends = ("adaptive", "parts", "cpp", "masked") if isinstance(attn, ea.SparseAttention) else (attn.backend,)
    for backend in backends:
        implementation = ea.create(spec, dims=attn.dims, backend=backend)
        runs[backend] = make_call(implementation, sample, causal, gradient)
    if isinstance(attn, ea.LinearAttention):
        x, y = (torch.rand(batch, HEADS, n, attn.feature_map.width(WIDTH), requires_grad=True) for _ in range(2))
        runs["its products"] = make_run(lambda: multiply(x, y, v, causal), [x, y, v], gradient)
    if spec.startswith("linformer"):
        rows = torch.randn(min(attn.origin.options["rank"], n), n, requires_grad=True)
        runs["its products"] = make_run(
            lambda: F.scaled_dot_product_attention(q, rows @ k, rows @ v), [q, k, v, rows], gradient
        )
    if isinstance(attn, MultiHeadLatent):
        runs["its products"] = make_run(lambda: project(q, sample.k, attn, causal), [q, sample.k], gradient)
    times = time_interleaved(runs, rounds=ROUNDS, least_s=MIN_SAMPLE_S)
    for name, times_of_spec in times.items():
        if name in ("torch", "its products"):
            continue
        for reference in ("torch", "its products"):
            if reference in times:
                yield format_ratio(f"{spec} ({name})", times_of_spec, times[reference], reference)


def multiply(x: Tensor, y: Tensor, v: Tensor, causal: bool) -> Tensor:
    """The matrix products of linear attention over given features, divided by the sums of weights."""
    if causal:
        weights = (x @ y.mT).tril()
        return (weights @ v) / weights.sum(-1, keepdim=True)
    return (x @ (y.mT @ v)) / (x @ y.sum(2)[..., None])


def project(q: Tensor, latents: Tensor, attn: MultiHeadLatent, causal: bool) -> Tensor:
    """Keys and values of all heads computed from latents, and one call of torch's attention."""
    projections = (F.linear(latents[:, 0], w.flatten(0, 1)).unflatten(-1, w.shape[:2]) for w in (attn.w_uk, attn.w_uv))
    keys, values = (x.transpose(1, 2) for x in projections)
    return F.scaled_dot_product_attention(q, keys, values, is_causal=causal)


def format_ratio(name: str, times: np.ndarray, reference: np.ndarray, reference_name: str) -> str:
    ratio = estimate_geometric_mean((times / reference).tolist())
    excess = np.median(times - reference) * 1e6
    return (
        f"{name:45s} {np.median(times) * 1e6:8.0f} us, {excess:+7.0f} above {reference_name:12s} "
        f"{format_estimate(ratio)}"
    )


if __name__ == "__main__":
    main()
