"""Packed sequences: each has the result that it would have alone."""

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
from ..tensor_comparison import Refusal, assert_close, assert_zero, describe

# scattered and adjacent equal lengths, one row, no row, odd, across chunk borders; all equal; all different, in order
PACKS = ((33, 1, 0, 70, 33, 1, 1, 0, 129), (40, 40, 40), (0, 5, 66))


def _unknown(subject: Subject) -> str | None:
    return None if "cu_seqlens" in subject.attn.known_mask_fields else "it does not support cu_seqlens"


def _ends(lengths: tuple[int, ...]) -> list[int]:
    return list(accumulate(lengths, initial=0))


def _packed_calls(subject: Subject) -> Iterator[tuple[Call, list[slice]]]:
    """Packed calls, and the positions of each sequence."""
    for lengths in PACKS:
        call, ends = subject.draw(subject.shape(sum(lengths), batch=1)), _ends(lengths)
        for causal in subject.causalities:
            mask = Mask(causal=causal, cu_seqlens=subject.lengths(*ends))
            yield call.under(mask), [slice(*pair) for pair in pairwise(ends)]


@check(ask=_unknown)
def packed_equals_alone(subject: Subject) -> None:
    """A packed sequence has the result that it would have alone, and no gradient crosses a boundary."""
    for call, places in _packed_calls(subject):
        attn = subject.make(subject.shape(call["q"].shape[2], batch=1))
        out = call.run(attn)
        for place in places:
            alone = call.both(place).under(Mask(causal=call.mask.causal))
            label = f"the sequence at {place.start} to {place.stop}, {describe(call.mask)}"
            assert_close(out[:, :, place], alone.run(attn), label)
        if subject.traits.gradient:
            drawn = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
            for place in {p.stop - p.start: p for p in places}.values():  # one of each length
                _gradients_apart(attn, call, place, drawn.to(out))


def _gradients_apart(attn: Attention, call: Call, place: slice, weight: Tensor) -> None:
    _, got = call.gradients(attn, place, weight=weight)
    alone = call.both(place).under(Mask(causal=call.mask.causal))
    _, want = alone.gradients(attn, weight=weight[:, :, place])
    label = f"of the sequence at {place.start} to {place.stop}, {describe(call.mask)}"
    for name, grad in got.items():
        if name in call.sides:
            for others in (slice(place.start), slice(place.stop, None)):
                assert_zero(grad[:, :, others], f"gradient by other sequences' {name} {label}")
            grad = grad[:, :, place]
        assert_close(grad, want[name], f"gradient by {name} {label}")


@check(ask=_unknown)
def packed_misfits(subject: Subject) -> None:
    """Packed lengths that do not fit raise `UsageError`, and unclaimed masks stay refused when packed."""
    attn, call = subject.make(subject.shape(6)), subject.draw(subject.shape(6, batch=1))
    for label, ends in (
        ("ends short of N", (0, 3, 5)),
        ("ends beyond N", (0, 3, 7)),
        ("a first start that is not 0", (1, 3, 6)),
        ("ends that fall", (0, 4, 3, 6)),
        ("no end", (0,)),
    ):
        with Refusal(UsageError, label):
            call.under(subject.mask(cu_seqlens=subject.lengths(*ends))).run(attn)
    whole = subject.mask(cu_seqlens=subject.lengths(0, 2, 6))
    with Refusal(UsageError, "packed sequences in a batch of two"):
        subject.draw(subject.shape(6)).under(whole).run(attn)
    if subject.traits.cross:
        with Refusal(UsageError, "packed sequences with N < M"):
            call.queries(slice(5)).under(whole).run(attn)
    for causal in {False, True} - {*subject.causalities}:
        with Refusal(UnsupportedError, f"packed sequences with causal={causal}"):
            call.under(Mask(causal=causal, cu_seqlens=subject.lengths(0, 2, 6))).run(attn)


CHECKS = (packed_equals_alone, packed_misfits)
