"""Fast implementations equal the reference: outputs, gradients, precision."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from ...contract.mask import Mask
from ...contract.shapes import Shape
from ...errors import UnsupportedError
from ..check import check
from ..subject import STARTS, Call, Subject
from ..tensor_comparison import TOLERANCES, assert_close, assert_finite, describe


def no_fast_backend(subject: Subject) -> str | None:
    """Why a check of fast backends does not apply; None if it does."""
    return None if subject.fast_backends else "there is no other backend than the reference"


def _describe_call(backend: str, shape: Shape, mask: Mask) -> str:
    return f"{backend} compared with dense, N={shape.n}, M={shape.m}, {describe(mask)}"


def _check_outputs(subject: Subject, shape: Shape, call: Call, *, graph: bool = False) -> None:
    """Compare every backend's output with that of the reference. graph: also with inputs that require gradients."""
    with torch.no_grad():
        want = call.run(subject.oracle(shape))
    for backend in subject.backends_for(call["q"].dtype):
        fast, label = subject.make(shape, backend=backend), _describe_call(backend, shape, call.mask)
        with torch.no_grad():
            assert_close(call.run(fast), want, label)
        if graph and subject.traits.gradient:
            assert_close(call.leaves().run(fast), want, f"{label}, with gradients")


def _gradient_sizes(subject: Subject) -> list[tuple[int, int]]:
    """Lengths (N, M) for which gradients are compared, together with outputs."""
    return ([(17, 17), (150, 150)] + [(17, 130)] * subject.traits.cross) * subject.traits.gradient


@check(skip_reason=no_fast_backend)
def equals_oracle(subject: Subject) -> None:
    """Every backend equals the reference for all kinds of masks and lengths."""
    # other lengths are checked by gradients_equal_oracle
    for n, m in [size for size in subject.sizes if size not in _gradient_sizes(subject)]:
        shape = subject.shape(n, m)
        call = subject.draw(shape)
        for mask in subject.masks(shape):
            _check_outputs(subject, shape, call.under(mask))


@check(needs="gradient", skip_reason=no_fast_backend)
def gradients_equal_oracle(subject: Subject) -> None:
    """Gradients by every input and parameter equal those of the reference."""
    for n, m in _gradient_sizes(subject):
        shape = subject.shape(n, m)
        call = subject.draw(shape)
        for mask in subject.masks(shape):
            _check_gradients(subject, shape, call.under(mask))


def _check_gradients(subject: Subject, shape: Shape, call: Call) -> None:
    want_out, want = call.gradients(subject.oracle(shape))
    for backend in subject.backends_for(call["q"].dtype):
        out, got = call.gradients(subject.make(shape, backend=backend))
        label = _describe_call(backend, shape, call.mask)
        assert_close(out, want_out, f"output with gradients, {label}")
        for name in want:
            assert_close(got[name], want[name], f"gradient by {name}, {label}")


@check()
def dtypes(subject: Subject) -> None:
    """Outputs have the dtype of the inputs, and errors within its tolerance."""
    shape = subject.shape(130)
    for dtype in subject.dtypes:
        call = subject.draw(shape, dtype=dtype)
        for causal in subject.causalities:
            exact = call.under(Mask(causal=causal)).change(lambda x: x.double())
            got = call.under(Mask(causal=causal)).run(subject.make(shape, dtype=dtype))
            assert got.dtype == dtype, f"{dtype} in, {got.dtype} out"
            want = exact.run(subject.truth(shape, dtype))
            label = f"{dtype} compared with the float64 reference"
            assert_close(got.double(), want, label, tolerance=TOLERANCES[dtype])


@check(needs="cross", skip_reason=no_fast_backend)
def equals_oracle_anywhere(subject: Subject) -> None:
    """Every backend equals the reference with query_start before, at, and after the keys."""
    shape = subject.shape(17, 130)
    call = subject.draw(shape)
    for start in STARTS:
        for causal in subject.causalities:
            mask = Mask(causal=causal, query_start=start)
            padded = Mask(causal=causal, query_start=start, key_mask=subject.holes(shape))
            for m in (mask, padded) if subject.traits.padding else (mask,):
                _check_outputs(subject, shape, call.under(m), graph=start in (0, 40))


