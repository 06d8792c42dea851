"""The context of a call: modes, threads, integer types, other instances. None of it changes the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ..check import check
from ..probing import other_instances
from ..subject import Call, Subject
from ..tensor_comparison import EPSILONS, SLOPES, assert_close, assert_same, describe

N = 71
TURNS = 6  # of two threads on one instance


@check()
def modes(subject: Subject) -> None:
    """train() and eval(), no_grad, inference_mode and a graph give the same result, in any order."""
    shape = subject.shape(N)
    for mask in subject.masks(shape):
        call, attn = subject.draw(shape, mask=mask), subject.make(shape)
        with torch.inference_mode():  # first: what it caches must also work in a backward pass
            inferred = call.run(attn)
        with torch.no_grad():
            want = call.run(attn.train())
            subject.assert_alike(call.run(attn.eval()), want, f"after eval(), {describe(mask)}")
        subject.assert_alike(inferred, want, f"under inference_mode, {describe(mask)}")
        if subject.traits.gradient:
            slopes = {}
            for mode in (attn.train, attn.eval):
                out, slopes[mode.__name__] = call.gradients(mode())
                assert_close(out, want, f"on a graph after {mode.__name__}(), {describe(mask)}")
            for name, slope in slopes["train"].items():
                assert_close(slopes["eval"][name], slope, f"gradient by {name} after eval(), {describe(mask)}")
        if subject.traits.decode and mask.used == {"causal"} and mask.causal:
            for mode in (attn.train, attn.eval):
                state = mode().init_state(2, N, subject.dtype, subject.device)
                with torch.inference_mode():
                    for t in range(3):
                        out, state = call.both(slice(t, t + 1)).step(attn, state)
                        assert_close(out, want[:, :, t : t + 1], f"step {t} after {mode.__name__}()")


def _no_autocast(subject: Subject) -> str | None:
    if subject.dtype not in (torch.float64, torch.float32):
        return "autocast is for float32"
    return subject.attn.why_not_dtype(torch.bfloat16)


@check(ask=_no_autocast)
def autocast(subject: Subject) -> None:
    """Under torch.autocast to bfloat16 calls and backward passes run, within bfloat16's tolerance of the reference."""
    shape, kind = subject.shape(N), torch.device(subject.device).type
    for mask in subject.masks(shape):
        # inputs that bfloat16 represents exactly, so that hashes, signs and ill-conditioned parts stay the same
        call = subject.draw(shape, mask=mask, dtype=torch.float32).change(lambda x: x.bfloat16().float())
        attn, label = subject.make(shape, dtype=torch.float32), f"under autocast, {describe(mask)}"
        exact, truth = call.change(lambda x: x.double()), subject.truth(shape, torch.float32)
        with torch.autocast(kind, dtype=torch.bfloat16):
            if subject.traits.gradient:
                out, grads = call.gradients(attn)
            else:
                out, grads = call.run(attn), {}
        want, slopes = exact.gradients(truth) if subject.traits.gradient else (exact.run(truth), {})
        assert_close(out.double(), want, label, tolerance=EPSILONS[torch.bfloat16])
        for name, grad in grads.items():
            assert_close(grad.double(), slopes[name], f"gradient by {name} {label}", tolerance=SLOPES[torch.bfloat16])


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _results(subject: Subject, attn: Attention, call: Call) -> dict[str, Tensor]:
    """The output, that of two steps and, where there are, the gradients."""
    stepped = {}
    if subject.traits.decode:
        state = attn.init_state(2, N, subject.dtype, subject.device)
        for t in range(2):
            stepped[f"step {t}"], state = call.both(slice(t, t + 1)).step(attn, state)
    if not subject.traits.gradient:
        return {"output": call.run(attn), **stepped}
    out, grads = call.gradients(attn)
    return {"output": out, **stepped, **{f"gradient by {name}": grad for name, grad in grads.items()}}


def _hold(got: dict[str, Tensor], want: dict[str, Tensor], where: str) -> None:
    for name, right in want.items():
        assert_close(got[name], right, f"{name} {where}")


@check()
def threads(subject: Subject) -> None:
    """Two torch threads, another Python thread, and two of them on one instance give the result of one."""
    shape = subject.shape(N)
    attn, calls = subject.make(shape), [subject.draw(shape, seed=seed) for seed in range(2)]
    want = [_results(subject, attn, call) for call in calls]
    with _threads(2):
        _hold(_results(subject, attn, calls[0]), want[0], "with two torch threads")
    with ThreadPoolExecutor(2) as pool:
        _hold(pool.submit(_results, subject, attn, calls[0]).result(), want[0], "in another thread")
        asked = [(which, pool.submit(_results, subject, attn, calls[which])) for _ in range(TURNS) for which in (0, 1)]
        for which, outputs in asked:
            _hold(outputs.result(), want[which], f"of input {which}, while another thread calls the same instance")


