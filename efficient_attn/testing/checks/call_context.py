"""Results do not depend on modes, threads, integer types of lengths, or other instances."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, combinations

import torch
from torch import Tensor

from ...contract.mechanism import Attention
from ...instruments.global_state import use_threads
from ..check import check
from ..probing import other_instances
from ..subject import Call, Subject
from ..tensor_comparison import GRADIENT_TOLERANCES, TOLERANCES, assert_close, assert_same, describe
from .side_effects import keep_global_state

N = 71
CALLS_PER_INPUT = 6  # of two threads on one instance


@check()
def modes(subject: Subject) -> None:
    """Results are the same after train() and eval(), under no_grad and inference_mode, and with gradients."""
    shape = subject.shape(N)
    for mask in subject.masks(shape):
        call, attn = subject.draw(shape, mask=mask), subject.make(shape)
        with torch.inference_mode():  # first, because tensors that it caches must also work in a backward pass
            inferred = call.run(attn)
        with torch.no_grad():
            want = call.run(attn.train())
            subject.assert_alike(call.run(attn.eval()), want, f"after eval(), {describe(mask)}")
        subject.assert_alike(inferred, want, f"under inference_mode, {describe(mask)}")
        if subject.traits.gradient:
            grads = {}
            for mode in (attn.train, attn.eval):
                out, grads[mode.__name__] = call.gradients(mode())
                assert_close(out, want, f"with gradients after {mode.__name__}(), {describe(mask)}")
            _assert_all_close(grads["eval"], grads["train"], f"after eval(), {describe(mask)}")
        if subject.traits.decode and mask.used == {"causal"} and mask.causal:
            for mode in (attn.train, attn.eval):
                state = mode().init_state(2, N, subject.dtype, subject.device)
                with torch.inference_mode():
                    for at, out, _ in call.steps(attn, state, (1, 1, 1)):
                        assert_close(out, want[:, :, at], f"step {at.start} after {mode.__name__}()")


@check(needs="deterministic")
def repeats(subject: Subject) -> None:
    """A repeated call and its repeated backward pass give the same bits."""
    for n in (N, 300):
        shape = subject.shape(n)
        attn = subject.make(shape)
        for mask in subject.plain_masks:
            call = subject.draw(shape, mask=mask)
            want = _results(subject, attn, call)
            for _ in range(2):
                for name, got in _results(subject, attn, call).items():
                    assert_same(got, want[name], f"{name} of a repeated call, N={n}, {describe(mask)}")


@check(needs="gradient")
def some_gradients(subject: Subject) -> None:
    """The gradient by an input does not depend on whether other inputs require one."""
    for kv_heads in subject.kv_head_counts:
        shape = subject.shape(N, kv_heads=kv_heads)
        attn = subject.make(shape)
        for mask in subject.plain_masks:
            call = subject.draw(shape, mask=mask)
            _, want = call.gradients(attn)
            names = list({id(x): name for name, x in call.tensors.items()}.values())
            for required in chain.from_iterable(combinations(names, size) for size in range(1, len(names))):
                _check_gradients_by(required, call, attn, want)


def _check_gradients_by(required: tuple[str, ...], call: Call, attn: Attention, want: dict[str, Tensor]) -> None:
    leaves = call.with_(**{name: call[name].detach().clone().requires_grad_() for name in required})
    out = leaves.run(attn)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = torch.autograd.grad((out * weight.to(out)).sum(), [leaves[name] for name in required])
    for name, got in zip(required, grads, strict=True):
        label = f"gradient by {name} if only {', '.join(required)} require one, {describe(call.mask)}"
        assert_close(got, want[name], label)


@check()
def randomness_untouched(subject: Subject) -> None:
    """Padded calls, backward passes and decode steps change neither torch's random state nor its modes."""
    shape = subject.shape(N)
    attn, call = subject.make(shape), subject.draw(shape)
    for mask in subject.masks(shape):
        with keep_global_state(f"a call, {describe(mask)},"):
            call.under(mask).run(attn)
        if subject.traits.gradient:
            with keep_global_state(f"a backward pass, {describe(mask)},"):
                call.under(mask).gradients(attn)
    if subject.traits.decode:
        state = attn.init_state(2, N, subject.dtype, subject.device)
        with keep_global_state("a decode step"):
            call.both(slice(0, 1)).step(attn, state)


