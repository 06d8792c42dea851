"""Short calls: each mechanism beside one call of torch's attention, the others also beside their own bare products.

    python suites/trials/short.py [--lengths 64,128] [--batch 1] [SPEC...]

prints the time of a call in microseconds, what is above the bare call, and the ratio with a 95% interval: forward and
with gradients, causal and not, one thread, float32, 4 heads of 64. Calls are made in turns, and a ratio is one round's.
Both implementations of a pattern are timed as well: the rule in kernels/sparse/implementation_choice.py follows them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from turns import call_of, make, take_turns, timed

import efficient_attn as ea
from efficient_attn.results.stats import estimate_typical
from efficient_attn.variants.shared_kv.mla import MultiHeadLatent

HEADS, WIDTH, ROUNDS, LEAST_S = 4, 64, 25, 0.002
SPECS = [
    "full",
    "gqa:kv_heads=2",
    "mqa",
    "mla",
    "sliding_window:window=128",
    "strided",
    "fixed",
    "longformer",
    "bigbird",
]
SPECS += ["attention_sinks", "linear", "cosformer", "performer:n_features=256", "taylor", "retention"]
SPECS += ["linformer:rank=256", "nystromformer", "reformer"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--lengths", default="64,128,256,512")
    parser.add_argument("--batch", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for n in map(int, given.lengths.split(",")):
        for causal in (False, True):
            for gradient in (False, True):
                print(
                    f"\nN = {n}, {'causal' if causal else 'not causal'}, {'with gradients' if gradient else 'forward'}"
                )
                for spec in given.specs:
                    for line in compare(spec, n, given.batch, causal, gradient):
                        print(line, flush=True)


def compare(spec: str, n: int, batch: int, causal: bool, gradient: bool) -> Iterator[str]:
    """The lines of one spec; none where it has no such direction."""
    attn, drawn = make(spec, (batch, HEADS, n, WIDTH))
    if causal not in attn.traits.directions:
        return
    q, k, v = (torch.randn(batch, HEADS, n, WIDTH, requires_grad=True) for _ in range(3))
    runs = {"torch": timed(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), [q, k, v], gradient)}
    for backend in ("adaptive", "parts", "masked") if isinstance(attn, ea.SparseAttention) else (attn.backend,):
        form = ea.create(spec, dims=attn.dims, backend=backend)
        runs[backend] = call_of(form, drawn, causal, gradient)
    if isinstance(attn, ea.LinearAttention):
        x, y = (torch.rand(batch, HEADS, n, attn.feature_map.width(WIDTH), requires_grad=True) for _ in range(2))
        runs["its products"] = timed(lambda: multiply(x, y, v, causal), [x, y, v], gradient)
    if spec.startswith("linformer"):
        rows = torch.randn(min(attn.origin.options["rank"], n), n, requires_grad=True)
        runs["its products"] = timed(
            lambda: F.scaled_dot_product_attention(q, rows @ k, rows @ v), [q, k, v, rows], gradient
        )
    if isinstance(attn, MultiHeadLatent):
        runs["its products"] = timed(lambda: project(q, drawn.k, attn, causal), [q, drawn.k], gradient)
    times = take_turns(runs, rounds=ROUNDS, least_s=LEAST_S)
    for name, own in times.items():
        if name in ("torch", "its products"):
            continue
        for bare in ("torch", "its products"):
            if bare in times:
                yield tell(f"{spec} ({name})", own, times[bare], bare)


def multiply(x: Tensor, y: Tensor, v: Tensor, causal: bool) -> Tensor:
    """The products of linear attention over features that are there, divided by their sums; nothing else."""
    if causal:
        weights = (x @ y.mT).tril()
        return (weights @ v) / weights.sum(-1, keepdim=True)
    return (x @ (y.mT @ v)) / (x @ y.sum(2)[..., None])


def project(q: Tensor, latents: Tensor, attn: MultiHeadLatent, causal: bool) -> Tensor:
    """Keys and values of all heads made from latents, and one call of torch's attention; nothing else."""
    made = (F.linear(latents[:, 0], w.flatten(0, 1)).unflatten(-1, w.shape[:2]) for w in (attn.w_uk, attn.w_uv))
    keys, values = (x.transpose(1, 2) for x in made)
    return F.scaled_dot_product_attention(q, keys, values, is_causal=causal)


def tell(name: str, own: np.ndarray, bare: np.ndarray, what: str) -> str:
    ratio = estimate_typical((own / bare).tolist())
    above = np.median(own - bare) * 1e6
    return (
        f"{name:45s} {np.median(own) * 1e6:8.0f} us, {above:+7.0f} above {what:12s} "
        f"{ratio.value:5.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
    )


if __name__ == "__main__":
    main()
