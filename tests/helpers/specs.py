"""The specs of the contract tests: every registered name, and options that select other code."""

from __future__ import annotations

import pytest

import efficient_attn as ea
from efficient_attn.kernels.native import building

NATIVE = (
    "linear:backend=cpp",
    "cosformer:backend=cpp",
    "full:backend=cpp",
    "gqa:kv_heads=2:backend=cpp",
    "mla:backend=cpp",
)
OPTIONS = (
    "full:backend=dense",
    "full:softcap=2",
    "full:softcap=300",
    "full:sink=learned",
    "full:softcap=2:sink=learned",
    "gqa:kv_heads=2",
    "mla:latent_dim=11:rotary_dim=1:backend=absorbed",
    "mla:latent_dim=24:rotary_dim=1:backend=expanded",
    "sliding_window:window=0",
    "sliding_window:window=3",
    "sliding_window:window=3:backend=blocks",
    "sliding_window:backend=blocks",
    "sliding_window:window=1000",
    "sliding_window:window=3|sliding_window:window=9",
    "dilated_window:window=3:dilation=5",
    "global_tokens:n_global=3",
    "random_blocks:n_random=2:block_size=16",
    "random_blocks:n_random=2:block_size=1",
    "strided:stride=7",
    "fixed:stride=24:summary=3",
    "longformer:window=9:n_global=3",
    "bigbird:window=5:n_global=3:n_random=2:block_size=16",
    "bigbird:window=5:n_global=3:n_random=2:block_size=16:backend=blocks",
    "attention_sinks:window=9:n_sink=2",
    "fixed:stride=24:summary=3|random_blocks:n_random=1:block_size=16|strided:stride=11",
    "linear:backend=dense",
    "performer:kind=trigonometric",
    "performer:n_features=9:kind=hyperbolic",
    "performer:n_features=40:kind=relu:orthogonal=false",
    "random_feature:gated=true",
    "retention:normalised=true",
    "lightning:share=0.25",
    "delta_net:beta_max=2",
    "delta_product:n=1",
    "delta_product:n=3",
    "differential:l0=0.3:norm=false",
    "differential:window=5",
    "forgetting:window=9",
    "sigmoid:length=300",
    "sigmoid:window=3",
    "moba:block=8:topk=3",
    "nsa:block=8:topk=4:window=9",
    "dsa:topk=9:index_heads=2:index_dim=6",
    "linformer:rank=7:share=heads",
    "linformer:rank=16:share=none",
    "nystromformer:n_landmarks=8",
    "nystromformer:n_landmarks=8:n_iterations=24",
    "nystromformer:n_landmarks=100",  # more landmarks than most calls have positions
    "reformer:n_hashes=2:bucket_size=8",
    "reformer:n_hashes=3:bucket_size=5",
    "reformer:n_hashes=1:bucket_size=1000",
)
SAMPLE = ("full", "gqa:kv_heads=2", "longformer", "linear", "linformer", "reformer")  # one for each family
SLOW = ("additive",)  # computes all N x M x D sums at once: seconds for each test
SPECS = (*ea.names(), *OPTIONS, *(() if building.load_library("scan", build=True)[1] else NATIVE))


def _mark(spec: str, *share: object) -> object:
    marks = [pytest.mark.slow] * (spec not in SAMPLE) + [pytest.mark.sampled(*share)] * bool(share)
    return pytest.param(spec, id=spec, marks=marks)


def _share(spec: str) -> int:
    """The share of conformance tests run for a spec: large for one of each family, small for options."""
    if spec in SAMPLE:
        return 10
    return 80 if spec in (*OPTIONS, *NATIVE, *SLOW) else 40


# a group for each spec, so that every spec runs in every sample
MARKED = [_mark(spec, _share(spec), spec) for spec in SPECS]
SAMPLED = [_mark(spec, *[15] * (spec not in SAMPLE)) for spec in SPECS]
