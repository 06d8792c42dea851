"""Compare tensors; a failed comparison names the tensor, the position and the size of the difference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..errors import UnsupportedError, UsageError

# tolerances of outputs by dtype; that of float64 is exceeded by results that were computed in float32
TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 8e-3}
# gradients have larger errors, because they are sums over all rows of products of rounded numbers
GRADIENT_TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}
# a row is as large as its largest value, or as this share of the largest number that was summed: sums that cancel have
# its rounding errors
FLOORS = {torch.float64: 0.05, torch.float32: 0.1, torch.bfloat16: 0.05, torch.float16: 0.05}
GRADIENT_FLOORS = FLOORS | {torch.bfloat16: 1.0, torch.float16: 1.0}  # of products that were rounded before their sum
ROUNDED_ZERO = 1e-12  # largest expected values up to this are rounding errors of zero, unless the summed are known
SUMMED = ("gradient by q", "gradient by k", "gradient by v")  # whose rounding errors others may have


def assert_close(
    got: Tensor,
    want: Tensor,
    label: str,
    *,
    tolerance: float | None = None,
    summed: float | None = None,
    floor: float | None = None,
    slack: Tensor | None = None,
) -> None:
    """Assert that the largest difference in a row (the last dimension) is at most the tolerance times the row's size.

    The size of a row is its largest expected value, or a share (``floor``, by default the dtype's) of ``summed``, the
    largest number that rows are sums of, by default the largest expected value, or 1 if that is a rounded zero. Neither
    a row nor an output that is tiny may be wrong. The default tolerance is that of gradients in the dtype of ``want``.
    slack ``[.., 1]``: a difference that is allowed in addition.
    """
    tolerance = GRADIENT_TOLERANCES[want.dtype] if tolerance is None else tolerance
    assert got.shape == want.shape, f"{label}: shape {list(got.shape)}, expected {list(want.shape)}"
    floor = FLOORS[got.dtype] if floor is None else floor
    got, want = got.detach().to(want.dtype), want.detach()
    assert_finite(got, label)
    if not got.numel():
        return
    off, size = (got - want).abs(), want.abs()
    if summed is None:
        summed = largest if (largest := size.max().item()) > ROUNDED_ZERO else 1.0
    least = floor * summed
    rows = size.amax(-1, keepdim=True) if size.ndim else size
    rows = rows.clamp(min=max(least, torch.finfo(want.dtype).tiny))
    rows = (rows if slack is None else rows + slack / tolerance).expand_as(off)
    relative = off / rows
    if not relative.max().item() <= tolerance:
        at = _find_largest(relative)
        raise AssertionError(
            f"{label}: off by {relative[at].item():.3g} of the row's size {rows[at].item():.3g} "
            f"(tolerance {tolerance:.3g}), at {list(at)} got {got[at].item():.9g}, expected {want[at].item():.9g}"
        )


def assert_all_close(
    got: Mapping[str, Tensor],
    want: Mapping[str, Tensor],
    label: str,
    *,
    dtype: torch.dtype | None = None,
    values: float = 0.0,
    terms: float | None = None,
    slack: Mapping[str, Tensor] | None = None,
) -> None:
    """Assert that all expected tensors are close, by name. dtype: whose tolerances to use, by default that of each.

    values: the largest number that outputs are sums of. terms: that of gradients by other tensors than v, which cancel,
    by default the largest gradient. slack: see `assert_close`, by name.
    """
    if terms is None:
        terms = find_largest_value(want[name] for name in SUMMED if name in want)
    for name, expected in want.items():
        tolerances, floors = (TOLERANCES, FLOORS) if name == "output" else (GRADIENT_TOLERANCES, GRADIENT_FLOORS)
        summed = max(find_largest_value([expected]), {"output": values, "gradient by v": 0.0}.get(name, terms))
        tolerance = None if dtype is None else tolerances[dtype]
        more = None if slack is None else slack[name]
        assert_close(
            got[name],
            expected,
            f"{name}, {label}",
            tolerance=tolerance,
            summed=summed,
            floor=floors[dtype or got[name].dtype],
            slack=more,
        )


def find_largest_value(tensors: Iterable[Tensor]) -> float:
    """The largest absolute value of some tensors, 0 without any: of what gradients that cancel are sums of."""
    return max((x.abs().max().item() for x in tensors if x.numel()), default=0.0)


def find_fitting_scale(tensors: Iterable[Tensor], dtype: torch.dtype) -> float:
    """1, or the power of two with which tensors fit a dtype: outputs of signed weights, whose sums may be nearly zero,
    and their gradients can be larger than float16's largest number."""
    largest, limit = find_largest_value(tensors), torch.finfo(dtype).max / 4
    return 1.0 if largest <= limit else 2.0 ** -math.ceil(math.log2(largest / limit))


def assert_same(got: Tensor, want: Tensor, label: str) -> None:
    """Assert that two tensors are equal bit for bit."""
    assert got.shape == want.shape, f"{label}: shape {list(got.shape)}, expected {list(want.shape)}"
    if not torch.equal(got, want):
        off = (got.detach().double() - want.detach().double()).abs().nan_to_num(torch.inf, torch.inf)
        at = _find_largest(off)
        raise AssertionError(
            f"{label}: not the same bits, at {list(at)} got {got[at].item():.17g}, "
            f"expected {want[at].item():.17g} ({int((off > 0).sum())} of {off.numel()} entries differ)"
        )


def assert_zero(got: Tensor, label: str) -> None:
    """Assert that all entries are exactly 0."""
    assert_same(got, torch.zeros_like(got), f"{label} must be exactly 0")


def assert_finite(got: Tensor, label: str) -> None:
    """Assert that no entry is NaN or infinite."""
    bad = ~torch.isfinite(got)
    if bad.any():
        at = _find_largest(bad.int())
        raise AssertionError(f"{label}: not finite, at {list(at)} got {got[at].item()}")


def describe(mask: Mask) -> str:
    """Describe a mask, for messages."""
    parts = ["causal" if mask.causal else "not causal"]
    for name in ("key_lengths", "query_lengths", "cu_seqlens"):
        value = getattr(mask, name)
        parts += [f"{name}={value.tolist()}"] if value is not None else []
    parts += ["key_mask"] if mask.key_mask is not None else []
    parts += [f"query_start={mask.query_start}"] if mask.query_start is not None else []
    return ", ".join(parts)


@contextmanager
def expect_error(kind: type[UsageError | UnsupportedError], label: str) -> Iterator[None]:
    """Raise `AssertionError` unless the block raises an exception of this kind that has a message."""
    try:
        yield
    except Exception as error:
        name = type(error).__name__
        if not isinstance(error, kind):
            raise AssertionError(f"{label}: raised {name}, expected {kind.__name__}") from error
        if not str(error).strip():
            raise AssertionError(f"{label}: {name} without a message") from error
    else:
        raise AssertionError(f"{label}: accepted, expected {kind.__name__}")


def _find_largest(size: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(size.argmax(), size.shape))
