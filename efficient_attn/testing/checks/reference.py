"""The fast implementation equals the reference: outputs, gradients, precision."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Shape
from ..check import check
from ..subject import STARTS, Call, Subject
from ..tensor_comparison import EPSILONS, assert_close, assert_finite, describe


def no_fast_form(subject: Subject) -> str | None:
    """Why a check of fast backends does not apply; None if it does."""
    return None if subject.fast_backends else "there is no other backend than the reference"


def _shape(subject: Subject, call: Call) -> Shape:
    q, k, v = call["q"], call["k"], call.tensors.get("v", call["k"])
    sizes = {"batch": q.shape[0], "heads": q.shape[1], "kv_heads": k.shape[1], "value_dim": v.shape[3]}
    return subject.shape(q.shape[2], k.shape[2], **sizes)


def _where(backend: str, call: Call) -> str:
    return f"{backend} against dense, N={call['q'].shape[2]}, M={call['k'].shape[2]}, {describe(call.mask)}"


def _agree(subject: Subject, call: Call, *, graph: bool = False) -> None:
    """Every backend's output equals the reference output, computed once for all of them. graph: also with a graph."""
    shape = _shape(subject, call)
    with torch.no_grad():
        want = call.run(subject.oracle(shape))
    for backend in subject.backends_for(call["q"].dtype):
        fast, label = subject.make(shape, backend=backend), _where(backend, call)
        with torch.no_grad():
            assert_close(call.run(fast), want, label)
        if graph and subject.traits.gradient:
            assert_close(call.leaves().run(fast), want, f"{label}, on a graph")


def _slopes_at(subject: Subject) -> list[tuple[int, int]]:
    """Lengths at which gradients are compared, and outputs with them."""
    return ([(17, 17), (150, 150)] + [(17, 130)] * subject.traits.cross) * subject.traits.gradient


@check(ask=no_fast_form)
def equals_oracle(subject: Subject) -> None:
    """Every backend equals the reference, for all kinds of masks and lengths."""
    for n, m in [size for size in subject.sizes if size not in _slopes_at(subject)]:  # those are compared there
        shape = subject.shape(n, m)
        call = subject.draw(shape)
        for mask in subject.masks(shape):
            _agree(subject, call.under(mask))


@check(needs="cross", ask=no_fast_form)
def equals_oracle_anywhere(subject: Subject) -> None:
    """Every backend equals the reference, wherever query_start puts the queries: before, on, or after the keys."""
    shape = subject.shape(17, 130)
    call = subject.draw(shape)
    for start in STARTS:
        for causal in subject.causalities:
            mask = Mask(causal=causal, query_start=start)
            padded = Mask(causal=causal, query_start=start, key_mask=subject.holes(shape))
            for m in (mask, padded) if subject.traits.padding else (mask,):
                _agree(subject, call.under(m), graph=start in (0, 40))


@check(ask=no_fast_form)
def value_width(subject: Subject) -> None:
    """Values may be narrower or wider than queries and keys."""
    for width in (1, 5, 11):
        shape = subject.shape(33, value_dim=width)
        call = subject.draw(shape)
        for mask in subject.masks(shape):
            _agree(subject, call.under(mask))


@check(needs="gradient", ask=no_fast_form)
def gradients_equal_oracle(subject: Subject) -> None:
    """Gradients of every input and parameter equal those of the reference."""
    for n, m in _slopes_at(subject):
        shape = subject.shape(n, m)
        call = subject.draw(shape)
        for mask in subject.masks(shape):
            _same_gradients(subject, call.under(mask))


def _same_gradients(subject: Subject, call: Call) -> None:
    shape = _shape(subject, call)
    right, want = call.gradients(subject.oracle(shape))
    for backend in subject.backends_for(call["q"].dtype):
        out, got = call.gradients(subject.make(shape, backend=backend))
        assert_close(out, right, f"output on a graph, {_where(backend, call)}")
        for name in want:
            assert_close(got[name], want[name], f"gradient by {name}, {_where(backend, call)}")


def no_differences(subject: Subject) -> str | None:
    """Why a check by finite differences does not apply; None if it does."""
    return None if subject.dtype == torch.float64 else "finite differences need float64"


@check(needs="gradient", ask=no_differences)
def gradcheck(subject: Subject) -> None:
    """Gradients agree with finite differences, padded queries and keys included."""
    n, m = (3, 4) if subject.traits.cross else (4, 4)
    shape = subject.shape(n, m, batch=1, head_dim=2, value_dim=2)
    call = subject.draw(shape)
    masks = [Mask(causal=c) for c in subject.causalities]
    if subject.traits.padding:
        lengths = {"key_lengths": subject.lengths(m - 1), "query_lengths": subject.lengths(n - 1)}
        masks.append(subject.mask(**lengths))
    for mask in masks:
        attn = subject.make(shape)
        _against_differences(attn, call.under(mask).leaves())


def _against_differences(attn: Attention, call: Call) -> None:
    unique = {id(x): name for name, x in call.tensors.items()}
    names = list(unique.values())

    def function(*values: Tensor) -> Tensor:
        tensors = dict(zip(unique, values, strict=True))
        return call.change(lambda x: tensors[id(x)]).run(attn)  # pyright: ignore[reportArgumentType]

    try:
        torch.autograd.gradcheck(function, [call[name] for name in names], atol=1e-6, rtol=1e-4)
    except GradcheckError as error:
        text = " ".join(str(error).split())
        raise AssertionError(f"gradcheck over {names}, {describe(call.mask)}: {text[:300]}") from error


@check()
def dtypes(subject: Subject) -> None:
    """The output has the dtype of the inputs, with an error within its tolerance."""
    shape = subject.shape(130)
    for dtype in subject.dtypes:
        call = subject.draw(shape, dtype=dtype)
        for causal in subject.causalities:
            exact = call.under(Mask(causal=causal)).change(lambda x: x.double())
            got = call.under(Mask(causal=causal)).run(subject.make(shape, dtype=dtype))
            assert got.dtype == dtype, f"{dtype} in, {got.dtype} out"
            want = exact.run(subject.truth(shape, dtype))
            assert_close(got.double(), want, f"{dtype} compared with the float64 reference", tolerance=EPSILONS[dtype])


@check()
def large_inputs(subject: Subject) -> None:
    """Queries and keys of ten times the usual size, and of zero, give finite results, equal to the reference."""
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


CHECKS = (
    equals_oracle,
    gradients_equal_oracle,
    dtypes,
    equals_oracle_anywhere,
    value_width,
    gradcheck,
    large_inputs,
)
