"""Results do not depend on earlier calls of the same instance, or on their number."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...contract.mask import Mask
from ...contract.shapes import Shape
from ..check import check
from ..subject import Subject
from ..tensor_comparison import assert_close, assert_same, describe

CALLS = 130  # to detect mechanisms whose results change only after many calls
STEPS = 110


@check(needs="padding")
def renewed_masks(subject: Subject) -> None:
    """New lengths and key masks in the same memory give a new result."""
    shape = subject.shape(70)
    attn, call = subject.make(shape), subject.draw(shape)
    for causal in subject.causalities:
        lengths, holes = subject.lengths(60, 30), subject.holes(shape)
        for mask in (Mask(causal=causal, key_lengths=lengths), Mask(causal=causal, key_mask=holes)):
            masked = call.under(mask)
            with torch.no_grad():
                masked.run(attn)
                lengths.data.copy_(subject.lengths(12, 70))
                holes.data.copy_(~subject.holes(shape))
                want = masked.run(subject.oracle(shape))
                assert_close(masked.run(attn), want, f"after the mask's contents changed in place, causal={causal}")


@check()
def one_instance_serves_all(subject: Subject) -> None:
    """One instance gives the reference result for different lengths, masks and dtypes in turn."""
    sizes = [(17, 17, 2), (33, 33, 3), (33, 33, 2)] + [(17, 33, 2), (33, 17, 3)] * subject.traits.cross
    shapes = [subject.shape(n, m, batch=batch) for n, m, batch in sizes]
    attn = subject.make(shapes[0])
    accepts_float32 = subject.dtype == torch.float64 and not [*attn.parameters(), *attn.buffers()]
    calls = [(shape, subject.draw(shape, mask=mask)) for shape in shapes for mask in _masks(subject, shape)]
    with torch.no_grad():
        for shape, call in calls:
            got, want = call.run(attn), call.run(subject.oracle(shape))
            assert_close(got, want, f"N={shape.n}, M={shape.m}, B={shape.batch}, {describe(call.mask)}")
            if accepts_float32:
                single = call.change(lambda x: x.float())
                got, want = single.run(attn), single.run(subject.make(shape, dtype=torch.float32))
                subject.assert_alike(got, want, f"then in float32, N={shape.n}, M={shape.m}, {describe(call.mask)}")


def _masks(subject: Subject, shape: Shape) -> Iterator[Mask]:
    yield from subject.masks(shape)
    if subject.traits.cross:
        yield from (Mask(causal=causal, query_start=5) for causal in subject.causalities)


@check()
def renewed_contents(subject: Subject) -> None:
    """New contents in the same memory give a new result, even if version counters or the first row are unchanged."""
    shape = subject.shape(130)
    attn, call = subject.make(shape), subject.draw(shape)
    with torch.no_grad():
        call.run(attn)
        for seed, first in ((1, 0), (2, 1)):
            other = subject.draw(shape, seed=seed)
            for name, x in call.tensors.items():  # in place, without changing version counters
                x.data[:, :, first:] = other[name][:, :, first:]
            want = call.change(torch.clone).run(subject.oracle(shape))
            assert_close(call.run(attn), want, f"output after the contents from row {first} on changed in place")


@check()
def every_call_is_alike(subject: Subject) -> None:
    """All of many calls give the same result, and leave their inputs unchanged."""
    shape = subject.shape(33)
    attn, calls = subject.make(shape), [subject.draw(shape, seed=seed) for seed in range(2)]
    before = [{name: x.clone() for name, x in call.tensors.items()} for call in calls]
    with torch.no_grad():
        want = [call.run(subject.oracle(shape)) for call in calls]
        for number in range(CALLS):
            got = calls[number % 2].run(attn)
            assert_close(got, want[number % 2], f"output of call {number + 1}, with two inputs alternately")
    for call, copies in zip(calls, before, strict=True):
        for name, x in copies.items():
            assert_same(call[name], x, f"{name} after {CALLS} calls")


@check(needs="gradient")
def every_backward_is_alike(subject: Subject) -> None:
    """All of many backward passes give the same gradients."""
    shape = subject.shape(5, batch=1)
    attn, calls = subject.make(shape), [subject.draw(shape, seed=seed) for seed in range(2)]
    want = [call.gradients(subject.oracle(shape))[1] for call in calls]
    for number in range(STEPS):
        _, got = calls[number % 2].gradients(attn)
        for name, grad in want[number % 2].items():
            label = f"gradient by {name} in backward pass {number + 1}, with two inputs alternately"
            assert_close(got[name], grad, label)


@check(needs="decode")
def every_step_is_alike(subject: Subject) -> None:
    """Steps of many sequences, one after another on one instance, give the same rows."""
    shape = subject.shape(2)
    attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
    with torch.no_grad():
        want = call.run(attn)
        for number in range(STEPS):
            state = attn.init_state(2, 2, subject.dtype, subject.device)
            for at, out, _ in call.steps(attn, state, (1, 1)):
                assert_close(out, want[:, :, at], f"step {at.start} of sequence {number + 1} on one instance")
