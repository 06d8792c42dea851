"""The backward pass: second derivatives, incoming gradients of every kind, checkpointing, and inputs changed later."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...errors import UnsupportedError
from ..check import check
from ..mechanism_call import Call, Run
from ..subject import Subject
from ..tensor_comparison import assert_all_close, describe, find_largest_value

N = 33
UNUSED: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
REFUSALS = re.compile(r"second derivative|differentiate twice|double.backward|derivative .* not implemented", re.I)


# incoming gradients, made of a random one, and the scale to which the resulting gradients are proportional
INCOMING: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "of size 1e-8": (lambda w: w * 1e-8, 1e-8),
    "of size 1e6": (lambda w: w * 1e6, 1e6),
    "in one row only": (lambda w: w * (torch.arange(N, device=w.device) == N // 2)[:, None], 1.0),
    "in the first head only": (lambda w: w * (torch.arange(w.shape[1], device=w.device) == 0)[:, None, None], 1.0),
    "expanded from one number, as of out.sum()": (lambda w: w.new_ones(()).expand(w.shape), 1.0),
    "transposed in memory": (lambda w: w.mT.contiguous().mT, 1.0),
}


def _half(subject: Subject) -> str | None:
    return "half precision cannot represent these numbers" if subject.dtype.itemsize < 4 else None


def list_sources(call: Call, attn: Attention) -> dict[str, Tensor]:
    """The tensors and parameters that require a gradient, by name; a tensor that is used twice once."""
    named = (*call.tensors.items(), *attn.named_parameters())
    return dict({id(x): (name, x) for name, x in named if x.requires_grad}.values())


def draw_weight(out: Tensor) -> Tensor:
    """The random weights of an output's rows that `Call.gradients` uses."""
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out)


def _prepare(subject: Subject) -> Iterator[tuple[Attention, Call]]:
    attn, drawn = subject.prepare(N)
    yield from ((attn, drawn.under(mask)) for mask in subject.plain_masks)


def _differentiate_twice(attn: Attention, call: Call) -> dict[str, Tensor]:
    call = call.leaves()
    sources, out = list_sources(call, attn), call.run(attn)
    inputs = list(sources.values())
    first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True, **UNUSED)
    # with the output, because a graph that was cut must give wrong numbers here, as it does in training, and no error
    total = torch.stack([g.sin().sum() for g in first]).sum() + 0 * out.sum()
    return dict(zip(sources, torch.autograd.grad(total, inputs, **UNUSED), strict=True))


@check(needs="gradient", skip_reason=_half)
def second_derivatives(subject: Subject) -> str | None:
    """Second derivatives equal those of the reference, or raise an error: none is silently missing."""
    shape = subject.shape(9, batch=1)
    call, refusals = subject.draw(shape), dict[str, None]()
    for masked in map(call.under, subject.plain_masks):
        want = _differentiate_twice(subject.truth(shape, subject.dtype), masked.change(Tensor.double))
        for backend in subject.backends_for(subject.dtype):
            try:
                got = _differentiate_twice(subject.make(shape, backend=backend), masked)
            except RuntimeError as error:
                if not isinstance(error, UnsupportedError) and not REFUSALS.search(str(error)):
                    raise
                refusals[f"{backend} refuses second derivatives"] = None
                continue
            label = f"second derivative, {backend}, {describe(masked.mask)}; raise UnsupportedError if there is none"
            assert_all_close(got, want, label, dtype=subject.dtype)
    return "; ".join(refusals) or None


@check(needs="gradient", skip_reason=_half)
def incoming_gradients(subject: Subject) -> None:
    """Gradients are right for incoming gradients of any size and layout, and for those of some rows or heads only."""
    for attn, drawn in _prepare(subject):
        call, results = drawn.leaves(), []
        for instance in (attn, subject.oracle(subject.shape(N))):
            sources, out = list_sources(call, instance), call.run(instance)
            results.append({})
            for label, (change, scale) in INCOMING.items():
                incoming = change(draw_weight(out))
                grads = torch.autograd.grad(out, list(sources.values()), incoming, retain_graph=True, **UNUSED)
                named = zip(sources, grads, strict=True)
                results[-1] |= {f"gradient by {name}, for incoming ones {label}": x / scale for name, x in named}
        got, want = results
        assert_all_close(got, want, describe(call.mask), terms=find_largest_value(want.values()))


@check(needs="gradient")
def checkpointing(subject: Subject) -> None:
    """Gradients with torch.utils.checkpoint, which calls it twice, the first time without gradients, are the same."""
    for attn, call in _prepare(subject):
        _, want = call.gradients(attn)
        for reentrant in (False, True):
            leaves, instance = call.leaves(), subject.make(subject.shape(N))

            def run(*tensors: Tensor, call: Call = leaves, attn: Attention = instance) -> Tensor:
                return call.with_(**dict(zip(call.tensors, tensors, strict=True))).run(attn)

            out = checkpoint(run, *leaves.tensors.values(), use_reentrant=reentrant)
            (out * draw_weight(out)).sum().backward()  # reentrant checkpoints do not support torch.autograd.grad
            named = dict((*leaves.tensors.items(), *instance.named_parameters()))
            got = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in named.items()}
            label = f"gradient in a checkpoint with use_reentrant={reentrant}, {describe(call.mask)}"
            assert_all_close(got if not call.shares_qk else {**got, "q": got["k"]}, want, label)


def _changing(target: str) -> Run:
    """A forward pass, after which a tensor of the call, the output, or each parameter is changed in place."""

    def run(call: Call, attn: Attention) -> Tensor:
        fields = {f: getattr(call.mask, f).clone() for f in ("key_mask", "key_lengths") if f in call.mask.used}
        copies = call.change(torch.clone).under(replace(call.mask, **fields))
        out = copies.run(attn)
        changed = {**copies.tensors, **fields, "the output": out}
        with torch.no_grad():
            for x in attn.parameters() if target == "the parameters" else [changed[target]]:
                x.copy_(x * -2 if x.is_floating_point() else x.flip(0))
        return out

    return run


@check(needs="gradient")
def changed_before_backward(subject: Subject) -> None:
    """If a tensor changes in place before the backward pass, gradients are those of the call, or an error is raised."""
    shape = subject.shape(N)
    drawn = subject.draw(shape)
    fields = {"key_mask": subject.holes(shape), "key_lengths": subject.lengths(N, 20)} if subject.traits.padding else {}
    # rows with left padding may be copied, which hides what becomes of the tensors of a call without it
    for padding in (fields, {}) if fields and subject.attn.absolute else (fields,):
        _change_before_backward(subject, drawn.under(subject.mask(**padding)))


def _change_before_backward(subject: Subject, call: Call) -> None:
    shape, fields = subject.shape(N), [name for name in ("key_mask", "key_lengths") if name in call.mask.used]
    targets = [*{id(x): name for name, x in call.tensors.items()}.values(), *fields, "the output"]
    targets += ["the parameters"] * any(True for _ in subject.make(shape).parameters())
    _, want = call.gradients(subject.make(shape))
    for target in targets:
        try:
            _, got = call.gradients(subject.make(shape), run=_changing(target))
        except RuntimeError:  # torch's version check
            continue
        label = f"after {target} changed in place since the forward pass; keep tensors with ctx.save_for_backward"
        assert_all_close(got, want, f"gradient {label}, {describe(Mask(causal=call.mask.causal))}")
