"""Parameters: gradients where only some tensors require one, updates in place, later loads, other dtypes, copies."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ...contract.mechanism import Attention
from ...contract.shapes import Shape
from ..check import check
from ..mechanism_call import Call
from ..sequence_decoding import step_tolerance
from ..subject import Subject
from ..tensor_comparison import TOLERANCES, assert_all_close, assert_close, describe, find_largest_value
from .side_effects import evaluate_all, run_two_steps

N = 33
LOADED = 130  # positions, more than a bucket or block, whose random numbers a state dict has
CACHED = "compute nothing from parameters or buffers that outlives a call"  # the remedy of most failures


def _no_parameters(subject: Subject) -> str | None:
    return None if any(True for _ in subject.attn.parameters()) else "it has no parameters"


def _nothing_stored(subject: Subject) -> str | None:
    stored = any(True for _ in (*subject.attn.parameters(), *subject.attn.buffers()))
    return None if stored else "it has neither parameters nor buffers"


def _backends(subject: Subject) -> tuple[str | None, ...]:
    return subject.backends_for(subject.dtype) or (None,)  # None: the reference, if there is no other


def _serve(subject: Subject, attn: Attention, call: Call) -> None:
    """Run a call, with and without gradients, and decode steps, after which an instance could have cached anything."""
    same_dtype = replace(subject, dtype=call["q"].dtype)
    with torch.no_grad():
        call.run(attn)
        run_two_steps(same_dtype, attn, call)
    evaluate_all(same_dtype, attn, call)


@torch.no_grad()
def _update(attn: Attention, seed: int, *, versions: bool = True, sign: int = 1) -> None:
    """Change all parameters in place, as an optimizer does. versions: increment their version counters. sign: what they
    are multiplied by first."""
    generator = torch.Generator().manual_seed(seed)
    for p in attn.parameters():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
        (p if versions else p.data).mul_(sign).add_(noise * (p.abs().mean() + 0.1) / 3)


@torch.no_grad()
def _make_reference(subject: Subject, shape: Shape, attn: Attention, seed: int = 0) -> Attention:
    """A new reference with the parameters of an instance, and everything else from a seed."""
    reference, parameters = subject.oracle(shape, seed=seed), dict(attn.named_parameters())
    for name, x in reference.named_parameters():
        x.copy_(parameters[name])
    return reference


def _assert_equal(subject: Subject, attn: Attention, reference: Attention, calls: Iterable[Call], label: str) -> None:
    """Compare outputs, gradients and decode steps with those of a reference that has served no calls."""
    for call in calls:
        text = f"{label}, {attn.backend}, {describe(call.mask)}; {CACHED}"
        want = subject.evaluate(call, reference)
        with torch.no_grad():
            assert_close(call.run(attn), want["output"], f"output without gradients, {text}")
            steps = run_two_steps(subject, attn, call)
        got = evaluate_all(subject, attn, call)
        assert_all_close(got, want, text)
        for at in range(2) if subject.traits.decode and call.mask.causal else ():
            row, tolerance = want["output"][:, :, at : at + 1], step_tolerance(subject, call["q"].dtype)
            for results, mode in ((got, "with gradients"), (steps, "without gradients")):
                assert_close(results[f"step {at}"], row, f"step {at} {mode}, {text}", tolerance=tolerance)


def _differentiate(out: Tensor, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out)
    return torch.autograd.grad((out * weight).sum(), tuple(tensors), allow_unused=True, materialize_grads=True)


@check(needs="gradient", skip_reason=_no_parameters)
def parameter_gradients(subject: Subject) -> None:
    """The gradient by a parameter is the same if only that parameter requires one, and those by inputs if no parameter
    does."""
    attn, drawn = subject.prepare(N)
    for backend in _backends(subject):
        attn.backend = backend or attn.backend
        for call in subject.under_masks(drawn):
            label = f"{attn.backend}, {describe(call.mask)}"
            attn.requires_grad_(True)
            _, want = call.gradients(attn)
            attn.requires_grad_(False)
            out, got = call.leaves().gradients(attn)
            for name in got:
                text = f"gradient by {name} if no parameter requires one, {label}"
                assert_close(got[name], want[name], text, summed=find_largest_value(want.values()))
            for name, p in attn.named_parameters():
                p.requires_grad_(True)
                out = call.run(attn)
                assert out.requires_grad, (
                    f"the output has no graph if only the parameter {name} requires a gradient, {label}; "
                    "decide by torch.is_grad_enabled(), not by the inputs"
                )
                text = f"gradient by {name} if nothing else requires one, {label}"
                (gradient,) = _differentiate(out, [p])
                assert_close(gradient, want[name], text)
                p.requires_grad_(False)


@check(skip_reason=_no_parameters)
def updated_parameters(subject: Subject) -> None:
    """After parameters change in place, as in an optimizer's step, outputs, gradients and decode steps follow."""
    shape = subject.shape(N)
    calls = [*map(subject.draw(shape).under, subject.plain_masks)]
    for backend in _backends(subject):
        for mode in (True, False):
            attn = subject.make(shape, backend=backend).train(mode)
            _serve(subject, attn, calls[-1])
            # a cache of the first calls survives only changes without a version, which come first in one mode
            for step, (versions, sign) in enumerate(((mode, 1), (not mode, 1), (True, -1))):
                _update(attn, step, versions=versions, sign=sign)
                reference = _make_reference(subject, shape, attn)
                if sign < 0 and not torch.isfinite(calls[-1].run(reference)).all():
                    continue  # they have one sign
                how = "in place" if versions else "in place through .data"
                how += ", with other signs" * (sign < 0) + f", in {'training' if mode else 'evaluation'} mode"
                _assert_equal(subject, attn, reference, calls, f"after parameters changed {how}")
    for dtype in subject.dtypes:
        if dtype.itemsize < 4:
            _check_half_updates(subject, shape, calls[-1].change(lambda x, dtype=dtype: x.to(dtype)))


