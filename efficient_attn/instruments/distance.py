"""How far one result is from another."""

from __future__ import annotations

from torch import Tensor


def relative_error(out: Tensor, reference: Tensor) -> float:
    """|out - reference| / |reference| in Frobenius norms, in float64; |out| itself where the reference is zero."""
    difference, size = (out.double() - reference.double()).norm(), reference.double().norm()
    return (difference / size if size > 0 else difference).item()
