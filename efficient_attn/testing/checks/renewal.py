"""A call is about its own inputs: what an earlier one saw, or how many there were, changes nothing."""

from __future__ import annotations

import torch

from ...contract.mask import Mask
from ..checking import check
from ..compare import assert_close, assert_same
from ..subject import Call, Subject

CALLS = 130  # more than a mechanism that waits for a harness to look away is likely to wait
STEPS = 110


def _write(call: Call, other: Call, *, rows: int = 0) -> None:
    """Other contents from some row on, in the same memory, past the version counters."""
    for name, x in call.tensors.items():
        x.data[:, :, rows:] = other[name][:, :, rows:]


@check()
def renewed_contents(subject: Subject) -> None:
    """New contents in the same memory give the new result, whatever stays: version counters, or a first row."""
    shape = subject.shape(130)
    attn, call = subject.make(shape), subject.draw(shape)
    with torch.no_grad():
        call.run(attn)
        for seed, rows in ((1, 0), (2, 1)):
            _write(call, subject.draw(shape, seed=seed), rows=rows)
            want = call.change(torch.clone).run(subject.make(shape))
            kept = f", but for {rows} row" if rows else ""
            assert_close(call.run(attn), want, f"output after all contents changed in place{kept}")


@check()
def every_call_is_alike(subject: Subject) -> None:
    """The last of many calls gives what the first one gives, and leaves its inputs as they are."""
    shape = subject.shape(33)
    attn, calls = subject.make(shape), [subject.draw(shape, seed=seed) for seed in range(2)]
    before = [{name: x.clone() for name, x in call.tensors.items()} for call in calls]
    with torch.no_grad():
        want = [call.run(subject.make(shape)) for call in calls]
        for number in range(CALLS):
            got = calls[number % 2].run(attn)
            assert_close(got, want[number % 2], f"output of call {number + 1}, of two inputs in turns")
    for call, held in zip(calls, before, strict=True):
        for name, x in held.items():
            assert_same(call[name], x, f"{name} after {CALLS} calls")


@check(needs="gradient")
def every_backward_is_alike(subject: Subject) -> None:
    """The last of many backward passes gives what the first one gives."""
    shape = subject.shape(5, batch=1)
    attn, calls = subject.make(shape), [subject.draw(shape, seed=seed) for seed in range(2)]
    want = [call.gradients(subject.make(shape))[1] for call in calls]
    for number in range(STEPS):
        _, got = calls[number % 2].gradients(attn)
        for name, slope in want[number % 2].items():
            assert_close(got[name], slope, f"gradient by {name} of backward pass {number + 1}, of two inputs in turns")


@check(needs="decode")
def every_step_is_alike(subject: Subject) -> None:
    """The first steps of many sequences, one after another on one instance, are all alike."""
    shape = subject.shape(2)
    attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
    with torch.no_grad():
        want = call.run(attn)
        for number in range(STEPS):
            state = attn.init_state(2, 2, subject.dtype, subject.device)
            for t in range(2):
                out, state = call.both(slice(t, t + 1)).step(attn, state)
                assert_close(out, want[:, :, t : t + 1], f"step {t} of sequence {number + 1} on one instance")


CHECKS = (renewed_contents, every_call_is_alike, every_backward_is_alike, every_step_is_alike)