@check()
def int32_lengths(subject: Subject) -> None:
    """Lengths of any integer type give the same result."""
    shape = subject.shape(N)
    attn, call = subject.make(shape), subject.draw(shape)
    fields = {"query_lengths": subject.lengths(N, 40)}
    if subject.traits.padding:
        fields["key_lengths"] = subject.lengths(N - 3, 20)
    masks = [(subject.mask(**fields), call)]
    if "cu_seqlens" in attn.known_mask_fields:
        masks.append((subject.mask(cu_seqlens=subject.lengths(0, 30, N)), call.change(lambda x: x[:1])))
    for mask, masked_call in masks:
        want = masked_call.under(mask).run(attn)
        for dtype in (torch.int32, torch.int16):
            lengths = {f: getattr(mask, f).to(dtype) for f in mask.used - {"causal"}}
            got = masked_call.under(replace(mask, **lengths)).run(attn)
            subject.assert_alike(got, want, f"lengths as {dtype}, {describe(mask)}")


def _results(subject: Subject, attn: Attention, call: Call) -> dict[str, Tensor]:
    """The outputs of a call and of two decode steps, and the gradients, as far as the traits declare them."""
    out, grads = subject.evaluate(call, attn)
    results = {"output": out, **{f"gradient by {name}": grad for name, grad in grads.items()}}
    if subject.traits.decode:
        state = attn.init_state(2, N, subject.dtype, subject.device)
        results |= {f"step {at.start}": out for at, out, _ in call.steps(attn, state, (1, 1))}
    return results


def _assert_all_close(got: dict[str, Tensor], want: dict[str, Tensor], label: str) -> None:
    for name, expected in want.items():
        assert_close(got[name], expected, f"{name} {label}")


@check()
def threads(subject: Subject) -> None:
    """Results are the same with two torch threads, in another Python thread, and in two that share an instance."""
    shape = subject.shape(N)
    attn, calls = subject.make(shape), [subject.draw(shape, seed=seed) for seed in range(2)]
    want = [_results(subject, attn, call) for call in calls]
    with use_threads(2):
        _assert_all_close(_results(subject, attn, calls[0]), want[0], "with two torch threads")
    with ThreadPoolExecutor(2) as pool:
        _assert_all_close(pool.submit(_results, subject, attn, calls[0]).result(), want[0], "in another thread")
        submitted = [(i, pool.submit(_results, subject, attn, calls[i])) for i in (0, 1) * CALLS_PER_INPUT]
        for i, future in submitted:
            label = f"of input {i}, while another thread calls the same instance"
            _assert_all_close(future.result(), want[i], label)


@check()
def instances_apart(subject: Subject) -> None:
    """Instances with different options, seeds and widths in one process do not affect each other."""
    shape, wide = subject.shape(N), subject.shape(N, head_dim=16, value_dim=16)
    others = [(f"options {other.label}", other, shape, 0) for other in other_instances(subject)]
    others += [("another seed", subject, shape, 1), ("another width", subject, wide, 0)]
    for mask in subject.plain_masks:
        calls = {sizes: subject.draw(sizes, mask=mask) for sizes in (shape, wide)}
        with torch.no_grad():
            want = calls[shape].run(subject.oracle(shape))
            for label, other, sizes, seed in others:
                other_want = calls[sizes].run(other.oracle(sizes, seed=seed))
                for _ in range(2):
                    got = calls[sizes].run(other.make(sizes, seed=seed))
                    assert_close(got, other_want, f"an instance of {label} in the same process, {describe(mask)}")
                    got = calls[shape].run(subject.make(shape))
                    assert_close(got, want, f"after an instance of {label}, {describe(mask)}")


def _no_autocast(subject: Subject) -> str | None:
    if subject.dtype not in (torch.float64, torch.float32):
        return "autocast applies to float32"
    return subject.attn.why_not_dtype(torch.bfloat16)


@check(skip_reason=_no_autocast)
def autocast(subject: Subject) -> None:
    """Under torch.autocast, outputs and gradients equal the reference within the tolerance of bfloat16."""
    shape, device = subject.shape(N), torch.device(subject.device).type
    for mask in subject.masks(shape):
        # bfloat16 represents these inputs exactly, so that hashes and signs do not change
        call = subject.draw(shape, mask=mask, dtype=torch.float32).change(lambda x: x.bfloat16().float())
        attn, label = subject.make(shape, dtype=torch.float32), f"under autocast, {describe(mask)}"
        exact, truth = call.change(lambda x: x.double()), subject.truth(shape, torch.float32)
        with torch.autocast(device, dtype=torch.bfloat16):
            out, grads = subject.evaluate(call, attn)
        want, want_grads = subject.evaluate(exact, truth)
        assert_close(out.double(), want, label, tolerance=TOLERANCES[torch.bfloat16])
        for name, grad in grads.items():
            tolerance = GRADIENT_TOLERANCES[torch.bfloat16]
            assert_close(grad.double(), want_grads[name], f"gradient by {name} {label}", tolerance=tolerance)
