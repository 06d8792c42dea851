"""Fast implementations equal the reference: outputs, gradients, precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from ...contract.mask import Mask
from ...contract.shapes import Shape
from ...errors import UnsupportedError
from ..check import check
from ..mechanism_call import Call
from ..subject import Subject
from ..tensor_comparison import TOLERANCES, assert_all_close, assert_close, assert_finite, describe, find_fitting_scale

STARTS = (-40, -5, 0, 40, 125, 200)  # query_start for 17 queries over 130 keys: before, on and after the keys


# tolerances for scores around 10,000, whose rounding errors change the weights of keys with nearly equal scores
SATURATED = {torch.float64: 1e-8, torch.float32: 1e-1, torch.bfloat16: 1.0, torch.float16: 1.0}


def no_fast_backend(subject: Subject) -> str | None:
    """Why a check of fast backends does not apply; None if it does."""
    return None if subject.fast_backends else "there is no other backend than the reference"


def assert_equals_reference(
    subject: Subject, shape: Shape, *, masks: Iterable[Mask] | None = None, gradients: bool = False
) -> None:
    """Compare the outputs of every backend with those of the reference.

    masks: by default every kind that the mechanism supports. gradients: compare them too, if it has any.
    """
    call = subject.draw(shape)
    for mask in subject.masks(shape) if masks is None else masks:
        masked = call.under(mask)
        with torch.set_grad_enabled(gradients):
            want = subject.evaluate(masked, subject.oracle(shape), gradients=gradients)
        for backend in subject.backends_for(subject.dtype):
            fast = subject.make(shape, backend=backend)
            label = f"{backend} compared with dense, N={shape.n}, M={shape.m}, E={shape.value_dim}, {describe(mask)}"
            with torch.no_grad():
                assert_close(masked.run(fast), want["output"], f"output, {label}")
            if gradients:
                assert_all_close(subject.evaluate(masked, fast), want, f"with gradients, {label}")


@check(skip_reason=no_fast_backend)
def equals_oracle(subject: Subject) -> None:
    """Every backend equals the reference for all kinds of masks and lengths."""
    for n, m in subject.sizes:
        assert_equals_reference(subject, subject.shape(n, m))


@check(needs="gradient", skip_reason=no_fast_backend)
def gradients_equal_oracle(subject: Subject) -> None:
    """Gradients by every input and parameter equal those of the reference."""
    for n, m in [(17, 17), (150, 150)] + [(17, 130)] * subject.traits.cross:
        assert_equals_reference(subject, subject.shape(n, m), gradients=True)


@check()
def dtypes(subject: Subject) -> None:
    """Outputs have the dtype of the inputs, and errors within its tolerance."""
    shape = subject.shape(130)
    for dtype, causal in product(subject.dtypes, subject.causalities):
        call, truth = subject.draw(shape, dtype=dtype, mask=Mask(causal=causal)), subject.truth(shape, dtype)
        want = call.change(Tensor.double).run(truth)
        if (scale := find_fitting_scale([want], dtype)) < 1 and "v" in call.tensors:
            call, want = call.with_(v=call["v"] * scale), want * scale
        got = call.run(subject.make(shape, dtype=dtype))
        assert got.dtype == dtype, f"{dtype} in, {got.dtype} out"
        assert_close(got, want, f"{dtype} compared with the float64 reference", tolerance=TOLERANCES[dtype])


@check(needs="cross", skip_reason=no_fast_backend)
def equals_oracle_anywhere(subject: Subject) -> None:
    """Every backend equals the reference with query_start before, at, and after the keys."""
    shape = subject.shape(17, 130)
    for start, causal in product(STARTS, subject.causalities):
        masks = [Mask(causal=causal, query_start=start)]
        if subject.traits.padding:
            masks.append(Mask(causal=causal, query_start=start, key_mask=subject.holes(shape)))
        assert_equals_reference(subject, shape, masks=masks, gradients=start in (0, 40))


@check(needs="cross", unless="mixes_queries")
def single_reference_rows(subject: Subject) -> None:
    """The reference computes single rows, at query_positions, as in the whole output. It may refuse them."""
    shape, rows = subject.shape(150), subject.lengths(0, 5, 6, 77, 149)
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
        assert_equals_reference(subject, subject.shape(33, value_dim=width))


def no_finite_differences(subject: Subject) -> str | None:
    """Why a check by finite differences does not apply; None if it does."""
    return None if subject.dtype == torch.float64 else "finite differences need float64"


@check(needs="gradient", skip_reason=no_finite_differences)
def gradcheck(subject: Subject) -> None:
    """Gradients agree with finite differences, also with padded queries and keys."""
    n, m = (3, 4) if subject.traits.cross else (4, 4)
    attn, call = subject.prepare(n, m, batch=1, head_dim=2, value_dim=2)
    masks = subject.plain_masks
    if subject.traits.padding:
        masks.append(subject.mask(key_lengths=subject.lengths(m - 1), query_lengths=subject.lengths(n - 1)))
    for mask in masks:
        compare_with_differences(lambda changed: changed.run(attn), call.under(mask).leaves(), describe(mask))


def compare_with_differences(run: Callable[[Call], Tensor], call: Call, label: str) -> None:
    """Compare the gradients of a function of a call's tensors with finite differences."""
    unique = {id(x): x for x in call.tensors.values()}

    def function(*values: Tensor) -> Tensor:
        tensors = dict(zip(unique, values, strict=True))
        return run(call.change(lambda x: tensors[id(x)]))

    try:
        torch.autograd.gradcheck(function, list(unique.values()), atol=1e-6, rtol=1e-4)
    except GradcheckError as error:
        message = " ".join(str(error).split())[:300]
        raise AssertionError(f"gradients by {', '.join(call.tensors)}, {label}: {message}") from error