@torch.no_grad()
def _check_half_updates(subject: Subject, shape: Shape, call: Call) -> None:
    """Compare outputs in half precision with the reference before and after parameters change."""
    dtype = call["q"].dtype
    attn = subject.make(shape, dtype=dtype)
    for step in range(2):
        want = call.change(Tensor.double).run(_make_reference(subject, shape, attn).double())
        label = f"output in {dtype} without gradients, after {step} changes of parameters in place; {CACHED}"
        assert_close(call.run(attn), want, label, tolerance=TOLERANCES[dtype])
        _update(attn, step)


@check(skip_reason=_nothing_stored)
def later_loads(subject: Subject) -> None:
    """`load_state_dict` and `.to(dtype)` take effect in an instance that has already served calls."""
    shape = subject.shape(LOADED)
    calls = [*map(subject.draw(shape).under, subject.plain_masks)]
    other_dtype = torch.float32 if subject.dtype == torch.float64 else torch.float64
    for backend in _backends(subject):
        for assign in (False, True):
            attn = subject.make(shape, backend=backend).train(not assign)
            _serve(subject, attn, calls[-1])
            other = subject.make(shape, seed=1)
            _update(other, 3)
            reference = _make_reference(subject, shape, other, seed=1)
            attn.load_state_dict(other.state_dict(), assign=assign)
            mode = "evaluation" if assign else "training"
            label = f"after load_state_dict(.., assign={assign}) into an instance that has served calls in {mode} mode"
            _assert_equal(subject, attn, reference, calls[-1:], label)
        if backend is None or backend in subject.backends_for(other_dtype):
            attn = subject.make(shape, backend=backend, dtype=other_dtype)
            _serve(subject, attn, calls[-1].change(lambda x: x.to(other_dtype)))
            label = f"after calls in {other_dtype} and .to({subject.dtype})"
            reference = subject.oracle(shape, dtype=other_dtype).to(subject.dtype)
            _assert_equal(subject, attn.to(subject.dtype), reference, calls[-1:], label)


@check(skip_reason=_no_parameters)
def copies_train_apart(subject: Subject) -> None:
    """A deep copy of an instance that has served calls has parameters of its own, and trains independently."""
    shape = subject.shape(N)
    attn, call = subject.make(shape), subject.draw(shape)
    _serve(subject, attn, call)
    copied = copy.deepcopy(attn)
    assert copied is not attn, "copy.deepcopy returns the instance itself; remove __deepcopy__"
    storages = {p.untyped_storage().data_ptr(): name for name, p in attn.named_parameters()}
    for name, p in copied.named_parameters():
        original = storages.get(p.untyped_storage().data_ptr())
        assert original is None, f"copy.deepcopy: parameter {name} shares its memory with the original's {original}"
    with torch.no_grad():
        want = call.run(attn)
        _update(copied, 2)
        subject.assert_alike(call.run(attn), want, "the original after its copy's parameters changed")
    reference = _make_reference(subject, shape, copied)
    _assert_equal(subject, copied, reference, [call], "a copy after its parameters changed")
