"""Packed sequences: each has the result of a separate call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...errors import UnsupportedError, UsageError
from ..check import check
from ..subject import Call, Subject
from ..tensor_comparison import assert_close, assert_zero, describe, expect_error

# equal lengths next to each other and apart, 1, 0, odd and beyond a chunk; only equal ones; only different ones
PACKS = ((33, 1, 0, 70, 33, 1, 1, 0, 129), (40, 40, 40), (0, 5, 66))


def _no_packing(subject: Subject) -> str | None:
    return None if "cu_seqlens" in subject.attn.known_mask_fields else "it does not support cu_seqlens"


def _packed_calls(subject: Subject) -> Iterator[tuple[Call, list[slice]]]:
    """Yield packed calls, with the positions of each sequence."""
    for lengths in PACKS:
        call, ends = subject.draw(subject.shape(sum(lengths), batch=1)), list(accumulate(lengths, initial=0))
        for causal in subject.causalities:
            mask = Mask(causal=causal, cu_seqlens=subject.lengths(*ends))
            yield call.under(mask), [slice(start, end) for start, end in pairwise(ends)]


@check(skip_reason=_no_packing)
def packed_equals_alone(subject: Subject) -> None:
    """A packed sequence has the result and the gradients of a separate call; no gradient crosses a boundary."""
    for call, sequences in _packed_calls(subject):
        attn = subject.make(subject.shape(call["q"].shape[2], batch=1))
        out = call.run(attn)
        for at in sequences:
            alone = call.both(at).under(Mask(causal=call.mask.causal))
            label = f"the sequence at {at.start} to {at.stop}, {describe(call.mask)}"
            assert_close(out[:, :, at], alone.run(attn), label)
        if subject.traits.gradient:
            weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
            for at in {s.stop - s.start: s for s in sequences}.values():  # one of each length
                _check_gradients(attn, call, at, weight.to(out))


def _check_gradients(attn: Attention, call: Call, at: slice, weight: Tensor) -> None:
    _, got = call.gradients(attn, at, weight=weight)
    alone = call.both(at).under(Mask(causal=call.mask.causal))
    _, want = alone.gradients(attn, weight=weight[:, :, at])
    label = f"of the sequence at {at.start} to {at.stop}, {describe(call.mask)}"
    for name, grad in got.items():
        if name in call.sides:
            for others in (slice(at.start), slice(at.stop, None)):
                assert_zero(grad[:, :, others], f"gradient by other sequences' {name} {label}")
            grad = grad[:, :, at]
        assert_close(grad, want[name], f"gradient by {name} {label}")


@check(skip_reason=_no_packing)
def packed_misfits(subject: Subject) -> None:
    """Invalid cu_seqlens raise `UsageError`, and undeclared masks raise `UnsupportedError` also for packed calls."""
    attn, call = subject.make(subject.shape(6)), subject.draw(subject.shape(6, batch=1))
    for label, ends in (
        ("an end before N", (0, 3, 5)),
        ("an end after N", (0, 3, 7)),
        ("a start after 0", (1, 3, 6)),
        ("decreasing ends", (0, 4, 3, 6)),
        ("no sequence", (0,)),
    ):
        with expect_error(UsageError, label):
            call.under(subject.mask(cu_seqlens=subject.lengths(*ends))).run(attn)
    packed = subject.mask(cu_seqlens=subject.lengths(0, 2, 6))
    with expect_error(UsageError, "packed sequences in a batch of two"):
        subject.draw(subject.shape(6)).under(packed).run(attn)
    if subject.traits.cross:
        with expect_error(UsageError, "packed sequences with N < M"):
            call.queries(slice(5)).under(packed).run(attn)
    for causal in {False, True} - {*subject.causalities}:
        with expect_error(UnsupportedError, f"packed sequences with causal={causal}"):
            call.under(Mask(causal=causal, cu_seqlens=subject.lengths(0, 2, 6))).run(attn)
