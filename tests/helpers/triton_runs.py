"""Where Triton's kernels run in tests: on a GPU, or interpreted on the processor with TRITON_INTERPRET=1."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch

HAS_TRITON = find_spec("triton") is not None
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

runs_kernels = pytest.mark.skipif(
    not INTERPRETED and not (HAS_TRITON and torch.cuda.is_available()),
    reason="needs triton, and a GPU or TRITON_INTERPRET=1 (suites/trials/README.md)",
)
compiles_kernels = pytest.mark.skipif(not HAS_TRITON, reason="needs triton (suites/trials/README.md)")
DTYPES = torch.float32, torch.bfloat16, torch.float16
# of rows, relative; the interpreter truncates to bfloat16
ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 2**-7 + 1e-5, torch.float16: 2**-10}


def draw(
    seed: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> list[torch.Tensor]:
    """Unit Gaussians, or those of a scale."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=generator) * scale).to(dtype).to(DEVICE) for shape in shapes]
