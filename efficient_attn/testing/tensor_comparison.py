"""Compare two tensors, and describe a difference: what, where, how far off."""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..errors import UnsupportedError, UsageError

# tolerance of results by dtype; float64 must really be float64
EPSILONS = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 8e-3}


# gradients have larger errors: sums over all rows of products of rounded numbers
SLOPES = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}


def assert_close(got: Tensor, want: Tensor, label: str, *, tolerance: float | None = None) -> None:
    """The largest difference, measured against the largest expected value or 1, is within the tolerance.

    Without one it is that of a gradient in the dtype that is expected.
    """
    tolerance = SLOPES[want.dtype] if tolerance is None else tolerance
    assert got.shape == want.shape, f"{label}: shape {list(got.shape)}, expected {list(want.shape)}"
    got, want = got.detach().to(want.dtype), want.detach()
    assert_finite(got, label)
    if not got.numel():
        return
    off = (got - want).abs()
    worst = off.max().item() / max(1.0, want.abs().max().item())
    if not worst <= tolerance:
        at = _place(off)
        raise AssertionError(
            f"{label}: off by {worst:.3g} (tolerance {tolerance:.3g}), "
            f"at {list(at)} got {got[at].item():.9g}, expected {want[at].item():.9g}"
        )


def assert_same(got: Tensor, want: Tensor, label: str) -> None:
    """Bit for bit the same."""
    assert got.shape == want.shape, f"{label}: shape {list(got.shape)}, expected {list(want.shape)}"
    if not torch.equal(got, want):
        off = (got.detach().double() - want.detach().double()).abs().nan_to_num(torch.inf, torch.inf)
        at = _place(off)
        raise AssertionError(
            f"{label}: not the same bits, at {list(at)} got {got[at].item():.17g}, "
            f"expected {want[at].item():.17g} ({int((off > 0).sum())} of {off.numel()} entries differ)"
        )


def assert_zero(got: Tensor, label: str) -> None:
    """Exactly zero everywhere."""
    assert_same(got, torch.zeros_like(got), f"{label} must be exactly 0")


def assert_finite(got: Tensor, label: str) -> None:
    """No NaN and no infinity."""
    bad = ~torch.isfinite(got)
    if bad.any():
        at = _place(bad.int())
        raise AssertionError(f"{label}: not finite, at {list(at)} got {got[at].item()}")


def describe(mask: Mask) -> str:
    """A mask in a few words, for messages."""
    words = ["causal" if mask.causal else "not causal"]
    for name in ("key_lengths", "query_lengths", "cu_seqlens"):
        value = getattr(mask, name)
        words += [f"{name}={value.tolist()}"] if value is not None else []
    words += ["key_mask"] if mask.key_mask is not None else []
    words += [f"query_start={mask.query_start}"] if mask.query_start is not None else []
    return ", ".join(words)


class Refusal:
    """Context manager: the call inside must raise this error, with a message; anything else is an `AssertionError`."""

    def __init__(self, error: type[UsageError | UnsupportedError], label: str) -> None:
        self.error, self.what = error, label

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        assert kind is not None, f"{self.what}: accepted, expected {self.error.__name__}"
        if not issubclass(kind, self.error):
            raise AssertionError(f"{self.what}: raised {kind.__name__}, expected {self.error.__name__}") from error
        assert str(error).strip(), f"{self.what}: {kind.__name__} without a message"
        return True


def _place(size: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(size.argmax(), size.shape))
