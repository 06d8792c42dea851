"""Results do not depend on torch's settings, and are right or refused under torch.compile and torch.func."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...contract.mechanism import Attention
from ...errors import UnsupportedError
from ..check import check
from ..mechanism_call import Call
from ..subject import Subject
from ..tensor_comparison import assert_all_close, assert_close, describe
from .backward import draw_weight
from .side_effects import evaluate_all

N = 33
LENGTHS = (19, 24)  # of calls of one compiled instance, the second of which has symbolic sizes


@contextmanager
def _use_setting(dtype: torch.dtype | None) -> Iterator[None]:
    """Another default dtype, or with None deterministic algorithms, which also fill new memory with NaN."""
    before, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    torch.set_default_dtype(dtype or before)
    if dtype is None:  # torch.use_deterministic_algorithms imports the compiler, which takes a second
        torch._C._set_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch._C._set_deterministic_algorithms(deterministic)


@check()
def torch_settings(subject: Subject) -> None:
    """Another default dtype, or deterministic algorithms, at creation and in calls change no results."""
    single = torch.float32 if torch.float32 in subject.dtypes else subject.dtype
    for setting, dtype in ((torch.float64, single), (torch.bfloat16, subject.dtype), (None, subject.dtype)):
        typed = replace(subject, dtype=dtype)
        shape = typed.shape(N)
        with _use_setting(setting):
            attn = typed.make(shape)
        plain = typed.make(shape)
        plain.load_state_dict(attn.state_dict())
        for call in map(typed.draw(shape).under, typed.plain_masks):
            label = f"{setting} as default dtype; name the dtype of each new tensor"
            label = f"{describe(call.mask)}, with {label if setting else 'deterministic algorithms'}"
            want = evaluate_all(typed, plain, call)
            try:
                with _use_setting(setting):
                    got = evaluate_all(typed, attn, call)
            except RuntimeError as error:
                if setting or "deterministic" not in str(error):  # some operators of torch have no such form
                    raise
            else:
                assert_all_close(got, want, f"{dtype}, {label}")


@check()
def parameters_as_inputs(subject: Subject) -> None:
    """Inputs that are an nn.Parameter give a plain tensor, and do not become parameters of the mechanism."""
    attn, call = subject.prepare(N)
    names, label = list(attn.state_dict()), "with inputs of type nn.Parameter"
    with torch.no_grad():
        got = call.change(partial(nn.Parameter, requires_grad=subject.traits.gradient)).run(attn)
        assert_close(got, call.run(attn), f"output {label}")
    assert type(got) is Tensor, f"output {label}: a {type(got).__name__}, expected a torch.Tensor"
    assert list(attn.state_dict()) == names, f"a call {label} adds some of them to the state dict; store no inputs"


@check()
def torch_func(subject: Subject) -> str | None:
    """torch.func.vmap over another dimension, and per-sample gradients by vmap of torch.func.grad, are right or raise
    an error."""
    attn, drawn = subject.prepare(N)
    tensors, refusals = dict({id(x): (name, x) for name, x in drawn.tensors.items()}.values()), []
    pairs = [torch.stack([x, x.flip(2)]) for x in tensors.values()]
    for call in map(drawn.under, subject.plain_masks):

        def run(*values: Tensor, call: Call = call) -> Tensor:
            return call.with_(**dict(zip(tensors, values, strict=True))).run(attn)

        def loss(weight: Tensor, *values: Tensor) -> Tensor:
            return (run(*(x[None] for x in values))[0] * weight).sum()

        with torch.no_grad():
            want = {"output": torch.stack([run(*(x[i] for x in pairs)) for i in (0, 1)])}
        cases: list[tuple[str, Callable[..., Any], list[Tensor], dict[str, Tensor]]] = [("vmap", run, pairs, want)]
        if subject.traits.gradient:
            _, grads = call.gradients(attn)
            each = torch.func.grad(loss, argnums=tuple(range(1, len(tensors) + 1)))
            arguments = [draw_weight(call.run(attn)), *tensors.values()]
            cases.append(("vmap of torch.func.grad", each, arguments, {name: grads[name] for name in tensors}))
        for label, function, values, expected in cases:
            try:
                with torch.set_grad_enabled(label != "vmap"), warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "There is a performance drop")  # of operators without a vmap rule
                    got = torch.func.vmap(function)(*values)
            except (RuntimeError, ValueError) as error:
                refusals.append(f"torch.func.{label}: {str(error).strip().splitlines()[:1]}")
                continue
            named = dict(zip(expected, (got,) if isinstance(got, Tensor) else got, strict=True))
            assert_all_close(named, expected, f"torch.func.{label}, {describe(call.mask)}")
    return "; ".join(refusals) or None


@check(skip_reason=lambda s: "its calls are compiled anyway" if s.attn.compiles else None)
def compiled(subject: Subject) -> str | None:
    """torch.compile gives the results of eager calls: with gradients for one length, and without for another, for which
    it compiles a form for all lengths. Graph breaks are allowed. If the subject is thorough, also with inductor."""
    for compiler in ("aot_eager", "inductor") if subject.thorough else ("aot_eager",):
        torch.compiler.reset()
        attn = subject.make(subject.shape(LENGTHS[-1]))
        compiled_attn: Any = torch.compile(attn, backend=compiler)

        def run(call: Call, _: Attention, compiled_attn: Any = compiled_attn) -> Tensor:
            return call.run(compiled_attn)

        try:
            for n, graph in zip(LENGTHS, (True, False), strict=True):
                call = subject.draw(subject.shape(n))
                with torch.set_grad_enabled(graph):
                    want = subject.evaluate(call, attn, gradients=graph)
                    got = subject.evaluate(call, attn, gradients=graph, run=run)
                label = f"compiled by {compiler}, N={n}" + f", after N={LENGTHS[0]}" * (n > LENGTHS[0])
                assert_all_close(got, want, label)
        except UnsupportedError as error:
            return f"torch.compile: {error}"
        finally:
            torch.compiler.reset()
    return None
