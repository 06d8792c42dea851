"""Matrix products through oneDNN where torch's own are slower: float32 on CPUs, with many rows.

torch multiplies float32 matrices by its BLAS, which may not know the vectors of this processor: on the machine of the
published runs (AMD) its products reach 100 GFLOP/s, oneDNN's 230. Products with few rows stay with the BLAS, whose
calls cost less, and so does all that torch was built without oneDNN for.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from .derivatives import KernelFunction

ROWS = 256  # below this a call's own cost decides


def rows_times(x: Tensor, w: Tensor) -> Tensor:
    """``x [B, R, K] @ w [B, K, C]``; no gradient."""
    if not _serves(x, x.shape[1]):
        return x @ w
    return torch.stack([times(a, b) for a, b in zip(x, w, strict=True)])


def add_products(total: Tensor, x: Tensor, y: Tensor) -> None:
    """Add ``x^T y`` of ``x [B, R, K], y [B, R, C]`` to ``total [B, K, C]``; no gradient."""
    if not _serves(x, x.shape[1]):
        total.baddbmm_(x.mT, y)
        return
    for a, b, to in zip(x, y, total, strict=True):
        if a.shape[1] < b.shape[1]:  # the narrower one is turned: that is a copy
            to += times(a.mT, b)
        else:
            to += times(b.mT, a).mT


def times(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of two matrices through oneDNN; no gradient."""
    if not (b.is_contiguous() or b.mT.is_contiguous()):  # with rows apart oneDNN would take a thousand times as long
        b = b.contiguous()
    return torch.ops.mkldnn._linear_pointwise(a, b.mT, None, "none", [], "")


def along(x: Tensor, directions: Tensor) -> Tensor:
    """Products ``[.., m]`` of ``x [.., D]`` with ``directions [m, D]``, with a gradient."""
    if directions.requires_grad or not _serves(x, x.numel() // max(x.shape[-1], 1)):
        return x @ directions.mT
    return cast(Tensor, _Along.apply(x, directions))


class _Along(KernelFunction):
    @staticmethod
    def forward(x: Tensor, directions: Tensor) -> Tensor:
        return _flat_times(x, directions.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (directions,) = ctx.saved_tensors
        (grad,) = grads
        return grad @ directions if torch.is_grad_enabled() else _flat_times(grad, directions), None


def _flat_times(x: Tensor, w: Tensor) -> Tensor:
    return times(x.reshape(-1, x.shape[-1]), w).view(*x.shape[:-1], -1)


def _serves(x: Tensor, rows: int) -> bool:
    return rows >= ROWS and on_onednn(x)


def on_onednn(x: Tensor) -> bool:
    """Whether a tensor's products may go through oneDNN; what is compiled has the compiler's own."""
    fits = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling()
    return fits and has_onednn()


@cache
def has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
