"""Half precision: errors that its few bits explain, and those that they do not."""

from __future__ import annotations

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.shapes import Shape
from ..check import check
from ..subject import Call, Subject
from ..tensor_comparison import EPSILONS, assert_close, assert_finite, describe
from .algebra import has_values
from .reference import no_fast_form

LARGE = 60.0  # of 128 numbers, the product with themselves is far beyond float16's 65,504
# root mean square of the error relative to that of the result: rounding the result once gives a quarter of a spacing
LOSSES = {torch.bfloat16: 0.85 * 2.0**-8, torch.float16: 0.85 * 2.0**-11}


def _halves(subject: Subject) -> list[torch.dtype]:
    return [dtype for dtype in subject.dtypes if dtype.itemsize < 4]


def _no_half(subject: Subject) -> str | None:
    return None if _halves(subject) else f"only {subject.dtype} was requested"


def _no_fast_half(subject: Subject) -> str | None:
    return _no_half(subject) or no_fast_form(subject)


def loud(subject: Subject, shape: Shape, dtype: torch.dtype) -> tuple[Call, bool]:
    """Inputs whose scores exceed float16; whether each query's own key has by far the largest score.

    Signs of one size: a query and its own key agree in all of them, so that rounding does not change the largest score.
    """
    base = subject.draw(shape, dtype=dtype)
    q, k = (base[name].sign() * LARGE for name in ("q", "k"))
    clear = q.shape == k.shape and subject.traits.exact and subject.traits.values
    return base.with_(q=q, k=q.clone() if clear and not base.tied else k), clear


@check(ask=_no_fast_half)
def scores_overflow(subject: Subject) -> None:
    """In half precision, scores beyond float16 leave values and gradients finite, and exact mechanisms correct."""
    shape = subject.shape(70, head_dim=128, value_dim=128, batch=1)
    for dtype in _halves(subject):
        heard, clear = loud(subject, shape, dtype)
        for causal in subject.causalities:
            call = heard.under(Mask(causal=causal))
            exact, truth = call.change(lambda x: x.double()), subject.truth(shape, dtype)
            label = f"signs of size {LARGE:.0f}, {dtype}, {describe(call.mask)}"
            want, slopes = exact.gradients(truth) if subject.traits.gradient else (exact.run(truth), {})
            for backend in subject.backends_for(dtype):
                attn = subject.make(shape, backend=backend, dtype=dtype)
                out, grads = call.gradients(attn) if subject.traits.gradient else (call.run(attn), {})
                for name, got in {"output": out, **grads}.items():
                    right = want if name == "output" else slopes[name]
                    if right.abs().max() > torch.finfo(dtype).max / 4:  # larger values do not fit the dtype
                        continue
                    where = f"{backend}, {'' if name == 'output' else 'gradient of '}{name}, {label}"
                    assert_finite(got, where)
                    if clear and name in ("output", "v"):  # those of q and k are differences of rounded numbers
                        assert_close(got.double(), right, where, tolerance=EPSILONS[dtype])


def _loss(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want).square().mean() / want.square().mean()).sqrt().item()


def _check_rounding_error(subject: Subject, got: Tensor, want: Tensor, dtype: torch.dtype, label: str) -> None:
    assert_finite(got, label)
    # values computed from k are rounded once more
    loss, most = _loss(got, want), LOSSES[dtype] * (1 if subject.traits.values else 2)
    assert loss <= most, f"{label}: relative error {loss:.2g}, at most {most:.2g} with sums in a wider dtype"


def _heavy(subject: Subject, shape: Shape, dtype: torch.dtype, mask: Mask) -> Call:
    """Values around 3, which add up where those around 0 would cancel."""
    call = subject.draw(shape, dtype=dtype, mask=mask)
    return call.with_(v=call["v"] + 3) if "v" in call.tensors else call


@check(ask=_no_fast_half)
def wide_sums(subject: Subject) -> None:
    """In half precision, the error of a result over many keys is that of its own rounding: sums use a wider dtype."""
    shape = subject.shape(600, batch=1, heads=2 * (subject.attn.kv_heads or 1), head_dim=16, value_dim=16)
    for dtype in _halves(subject):
        for causal in subject.causalities:
            call = _heavy(subject, shape, dtype, Mask(causal=causal))
            with torch.no_grad():
                want = call.change(lambda x: x.double()).run(subject.truth(shape, dtype))
                for backend in subject.backends_for(dtype):
                    got = call.run(subject.make(shape, backend=backend, dtype=dtype))
                    _check_rounding_error(
                        subject, got, want, dtype, f"{backend}, {dtype}, N={shape.n}, {describe(call.mask)}"
                    )


@check(needs="decode", ask=lambda s: _no_half(s) or has_values(s))
def wide_state(subject: Subject) -> None:
    """In half precision, the error of hundreds of steps is that of their own rounding: states use a wider dtype."""
    n = 200
    shape = subject.shape(n, batch=1, heads=2 * (subject.attn.kv_heads or 1), head_dim=16, value_dim=16)
    for dtype in _halves(subject):
        call = _heavy(subject, shape, dtype, Mask(causal=True))
        attn = subject.make(shape, dtype=dtype)
        with torch.no_grad():
            want = call.change(lambda x: x.double()).run(subject.truth(shape, dtype))
            state, rows = attn.init_state(1, n, dtype, subject.device), []
            for t in range(n):
                out, state = call.both(slice(t, t + 1)).step(attn, state)
                rows.append(out)
        _check_rounding_error(subject, torch.cat(rows, 2), want, dtype, f"{dtype}, {n} steps")


CHECKS = (scores_overflow, wide_sums, wide_state)
