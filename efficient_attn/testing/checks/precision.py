"""Half precision: results are finite, and errors are no larger than those of rounding the result."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.shapes import Shape
from ..check import check
from ..mechanism_call import Call
from ..subject import Subject
from ..tensor_comparison import TOLERANCES, assert_close, assert_finite, describe
from .algebra import no_values
from .reference import no_fast_backend

LARGE = 60.0  # the dot product of 128 such numbers with themselves far exceeds 65,504, the largest float16
# tolerances of the relative root mean square error: rounding the result once gives a quarter of a spacing
RMS_TOLERANCES = {torch.bfloat16: 0.85 * 2.0**-8, torch.float16: 0.85 * 2.0**-11}


def _halves(subject: Subject) -> list[torch.dtype]:
    return [dtype for dtype in subject.dtypes if dtype.itemsize < 4]


def _no_half(subject: Subject) -> str | None:
    return None if _halves(subject) else f"only {subject.dtype} was requested"


def _no_fast_half(subject: Subject) -> str | None:
    return _no_half(subject) or no_fast_backend(subject)


def draw_overflowing(subject: Subject, shape: Shape, dtype: torch.dtype) -> tuple[Call, bool]:
    """Draw inputs whose scores exceed float16. Return whether each query's own key has by far the largest score.

    All numbers have the same size: a query and its own key have the same signs, so that rounding cannot change which
    score is the largest.
    """
    base = subject.draw(shape, dtype=dtype)
    q, k = (base[name].sign() * LARGE for name in ("q", "k"))
    own_key_wins = q.shape == k.shape and subject.traits.exact and subject.traits.values
    return base.with_(q=q, k=q.clone() if own_key_wins and not base.shares_qk else k), own_key_wins


@check(skip_reason=_no_fast_half)
def scores_overflow(subject: Subject) -> None:
    """In half precision, scores beyond float16 give finite outputs and gradients, and correct ones if exact."""
    shape = subject.shape(70, head_dim=128, value_dim=128, batch=1)
    for dtype in _halves(subject):
        drawn, own_key_wins = draw_overflowing(subject, shape, dtype)
        for call in map(drawn.under, subject.plain_masks):
            want = subject.evaluate(call.change(Tensor.double), subject.truth(shape, dtype))
            for backend in subject.backends_for(dtype):
                results = subject.evaluate(call, subject.make(shape, backend=backend, dtype=dtype))
                for name, got in results.items():
                    if want[name].abs().max() > torch.finfo(dtype).max / 4:  # larger values do not fit the dtype
                        continue
                    label = f"{backend}, {name}, inputs of {LARGE:.0f} or -{LARGE:.0f}, {dtype}, {describe(call.mask)}"
                    assert_finite(got, label)
                    # gradients by q and k are differences of rounded numbers
                    if own_key_wins and name in ("output", "gradient by v"):
                        assert_close(got, want[name], label, tolerance=TOLERANCES[dtype])


def _check_rounding_error(subject: Subject, got: Tensor, want: Tensor, label: str, *, lossy: float = 0.0) -> None:
    assert_finite(got, label)
    error = ((got.double() - want).square().mean() / want.square().mean()).sqrt().item()
    # values computed from k are rounded once more
    tolerance = RMS_TOLERANCES[got.dtype] * (1 if subject.traits.values else 2)
    tolerance = max(tolerance, lossy)
    message = f"{label}: relative error {error:.2g}, at most {tolerance:.2g} with sums in a wider dtype"
    assert error <= tolerance, message


def _prepare_large_values(subject: Subject, n: int, dtype: torch.dtype, mask: Mask) -> tuple[Call, Shape, Tensor]:
    """A call, its shape, and the reference's output. Values are around 3: sums of values around 0 would not grow with
    the number of keys."""
    shape = subject.shape(n, batch=1, heads=2 * (subject.attn.kv_heads or 1), head_dim=16, value_dim=16)
    call = subject.draw(shape, dtype=dtype, mask=mask)
    call = call.with_(v=call["v"] + 3) if "v" in call.tensors else call
    return call, shape, call.change(Tensor.double).run(subject.truth(shape, dtype))


@check(skip_reason=_no_fast_half)
@torch.no_grad()
def wide_sums(subject: Subject) -> None:
    """In half precision, the error over many keys is that of rounding the result: sums use a wider dtype."""
    for dtype, mask in product(_halves(subject), subject.plain_masks):
        call, shape, want = _prepare_large_values(subject, 600, dtype, mask)
        for backend in subject.backends_for(dtype):
            got = call.run(subject.make(shape, backend=backend, dtype=dtype))
            _check_rounding_error(subject, got, want, f"{backend}, {dtype}, N={shape.n}, {describe(mask)}")


@check(needs="decode", skip_reason=lambda s: _no_half(s) or no_values(s))
@torch.no_grad()
def wide_state(subject: Subject) -> None:
    """In half precision, the error of hundreds of steps is that of rounding them: states use a wider dtype."""
    n = 200
    for dtype in _halves(subject):
        call, shape, want = _prepare_large_values(subject, n, dtype, Mask(causal=True))
        attn = subject.make(shape, dtype=dtype)
        rows = [out for _, out, _ in call.steps(attn, attn.init_state(1, n, dtype, subject.device), (1,) * n)]
        lossy = subject.traits.state_tolerance
        _check_rounding_error(subject, torch.cat(rows, 2), want, f"{dtype}, {n} steps", lossy=lossy)
