"""Which devices there are."""

from __future__ import annotations


def describe_absence(device: str) -> str | None:
    """Why a device cannot be used here; None when it can."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return "no CUDA device on this machine"
    if device == "mps" and not torch.backends.mps.is_available():
        return "no MPS device on this machine"
    return None