@check(skip_reason=no_fast_backend)
def extreme_values(subject: Subject) -> None:
    """Values around 1e-8 and 1e4, and scores around 1e4 of softmax, give the reference's result: nothing is clamped or
    rounded to zero."""
    shape = subject.shape(70)
    base = subject.draw(shape)
    calls = [(base.with_(v=base["v"] * x), x, f"values around {x:.0e}") for x in (1e-8, 1e4) if "v" in base.tensors]
    if subject.traits.exact:
        calls.append((base.with_(q=base["q"] * 100, k=base["k"] * 100), 1, "scores around 1e4"))
    for mask, (call, scale, label) in product(subject.plain_masks, calls):
        want = call.under(mask).run(subject.oracle(shape)) / scale
        for backend in subject.backends_for(subject.dtype):
            for name, got in subject.evaluate(call.under(mask), subject.make(shape, backend=backend)).items():
                assert_finite(got, f"{name}, {label}, {backend}, {describe(mask)}")
                if name == "output":
                    tolerance = SATURATED[subject.dtype] if scale == 1 else None
                    assert_close(
                        got / scale, want, f"output, {label}, {backend}, {describe(mask)}", tolerance=tolerance
                    )


@check(needs="exact", skip_reason=no_fast_backend)
@torch.no_grad()
def scores_far_below_zero(subject: Subject) -> None:
    """Where the scores of all visible keys are below -1,000, padding has no weight, and rows and decode steps equal the
    reference."""
    shape = subject.shape(40)
    base, tolerance = subject.draw(shape), SATURATED[subject.dtype]
    negative = base.with_(q=base["q"].abs() * 100, k=base["k"].abs() * -100)
    for call, backend in product(subject.under_masks(negative), subject.backends_for(subject.dtype)):
        attn, label = subject.make(shape, backend=backend), f"scores below -1,000, {backend}, {describe(call.mask)}"
        want = call.run(subject.oracle(shape))
        assert_close(call.run(attn), want, f"output, {label}", tolerance=tolerance)
        if subject.traits.decode and call.mask.causal and not call.mask.pads_keys:
            state = attn.init_state(shape.batch, shape.n, subject.dtype, subject.device)
            for at, out, _ in call.steps(attn, state, (1,) * shape.n):
                assert_finite(out, f"step {at.start}, {label}")
                if not subject.traits.state_tolerance:  # rounding keys changes such scores by more than 1
                    assert_close(out, want[:, :, at], f"step {at.start}, {label}", tolerance=tolerance)


@check()
def large_inputs(subject: Subject) -> None:
    """Queries and keys scaled by ten and by zero give finite results that equal the reference."""
    shape = subject.shape(130)
    dtypes = [d for d in subject.dtypes if d.itemsize >= 4]
    for causal, dtype, scale in product(subject.causalities, dtypes, (10, 0)):
        base = subject.draw(shape, dtype=dtype, mask=Mask(causal=causal))
        call = base.with_(q=base["q"] * scale, k=base["k"] * scale)
        label = f"inputs of scale {scale}, {dtype}, {describe(call.mask)}"
        with torch.no_grad():
            got = call.run(subject.make(shape, dtype=dtype))
            assert_finite(got, label)
            if dtype == torch.float64:
                assert_close(got, call.run(subject.oracle(shape)), label, tolerance=1e-8)
        for name, result in subject.evaluate(call, subject.make(shape, dtype=dtype)).items():
            assert_finite(result, f"{name}, {label}")
