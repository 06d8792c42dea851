"""Calls of this checkout compared with those of another one, in one process and interleaved.

    python suites/trials/before_after.py CHECKOUT [--rounds 25] [--case TEXT] [--seed 0]

The other checkout's package is copied under another name, so that both are imported. The cases are those of the suite
`promises`, and some of other families: one thread, float32, 4 heads of 64 (8 when decoding). Prints the time before and
after, and their ratio with a 95% interval over rounds; above 1 is slower. Outputs must agree. With this checkout itself
as CHECKOUT, the ratios show the error of the comparison.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from interleaving import KV_HEADS, TimedRun, make_run, time_interleaved
from torch import Tensor

import efficient_attn as ea
from efficient_attn.results.stats import estimate_geometric_mean

PACKAGE, OTHER = "efficient_attn", "efficient_attn_before"
WINDOW = "sliding_window:window=128"
WIDTH, N_STEPS = 64, 4096
PAUSED_ROUNDS = 1  # at the start of a case: not counted


class TimedCall(NamedTuple):
    """A call to time. length: keys; queries as well, or one when decoding."""

    spec: str
    mode: str
    length: int
    causal: bool = False
    heads: int = 4

    def __str__(self) -> str:
        return f"{self.spec}, {self.mode}, N = {self.length}{', causal' if self.causal else ''}"


CALLS = [
    *(TimedCall(spec, mode, 8192, causal)
      for spec in ("full", WINDOW, "linear")
      for mode in ("forward", "forward_backward")
      for causal in (False, True)),
    *(TimedCall(spec, "forward", n, causal)
      for spec in (WINDOW, "linear") for n in (1024, 2048, 4096, 16384, 32768) for causal in (False, True)),
    *(TimedCall(spec, "decode", 32768, True, 8) for spec in ("full", "gqa:kv_heads=2", "mqa")),
    *(TimedCall("full", "forward", n, causal) for n in (128, 512, 2048) for causal in (False, True)),
    *(TimedCall(spec, "forward_backward", 2048)
      for spec in ("performer", "cosformer", "linformer", "nystromformer", "reformer", "bigbird", "longformer")),
    *(TimedCall(spec, "forward_backward", 2048, True) for spec in ("performer", "retention", "strided", "reformer")),
    *(TimedCall(spec, "forward_backward", 256, True) for spec in ("full", WINDOW, "linear", "performer")),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--case", default="", help="only cases whose text contains this")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        before = import_copy(args.checkout, Path(folder))
        for call in CALLS:
            if args.case in str(call):
                print(compare(call, before, args.rounds), flush=True)


def import_copy(checkout: Path, folder: Path) -> Any:
    """The package of another checkout, under its other name; so are its custom ops and the modules that it names."""
    shutil.copytree(checkout / PACKAGE, folder / OTHER, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder / OTHER).rglob("*.py"):
        path.write_text(path.read_text(encoding="utf-8").replace(PACKAGE, OTHER), encoding="utf-8")
    sys.path.insert(0, str(folder))
    return importlib.import_module(OTHER)


def compare(call: TimedCall, before: Any, rounds: int) -> str:
    """Time both versions of a call on the same inputs."""
    outs, runs = [], {}
    for name, package in (("before", before), ("after", ea)):
        kv_heads = KV_HEADS.get(call.spec.partition(":")[0], call.heads)
        dims = package.Dims(heads=call.heads, head_dim=WIDTH, kv_heads=kv_heads, max_len=call.length + N_STEPS)
        attn = package.create(call.spec, dims=dims)
        shapes = importlib.import_module(f"{package.__name__}.contract.shapes")
        shape = shapes.Shape(1, call.heads, kv_heads, call.length, call.length, WIDTH, WIDTH)
        sample = attn.sample(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        make = make_step if call.mode == "decode" else make_call
        out, runs[name] = make(attn, sample, package.Mask(causal=call.causal), call.mode == "forward_backward")
        outs.append(out)
    difference = (outs[0] - outs[1]).norm() / outs[0].norm()
    assert difference < 1e-5, f"{call}: outputs differ by {difference:.1e}"
    times = time_interleaved(runs, rounds=rounds + PAUSED_ROUNDS)
    seconds = {name: values[PAUSED_ROUNDS:] for name, values in times.items()}
    ratio = estimate_geometric_mean(list(seconds["after"] / seconds["before"]))
    medians = " -> ".join(f"{np.median(seconds[name]) * 1e3:9.3f}" for name in runs)
    return f"{call!s:64} {medians} ms   {ratio.value:.3f} ({ratio.low:.3f}-{ratio.high:.3f})"


def make_call(attn: Any, sample: Any, mask: Any, gradient: bool) -> tuple[Tensor, TimedRun]:
    """The output, and the call to time."""
    leaves = [x for x in (sample.q, sample.k, sample.v) if x is not None]
    with torch.no_grad():
        out = attn(sample.q, sample.k, sample.v, mask, **sample.inputs)
    for x in leaves:
        x.requires_grad_(gradient)
    call = partial(attn, sample.q, sample.k, sample.v, mask, **sample.inputs)
    return out, make_run(call, leaves, gradient)


def make_step(attn: Any, sample: Any, mask: Any, gradient: bool) -> tuple[Tensor, TimedRun]:
    """The output of the decode step after all positions, and such a step to time, up to `N_STEPS` times."""
    del mask, gradient
    token = [x[:, :, :1] for x in (sample.q, sample.k, sample.v)]

    def step() -> Tensor:
        nonlocal state
        with torch.no_grad():
            out, state = attn.step(*token, state)
        return out

    with torch.no_grad():
        _, state = attn.step(sample.q, sample.k, sample.v, attn.init_state(1, len(sample.q[0, 0]) + N_STEPS))
    return step(), step


if __name__ == "__main__":
    main()
