"""Errors of results against expected ones, row by row, and the tolerances."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

# of a row's relative error; read only, so that no plug-in changes it unseen
TOLERANCE = MappingProxyType({"float64": 1e-9, "float32": 1e-4, "bfloat16": 4e-2, "float16": 5e-3})
# of terms, which softmax's gradients have at 8,192 keys: the rest is below it only if they cancel
CANCELLED_SHARE = 0.005


class InvalidResult(Exception):
    """The output differs from the reference output."""


def compare(
    out: Tensor,
    expected: Tensor,
    dtype: str,
    label: str = "the output",
    *,
    terms: float = 0.0,
    products: float = 0.0,
    lossy: float = 0.0,
) -> float:
    """The error of a result, of all rows together: the ratio of Frobenius norms.

    dtype: whose tolerance holds. terms: the norm of the terms whose sum a row is, if they may cancel as in gradients.
    The error of a row is relative to its own norm; of terms that may cancel, to the root mean square norm of its head's
    rows if that is larger, apart from a rounding error of the terms. products: the norm of a value times its weight, if
    weights have both signs: one rounding error of it, in the dtype of sums, is left out of every row, as a single key's
    weight may be nearly zero. lossy: the declared error of rows of a lossy decode state, if it is larger than the
    dtype's tolerance. Raises `InvalidResult` for another shape or dtype, values that are not finite, or a row whose
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
    limit, summed_in = max(TOLERANCE[dtype], lossy), torch.float64 if out.dtype == torch.float64 else torch.float32
    noise = max(torch.finfo(out.dtype).eps * terms, torch.finfo(summed_in).eps * products)
    errors = _divide(difference, size, noise, per_head=terms > 0)
    error, norm = (float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in (difference, size))
    total = error / norm if norm else error  # absolute for a result of zeros
    worst = float(errors.max()) if errors.numel() else 0.0
    # rounding errors of the terms must not add up, unless nearly nothing is left of them, as of a single key's
    if terms and size.numel() and not float(size.square().mean().sqrt()) < CANCELLED_SHARE * terms:
        worst = max(worst, total)
    if not worst <= limit:  # also true for NaN
        rows = f" in {int((errors > limit).sum())} of {errors.numel()} rows" if errors.ndim == 3 else ""
        error_text = f"relative error {worst:.2e}, allowed {limit:.0e}"
        raise InvalidResult(f"{label} differs from the reference{rows}: {error_text}")
    return total


def _measure_rows(out: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of the errors and of the expected values of rows."""
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    if not out.ndim:
        out, expected = out[None], expected[None]
    difference = torch.linalg.vector_norm(out.to(wide) - expected.to(wide), dim=-1)
    return difference, torch.linalg.vector_norm(expected, dim=-1, dtype=wide)


def _divide(difference: Tensor, size: Tensor, noise: float, *, per_head: bool) -> Tensor:
    if per_head and size.ndim and size.numel():
        size = torch.maximum(size, size.square().mean(-1, keepdim=True).sqrt())
    difference = (difference - noise).clamp_(min=0)
    return torch.where(difference == 0, 0.0, difference / size)