@check()
def int32_lengths(subject: Subject) -> None:
    """Lengths may come in any integer type."""
    shape = subject.shape(N)
    attn, call = subject.make(shape), subject.draw(shape)
    fields = {"query_lengths": subject.lengths(N, 40)}
    if subject.traits.padding:
        fields["key_lengths"] = subject.lengths(N - 3, 20)
    masks = [(subject.mask(**fields), call)]
    if "cu_seqlens" in attn.known_mask_fields:
        masks.append((subject.mask(cu_seqlens=subject.lengths(0, 30, N)), call.change(lambda x: x[:1])))
    for mask, some in masks:
        want = some.under(mask).run(attn)
        for dtype in (torch.int32, torch.int16):
            lengths = {f: getattr(mask, f).to(dtype) for f in mask.used - {"causal"}}
            got = some.under(replace(mask, **lengths)).run(attn)
            subject.assert_alike(got, want, f"lengths as {dtype}, {describe(mask)}")


@check()
def randomness_untouched(subject: Subject) -> None:
    """Padded calls, backward passes and steps do not change torch's random state, or any mode."""
    shape = subject.shape(N)
    attn, call = subject.make(shape), subject.draw(shape)
    actions: list[tuple[str, Callable[[], Any]]] = []
    for mask in subject.masks(shape):
        masked_call = call.under(mask)
        actions.append((f"a call, {describe(mask)}", lambda masked_call=masked_call: masked_call.run(attn)))
        if subject.traits.gradient:
            actions.append(
                (f"a backward pass, {describe(mask)}", lambda masked_call=masked_call: masked_call.gradients(attn))
            )
    if subject.traits.decode:
        state = attn.init_state(2, N, subject.dtype, subject.device)
        actions.append(("a step", lambda: call.both(slice(0, 1)).step(attn, state)))

    def world() -> tuple[object, ...]:
        return (
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_inference_mode_enabled(),
        )

    for action, act in actions:
        drawn, before = torch.get_rng_state(), world()
        act()
        assert torch.equal(torch.get_rng_state(), drawn), f"{action} changed torch's random state"
        assert world() == before, f"{action} changed torch's gradient mode, threads or default dtype"


@check()
def instances_apart(subject: Subject) -> str | None:
    """Instances with other options, seeds and widths in one process do not affect each other."""
    shape, wide = subject.shape(N), subject.shape(N, head_dim=16, value_dim=16)
    others = [(f"options {other.label}", other, shape, 0) for other in other_instances(subject)]
    others += [("another seed", subject, shape, 1), ("another width", subject, wide, 0)]
    for causal in subject.causalities:
        mask = Mask(causal=causal)
        call, broad = subject.draw(shape, mask=mask), subject.draw(wide, mask=mask)
        with torch.no_grad():
            want = call.run(subject.oracle(shape))
            for label, other, sizes, seed in others:
                theirs = broad if sizes is wide else call
                right = theirs.run(other.oracle(sizes, seed=seed))
                for _ in range(2):
                    got = theirs.run(other.make(sizes, seed=seed))
                    assert_close(got, right, f"an instance of {label} in the same process, {describe(mask)}")
                    assert_close(call.run(subject.make(shape)), want, f"after an instance of {label}, {describe(mask)}")
    return None


@check(needs="gradient")
def some_gradients(subject: Subject) -> None:
    """Inputs that require a gradient get the same one whether or not others require it."""
    for kv_heads in {subject.heads, 2 if subject.traits.grouped else subject.heads}:
        shape = subject.shape(N, kv_heads=kv_heads)
        attn = subject.make(shape)
        for causal in subject.causalities:
            call = subject.draw(shape, mask=Mask(causal=causal))
            _, want = call.gradients(attn)
            names = list({id(x): name for name, x in call.tensors.items()}.values())
            for some in chain.from_iterable(combinations(names, size) for size in range(1, len(names))):
                _only(call, attn, some, want)


def _only(call: Call, attn: Attention, some: tuple[str, ...], want: dict[str, Tensor]) -> None:
    leaves = call.with_(**{name: call[name].detach().clone().requires_grad_() for name in some})
    out = leaves.run(attn)
    drawn = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = torch.autograd.grad((out * drawn.to(out)).sum(), [leaves[name] for name in some])
    for name, got in zip(some, grads, strict=True):
        label = f"gradient of {name} if only {', '.join(some)} require one, {describe(call.mask)}"
        assert_close(got, want[name], label)


@check(needs="deterministic")
def repeats(subject: Subject) -> None:
    """A call and its backward pass, repeated, give the same bits."""
    for n in (N, 300):
        shape = subject.shape(n)
        attn = subject.make(shape)
        for mask in [Mask(causal=causal) for causal in subject.causalities]:
            call = subject.draw(shape, mask=mask)
            want = _results(subject, attn, call)
            for _ in range(2):
                for name, got in _results(subject, attn, call).items():
                    assert_same(got, want[name], f"{name} of a repeated call, N={n}, {describe(mask)}")


CHECKS = (
    modes,
    repeats,
    some_gradients,
    randomness_untouched,
    int32_lengths,
    threads,
    instances_apart,
    autocast,
)