@check(needs="cross", unless="mixes_queries")
def single_reference_rows(subject: Subject) -> None:
    """The reference computes single rows, at query_positions, as in the whole output. It may refuse them."""
    shape, rows = subject.shape(150), torch.tensor([0, 5, 6, 77, 149])
    attn = subject.oracle(shape)
    for mask in subject.masks(shape):
        call = subject.draw(shape, mask=mask)
        want = call.run(attn)[:, :, rows]
        try:
            got = call.queries(rows).under(mask.rows(rows, 150, 150)).run(attn)
        except UnsupportedError:
            return  # it needs consecutive queries: verification computes its rows one by one
        assert_close(got, want, f"rows {rows.tolist()} of 150 of the reference, {describe(mask)}")


@check(skip_reason=no_fast_backend)
def value_width(subject: Subject) -> None:
    """Every backend equals the reference for values that are narrower or wider than queries and keys."""
    for width in (1, 5, 11):
        shape = subject.shape(33, value_dim=width)
        call = subject.draw(shape)
        for mask in subject.masks(shape):
            _check_outputs(subject, shape, call.under(mask))


def no_finite_differences(subject: Subject) -> str | None:
    """Why a check by finite differences does not apply; None if it does."""
    return None if subject.dtype == torch.float64 else "finite differences need float64"


@check(needs="gradient", skip_reason=no_finite_differences)
def gradcheck(subject: Subject) -> None:
    """Gradients agree with finite differences, also with padded queries and keys."""
    n, m = (3, 4) if subject.traits.cross else (4, 4)
    shape = subject.shape(n, m, batch=1, head_dim=2, value_dim=2)
    call = subject.draw(shape)
    masks = subject.plain_masks
    if subject.traits.padding:
        masks.append(subject.mask(key_lengths=subject.lengths(m - 1), query_lengths=subject.lengths(n - 1)))
    for mask in masks:
        attn = subject.make(shape)
        leaves = call.under(mask).leaves()
        compare_with_differences(lambda changed, attn=attn: changed.run(attn), leaves, describe(mask))


def compare_with_differences(run: Callable[[Call], Tensor], call: Call, label: str) -> None:
    """Compare the gradients of a function of a call's tensors with finite differences."""
    unique = {id(x): x for x in call.tensors.values()}

    def function(*values: Tensor) -> Tensor:
        tensors = dict(zip(unique, values, strict=True))
        return run(call.change(lambda x: tensors[id(x)]))

    try:
        torch.autograd.gradcheck(function, list(unique.values()), atol=1e-6, rtol=1e-4)
    except GradcheckError as error:
        raise AssertionError(
            f"gradients by {', '.join(call.tensors)}, {label}: {' '.join(str(error).split())[:300]}"
        ) from error


@check()
def large_inputs(subject: Subject) -> None:
    """Queries and keys scaled by ten and by zero give finite results that equal the reference."""
    shape = subject.shape(130)
    dtypes = [d for d in subject.dtypes if d.itemsize >= 4]
    for causal, dtype, scale in product(subject.causalities, dtypes, (10, 0)):
        base = subject.draw(shape, dtype=dtype)
        call = base.with_(q=base["q"] * scale, k=base["k"] * scale).under(Mask(causal=causal))
        label = f"inputs of scale {scale}, {dtype}, {describe(call.mask)}"
        with torch.no_grad():
            got = call.run(subject.make(shape, dtype=dtype))
            assert_finite(got, label)
            if dtype == torch.float64:
                assert_close(got, call.run(subject.oracle(shape)), label, tolerance=1e-8)
        if subject.traits.gradient:
            _, grads = call.gradients(subject.make(shape, dtype=dtype))
            for name, grad in grads.items():
                assert_finite(grad, f"gradient by {name}, {label}")
