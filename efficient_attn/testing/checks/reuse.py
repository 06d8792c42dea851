"""Results do not depend on earlier calls of the same instance, or on their number."""

from __future__ import annotations

import torch

from ...contract.mask import Mask
from ..check import check
from ..sequence_decoding import step_tolerance
from ..subject import Subject
from ..tensor_comparison import assert_all_close, assert_close, assert_same, describe

CALLS = 130  # to detect mechanisms whose results change only after many calls
SHORT_CALLS = 870  # after those, and before the last, if thorough
STEPS = 110
MORE_STEPS = 10, 90  # of training, after those, and if thorough


@check(needs="padding")
@torch.no_grad()
def renewed_masks(subject: Subject) -> None:
    """New lengths and key masks in the same memory give a new result."""
    shape = subject.shape(70)
    attn, call = subject.make(shape), subject.draw(shape)
    for causal in subject.causalities:
        lengths, holes = subject.lengths(60, 30), subject.holes(shape)
        for mask in (Mask(causal=causal, key_lengths=lengths), Mask(causal=causal, key_mask=holes)):
            masked = call.under(mask)
            masked.run(attn)
            lengths.data.copy_(subject.lengths(12, 70))
            holes.data.copy_(~subject.holes(shape))
            want = masked.run(subject.oracle(shape))
            assert_close(masked.run(attn), want, f"after the mask's contents changed in place, causal={causal}")


@check()
@torch.no_grad()
def one_instance_serves_all(subject: Subject) -> None:
    """One instance gives the reference result for different lengths, masks and dtypes in turn."""
    sizes = [(17, 17, 2), (33, 33, 3), (33, 33, 2)] + [(17, 33, 2), (33, 17, 3)] * subject.traits.cross
    sizes += [(150, 150, 1), (17, 17, 5), (17, 17, 2)]
    attn = subject.make(subject.shape(17))
    accepts_float32 = subject.dtype == torch.float64 and not [*attn.parameters(), *attn.buffers()]
    for n, m, batch in sizes:
        shape = subject.shape(n, m, batch=batch)
        shifted = [Mask(causal=causal, query_start=5) for causal in subject.causalities] * subject.traits.cross
        for mask in (*subject.masks(shape), *shifted):
            call, label = subject.draw(shape, mask=mask), f"N={n}, M={m}, B={batch}, {describe(mask)}"
            assert_close(call.run(attn), call.run(subject.oracle(shape)), label)
            if accepts_float32:
                single = call.change(lambda x: x.float())
                want = single.run(subject.make(shape, dtype=torch.float32))
                subject.assert_alike(single.run(attn), want, f"then in float32, {label}")


@check()
@torch.no_grad()
def renewed_contents(subject: Subject) -> None:
    """New contents in the same memory give a new result, even if version counters or the first row are unchanged."""
    shape = subject.shape(130)
    attn, call = subject.make(shape), subject.draw(shape)
    call.run(attn)
    for seed, first in ((1, 0), (2, 1)):
        other = subject.draw(shape, seed=seed)
        for name, x in call.tensors.items():  # in place, without changing version counters
            x.data[:, :, first:] = other[name][:, :, first:]
        want = call.change(torch.clone).run(subject.oracle(shape))
        assert_close(call.run(attn), want, f"output after the contents from row {first} on changed in place")


@check()
@torch.no_grad()
def every_call_is_alike(subject: Subject) -> None:
    """All of many calls give the same result, the thousandth too if thorough, and leave their inputs unchanged."""
    shape = subject.shape(33)
    attn, calls = subject.make(shape), [subject.draw(shape, seed=seed) for seed in range(2)]
    copies = [call.change(torch.clone) for call in calls]
    want = [call.run(subject.oracle(shape)) for call in calls]
    for number in range(CALLS):
        got = calls[number % 2].run(attn)
        assert_close(got, want[number % 2], f"output of call {number + 1}, with two inputs alternately")
    short = subject.draw(subject.shape(2, batch=1))
    short_calls = SHORT_CALLS if subject.thorough else 0
    for _ in range(short_calls):
        short.run(attn)
    last = CALLS + short_calls + 1
    assert_close(calls[0].run(attn), want[0], f"output of call {last}; keep no counter or growing table")
    for call, before in zip(calls, copies, strict=True):
        for name, x in before.tensors.items():
            assert_same(call[name], x, f"{name} after {CALLS} calls")


@check(needs="gradient")
def every_backward_is_alike(subject: Subject) -> None:
    """All of many backward passes give the same gradients. After training, an instance in evaluation mode equals a new
    one with the same state dict."""
    shape = subject.shape(5, batch=1)
    attn, calls = subject.make(shape), [subject.draw(shape, seed=seed) for seed in range(2)]
    want = [subject.evaluate(call, subject.oracle(shape)) for call in calls]
    for number in range(STEPS):
        got = subject.evaluate(calls[number % 2], attn)
        assert_all_close(got, want[number % 2], f"backward pass {number + 1}, with two inputs alternately")
    call = calls[0].leaves()
    trained = {id(x): x for name, x in call.tensors.items() if name in ("q", "k", "v")}  # others may have a range
    sources = [*trained.values(), *attn.parameters()]
    more_steps = MORE_STEPS[subject.thorough]
    for _ in range(more_steps):  # without torch.optim, which imports the compiler
        total = call.run(attn).square().sum()
        grads = torch.autograd.grad(total, sources, allow_unused=True, materialize_grads=True)
        for x, gradient in zip(sources, grads, strict=True):
            x.data -= 1e-3 * gradient
    other = subject.make(shape)
    other.load_state_dict(attn.state_dict())
    got, want = (subject.evaluate(calls[0], x.eval()) for x in (attn, other))
    assert_all_close(got, want, f"after {STEPS + more_steps} training steps, compared with a new instance")


@check(needs="decode")
@torch.no_grad()
def every_step_is_alike(subject: Subject) -> None:
    """Steps of many sequences, one after another on one instance, give the same rows."""
    attn, call = subject.prepare(2, mask=Mask(causal=True))
    want = call.run(attn)
    for number in range(STEPS):
        state = attn.init_state(2, 2, subject.dtype, subject.device)
        for at, out, _ in call.steps(attn, state, (1, 1)):
            label = f"step {at.start} of sequence {number + 1} on one instance"
            assert_close(out, want[:, :, at], label, tolerance=step_tolerance(subject, out.dtype))
