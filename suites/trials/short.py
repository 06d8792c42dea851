"""Short calls: each mechanism beside one call of torch's attention, the others also beside their own bare products.

    python suites/trials/short.py [--lengths 64,128] [--batch 1] [SPEC...]

prints the time of a call in microseconds, what is above the bare call, and the ratio with a 95% interval: forward and
with gradients, causal and not, one thread, float32, 4 heads of 64. Calls are made in turns, and a ratio is one round's.
Specs of a pattern are timed by both of their forms as well: what `efficient_attn/kernels/sparse/choice.py` goes by.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.shapes import Shape
from efficient_attn.results.stats import typical

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
Run = Callable[[], object]


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
    kv_heads = {"gqa": 2, "mqa": 1, "mla": 1}.get(spec.partition(":")[0], HEADS)
    dims = ea.Dims(heads=HEADS, head_dim=WIDTH, kv_heads=kv_heads, max_len=n)
    attn, shape = ea.create(spec, dims=dims), Shape(batch, HEADS, kv_heads, n, n, WIDTH, WIDTH)
    if causal not in attn.traits.directions:
        return
    drawn = attn.sample(shape, generator=torch.Generator().manual_seed(0))
    q, k, v = (torch.randn(batch, HEADS, n, WIDTH, requires_grad=True) for _ in range(3))
    leaves = [x.requires_grad_() for x in (drawn.q, drawn.k, drawn.v) if x is not None]
    mask = ea.Mask(causal=causal)
    runs = {"torch": timed(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), [q, k, v], gradient)}
    for backend in ("adaptive", "parts", "masked") if isinstance(attn, ea.SparseAttention) else (attn.backend,):
        form = ea.create(spec, dims=dims, backend=backend)
        runs[backend] = timed(lambda form=form: form(drawn.q, drawn.k, drawn.v, mask, **drawn.inputs), leaves, gradient)
    if isinstance(attn, ea.LinearAttention):
        x, y = (torch.rand(batch, HEADS, n, attn.feature_map.width(WIDTH), requires_grad=True) for _ in range(2))
        runs["its products"] = timed(lambda: multiply(x, y, v, causal), [x, y, v], gradient)
    if spec.startswith("linformer"):
        rows = torch.randn(min(attn.origin.options["rank"], n), n, requires_grad=True)
        runs["its products"] = timed(
            lambda: F.scaled_dot_product_attention(q, rows @ k, rows @ v), [q, k, v, rows], gradient
        )
    times = take_turns(runs)
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


def timed(call: Callable[[], Tensor], leaves: list[Tensor], gradient: bool) -> Run:
    """The call without gradients, or with all of those by its tensors."""
    if gradient:
        weights = torch.randn(call().shape)
        return lambda: torch.autograd.grad(call(), leaves, weights)

    def forward() -> None:
        with torch.no_grad():
            call()

    return forward


def take_turns(runs: dict[str, Run]) -> dict[str, np.ndarray]:
    """Seconds a call, by name and round."""
    repeats = {name: max(int(LEAST_S / second_of(run)), 1) for name, run in runs.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            found[name].append(second_of(run, repeats[name]))
    return {name: np.array(values) for name, values in found.items()}


def second_of(run: Run, repeats: int = 2) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - began) / repeats


def tell(name: str, own: np.ndarray, bare: np.ndarray, what: str) -> str:
    ratio = typical((own / bare).tolist())
    above = np.median(own - bare) * 1e6
    return (
        f"{name:45s} {np.median(own) * 1e6:8.0f} us, {above:+7.0f} above {what:12s} "
        f"{ratio.value:5.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
    )


if __name__ == "__main__":
    main()
