"""How much a kernel computes at a time: on a processor what fits its cache, on a GPU so much that few kernels run."""

from __future__ import annotations

import torch
from torch import Tensor

ON_GPU = 1 << 26  # numbers: 256 MiB of float32, of one of the tensors that exist together
ROWS_FACTOR = 64  # of rows on a GPU, for kernels that count rows


def limit_elements(x: Tensor, in_cache: int) -> int:
    """How many numbers may exist together where x is."""
    return in_cache if x.device.type == "cpu" else ON_GPU


def limit_rows(device: torch.device, in_cache: int) -> int:
    """How many rows may be computed together on a device."""
    return in_cache if device.type == "cpu" else ROWS_FACTOR * in_cache
