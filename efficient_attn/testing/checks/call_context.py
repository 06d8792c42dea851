"""Results do not depend on modes, threads, integer types of lengths, or other instances."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, combinations, product

import torch
from torch import Tensor

from ...instruments.global_state import use_threads
from ..check import check
from ..probing import other_instances
from ..sequence_decoding import step_tolerance
from ..subject import Subject
from ..tensor_comparison import (
    FLOORS,
    TOLERANCES,
    assert_all_close,
    assert_close,
    describe,
    find_fitting_scale,
    find_largest_value,
)
from .side_effects import evaluate_all

N = 71
AUTOCAST_STEPS, LONGER = 5, 300  # more than the buckets of a hash, with few of which rounding changes none
SHARED = 515  # positions, which operations share among torch's threads
CALLS_PER_INPUT = 6  # of two threads on one instance


@check()
def modes(subject: Subject) -> None:
    """Results are the same after train() and eval(), under no_grad and inference_mode, and with gradients."""
    for call in subject.under_masks(subject.draw(subject.shape(N))):
        attn, label = subject.make(subject.shape(N)), describe(call.mask)
        with torch.inference_mode():  # first, because tensors that it caches must also work in a backward pass
            inferred = call.run(attn)
        with torch.no_grad():
            want = call.run(attn.train())
            subject.assert_alike(call.run(attn.eval()), want, f"after eval(), {label}")
        subject.assert_alike(inferred, want, f"under inference_mode, {label}")
        trained = subject.evaluate(call, attn.train())
        assert_close(trained["output"], want, f"with gradients after train(), {label}")
        assert_all_close(subject.evaluate(call, attn.eval()), trained, f"with gradients after eval(), {label}")
        if subject.traits.decode and call.mask.used == {"causal"} and call.mask.causal:
            for mode in (attn.train, attn.eval):
                state = mode().init_state(2, N, subject.dtype, subject.device)
                with torch.inference_mode():
                    for at, out, _ in call.steps(attn, state, (1, 1, 1)):
                        label = f"step {at.start} after {mode.__name__}()"
                        assert_close(out, want[:, :, at], label, tolerance=step_tolerance(subject, out.dtype))


@check(needs="gradient")
def some_gradients(subject: Subject) -> None:
    """The gradient by an input does not depend on whether other inputs require one."""
    for kv_heads in subject.kv_head_counts:
        attn, drawn = subject.prepare(N, kv_heads=kv_heads)
        names = list({id(x): name for name, x in drawn.tensors.items()}.values())
        for call in map(drawn.under, subject.plain_masks):
            _, want = call.gradients(attn)
            for required in chain.from_iterable(combinations(names, size) for size in range(1, len(names))):
                for name, got in call.leaves(*required).gradients(attn)[1].items():
                    label = f"gradient by {name} if only {', '.join(required)} require one, {describe(call.mask)}"
                    assert_close(got, want[name], label, summed=find_largest_value(want.values()))


@check()
def int32_lengths(subject: Subject) -> None:
    """Lengths of any integer type give the same result."""
    attn, drawn = subject.prepare(N)
    fields = {"query_lengths": subject.lengths(N, 40)}
    if subject.traits.padding:
        fields["key_lengths"] = subject.lengths(N - 3, 20)
    calls = [drawn.under(subject.mask(**fields))]
    if "cu_seqlens" in attn.known_mask_fields:
        calls.append(drawn.change(lambda x: x[:1]).under(subject.mask(cu_seqlens=subject.lengths(0, 30, N))))
    for call in calls:
        want = call.run(attn)
        for dtype in (torch.int32, torch.int16):
            lengths = {f: getattr(call.mask, f).to(dtype) for f in call.mask.used - {"causal"}}
            got = call.under(replace(call.mask, **lengths)).run(attn)
            subject.assert_alike(got, want, f"lengths as {dtype}, {describe(call.mask)}")


@check()
def threads(subject: Subject) -> None:
    """Results are the same with two torch threads, in another Python thread, and in two that share an instance."""
    shape = subject.shape(N)
    attn, calls = subject.make(shape), [subject.draw(shape, seed=seed) for seed in range(2)]
    want = [evaluate_all(subject, attn, call) for call in calls]
    for n in (N, SHARED):
        instance, call = subject.prepare(n)
        alone = evaluate_all(subject, instance, call)
        with use_threads(2):
            assert_all_close(evaluate_all(subject, instance, call), alone, f"with two torch threads, N={n}")
    with ThreadPoolExecutor(2) as pool:
        assert_all_close(pool.submit(evaluate_all, subject, attn, calls[0]).result(), want[0], "in another thread")
        submitted = [(i, pool.submit(evaluate_all, subject, attn, calls[i])) for i in (0, 1) * CALLS_PER_INPUT]
        for i, future in submitted:
            assert_all_close(future.result(), want[i], f"input {i}, while another thread calls the same instance")


@check()
def instances_apart(subject: Subject) -> None:
    """Instances with different options, seeds and widths in one process do not affect each other."""
    shape, wide = subject.shape(N), subject.shape(N, head_dim=16, value_dim=16)
    others = [(f"options {other.label}", other, shape, 0) for other in other_instances(subject)]
    others += [("another seed", subject, shape, 1), ("another width", subject, wide, 0)]
    for mask, (label, other, sizes, seed) in product(subject.plain_masks, others):
        if mask.causal not in other.causalities:
            continue
        call, other_call = subject.draw(shape, mask=mask), other.draw(sizes, mask=mask)
        with torch.no_grad():
            want, other_want = call.run(subject.oracle(shape)), other_call.run(other.oracle(sizes, seed=seed))
            for backend in subject.backends_for(subject.dtype) or (None,):
                text = f"{label}, {backend or 'dense'}, {describe(mask)}"
                for _ in range(2):
                    if backend in (None, *other.backends_for(subject.dtype)):
                        got = other_call.run(other.make(sizes, seed=seed, backend=backend))
                        assert_close(got, other_want, f"an instance of {text}, in the same process")
                    got = call.run(subject.make(shape, backend=backend))
                    assert_close(got, want, f"after an instance of {text}")


def _no_autocast(subject: Subject) -> str | None:
    if subject.dtype not in (torch.float64, torch.float32):
        return "autocast applies to float32"
    return subject.attn.why_not_dtype(torch.bfloat16)


@check(skip_reason=_no_autocast)
def autocast(subject: Subject) -> None:
    """Under torch.autocast, outputs, decode steps and gradients equal the reference within the tolerance of bfloat16 or
    float16."""
    shape, device = subject.shape(N), torch.device(subject.device).type
    # bfloat16 represents these inputs exactly, so that hashes and signs do not change
    drawn = subject.draw(shape, dtype=torch.float32).change(lambda x: x.bfloat16().float())
    halves = [dtype for dtype in (torch.bfloat16, torch.float16) if subject.attn.why_not_dtype(dtype) is None]
    for call, half in product(subject.under_masks(drawn), halves):
        if half == torch.float16 and call.mask.pads_keys:
            continue
        attn, label = subject.make(shape, dtype=torch.float32), f"under autocast, {describe(call.mask)}"
        truth, exact = subject.truth(shape, torch.float32), call.change(Tensor.double)
        want = subject.evaluate(exact, truth)
        incoming = find_fitting_scale((x for name, x in want.items() if name != "output"), half)  # as a loss scaler
        want = {name: x if name == "output" else x * incoming for name, x in want.items()}
        with torch.autocast(device, dtype=half):
            got = subject.evaluate(call, attn, incoming=incoming)
        assert_all_close(got, want, label, dtype=half)
        if subject.traits.decode and call.mask.causal and not call.mask.pads_keys:
            state = attn.init_state(2, AUTOCAST_STEPS, torch.float32, subject.device)
            with torch.no_grad(), torch.autocast(device, dtype=half):
                for at, out, _ in call.steps(attn, state, (1,) * AUTOCAST_STEPS):
                    assert out.dtype == half, f"step {at.start} {label} gives {out.dtype}, expected {half}"
                    tolerance = step_tolerance(subject, half, rounded=False)
                    assert_close(
                        out.double(), want["output"][:, :, at], f"step {at.start} {label}", tolerance=tolerance
                    )
    shape, half = subject.shape(LONGER), halves[0]
    exact = subject.draw(shape, dtype=torch.float32).change(lambda x: x.to(half).float())
    attn, truth = subject.make(shape, dtype=torch.float32), subject.truth(shape, torch.float32)
    for call in map(exact.under, subject.plain_masks):
        with torch.no_grad(), torch.autocast(device, dtype=half):
            got = call.run(attn)
        want = call.change(Tensor.double).run(truth)
        label = f"output of {LONGER} positions under autocast, {describe(call.mask)}"
        assert_close(got.double(), want, label, tolerance=TOLERANCES[half], floor=FLOORS[half])
