"""Other libraries' linear, low-rank and hashed attention, and small inputs for them, for two test files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import tiny_suites
import torch
from torch import Tensor

import efficient_attn as ea

PACKAGES = {
    "peer_linear_transformer": (
        "linear_attention_transformer.linear_attention_transformer",
        "linear-attention-transformer",
    ),
    "peer_performer": ("performer_pytorch", "performer-pytorch"),
    "peer_linformer": ("linformer", "linformer"),
    "peer_nystromformer": ("transformers.models.nystromformer.modeling_nystromformer", "transformers"),
    "peer_reformer": ("reformer_pytorch", "reformer-pytorch"),
}
DIMS = ea.Dims(heads=3, head_dim=16, max_len=1024)


@contextmanager
def loaded() -> Iterator[None]:
    """Register the peers in the context."""
    with tiny_suites.isolated_registry():
        for module in ("linear", "low_rank", "hashed"):
            ea.load_plugin(f"efficient_attn.peers.{module}")
        yield


def skip_unless_installed() -> None:
    for package in ("linear_attention_transformer", "performer_pytorch", "linformer", "reformer_pytorch"):
        pytest.importorskip(package)
    pytest.importorskip("transformers")


def create(spec: str, *, seed: int = 0, backend: str | None = None) -> ea.Attention:
    return ea.create(spec, dims=DIMS, seed=seed, backend=backend)


def draw(n: int, dtype: torch.dtype = torch.float32, *, spec: str = "") -> list[Tensor]:
    """q, k and v ``[2, 3, N, 16]``; the Reformer's k is its q."""
    generator = torch.Generator().manual_seed(n)
    q, k, v = (torch.randn(2, 3, n, 16, generator=generator, dtype=dtype) for _ in range(3))
    return [q, q if "reformer" in spec else k, v]
