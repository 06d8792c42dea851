"""Errors of results against expected ones, row by row, and the tolerances."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 4e-2, "float16": 5e-3}  # of a row's relative error


class InvalidResult(Exception):
    """The output differs from the reference output."""


def compare(out: Tensor, expected: Tensor, dtype: str, label: str = "the output", *, cancels: bool = False) -> float:
    """The error of a result, of all rows together: the ratio of Frobenius norms.

    dtype: whose tolerance holds. cancels: whether rows may be small differences of large terms, such as gradients. The
    error of a row is relative to its own norm, or if it ``cancels``, to the root mean square norm of its head's rows,
    if that is larger. Raises `InvalidResult` for another shape or dtype, values that are not finite, or a row whose
    error is above the tolerance.
    """
    if out.shape != expected.shape or out.dtype != expected.dtype:
        actual = f"{label} is {out.dtype} {list(out.shape)}"
        raise InvalidResult(f"{actual}, the reference's {expected.dtype} {list(expected.shape)}")
    difference, size = _measure_rows(out, expected)
    if not torch.isfinite(difference).all():  # of finite values only if their squares overflow
        for name, x in ((f"{label} of the reference implementation", expected), (label, out)):
            if not torch.isfinite(x).all():
                raise InvalidResult(f"{name} has values that are not finite")
    errors, limit = _divide(difference, size, cancels=cancels), TOLERANCE[dtype]
    worst = float(errors.max()) if errors.numel() else 0.0
    if not worst <= limit:  # also true for NaN
        rows = f" in {int((errors > limit).sum())} of {errors.numel()} rows" if errors.ndim == 3 else ""
        error_text = f"relative error {worst:.2e}, allowed {limit:.0e}"
        raise InvalidResult(f"{label} differs from the reference{rows}: {error_text}")
    total = float(torch.linalg.vector_norm(size, dtype=torch.float64))
    return float(torch.linalg.vector_norm(difference, dtype=torch.float64)) / total if total else 0.0


def compute_row_errors(out: Tensor, expected: Tensor, *, cancels: bool = False) -> Tensor:
    """The relative errors of rows: norms over the last dimension. A row that is zero as expected has none."""
    return _divide(*_measure_rows(out, expected), cancels=cancels)


def _measure_rows(out: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of the errors and of the expected values of rows."""
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    if not out.ndim:
        out, expected = out[None], expected[None]
    difference = torch.linalg.vector_norm(out.to(wide) - expected.to(wide), dim=-1)
    return difference, torch.linalg.vector_norm(expected, dim=-1, dtype=wide)


def _divide(difference: Tensor, size: Tensor, *, cancels: bool) -> Tensor:
    if cancels and size.ndim and size.numel():
        size = torch.maximum(size, size.square().mean(-1, keepdim=True).sqrt())
    return torch.where(difference == 0, 0.0, difference / size)
