"""Results do not depend on torch's settings, and are right or refused under torch.compile and torch.func."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ...errors import UnsupportedError
from ..check import check
from ..mechanism_call import Call
from ..subject import Subject
from ..tensor_comparison import assert_all_close, assert_close, describe
from .backward import draw_weight
from .side_effects import evaluate_all

N = 33
LENGTHS = (19, 24)  # of calls of one compiled instance, the second of which has symbolic sizes
TORCH_REFUSES = re.compile(r"deterministic", re.I)


@contextmanager
def _use_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _use_deterministic_algorithms() -> Iterator[None]:
    """Also fills new memory with NaN, so that reading it before writing shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch._C._set_deterministic_algorithms(
        True
    )  # torch.use_deterministic_algorithms imports the compiler, for a second
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before)


@check()
def torch_settings(subject: Subject) -> None:
    """An instance made and called under another default dtype, or with deterministic algorithms, gives the results that
    it gives without."""
    single = torch.float32 if torch.float32 in subject.dtypes else subject.dtype
    for label, use, dtype in (
        ("a default dtype of float64; name the dtype of each new tensor", torch.float64, single),
        ("a default dtype of bfloat16; name the dtype of each new tensor", torch.bfloat16, subject.dtype),
        ("torch.use_deterministic_algorithms(True)", None, subject.dtype),
    ):
        use_setting = partial(_use_default_dtype, use) if use else _use_deterministic_algorithms
        other = replace(subject, dtype=dtype)
        shape, drawn = other.shape(N), other.draw(other.shape(N))
        with use_setting():
            attn = other.make(shape)
        plain = other.make(shape)
        plain.load_state_dict(attn.state_dict())
        for call in map(drawn.under, other.plain_masks):
            want = evaluate_all(other, plain, call)
            try:
                with use_setting():
                    got = evaluate_all(other, attn, call)
            except RuntimeError as error:
                if use is None and TORCH_REFUSES.search(str(error)):
                    continue  # torch has no such form of an operator
                raise
            assert_all_close(got, want, f"{dtype}, {describe(call.mask)}, under {label}")


@check()
def parameters_as_inputs(subject: Subject) -> None:
    """Inputs that are an nn.Parameter give a plain tensor, and do not become parameters of the mechanism."""
    attn, drawn = subject.prepare(N)
    names = [name for name, _ in attn.named_parameters()]
    for call in map(drawn.under, subject.plain_masks):
        with torch.no_grad():
            want = call.run(attn)
            got = call.change(partial(nn.Parameter, requires_grad=subject.traits.gradient)).run(attn)
        assert type(got) is Tensor, f"inputs of type nn.Parameter give a {type(got).__name__}, expected a torch.Tensor"
        assert_close(got, want, f"inputs of type nn.Parameter, {describe(call.mask)}")
        found = [name for name, _ in attn.named_parameters()]
        assert found == names, f"after a call with an nn.Parameter, its parameters are {found}, before {names}"


def _unique(call: Call) -> dict[str, Tensor]:
    return dict({id(x): (name, x) for name, x in call.tensors.items()}.values())


def _try(run: Callable[[], dict[str, Tensor]], want: dict[str, Tensor], label: str) -> str | None:
    """Compare results; return a sentence if torch or the mechanism refuses the call with an error."""
    try:
        got = run()
    except (RuntimeError, ValueError) as error:
        return f"{label}: {str(error).strip().partition(chr(10))[0][:100]}"
    assert_all_close(got, want, label)
    return None


@check()
def torch_func(subject: Subject) -> str | None:
    """torch.func.vmap over another dimension, and per-sample gradients by vmap of torch.func.grad, are right or raise
    an error."""
    attn, drawn = subject.prepare(N)
    refusals = []
    for call in map(drawn.under, subject.plain_masks):
        tensors, stacked = _unique(call), [torch.stack([x, x.flip(2)]) for x in _unique(call).values()]

        def run(*values: Tensor, call: Call = call, names: tuple[str, ...] = tuple(tensors)) -> Tensor:
            return call.with_(**dict(zip(names, values, strict=True))).run(attn)

        with torch.no_grad():
            want = {"output": torch.stack([run(*(x[i] for x in stacked)) for i in (0, 1)])}
            label = f"torch.func.vmap, {describe(call.mask)}"
            refusals.append(_try(lambda run=run, xs=stacked: {"output": torch.func.vmap(run)(*xs)}, want, label))
        if not subject.traits.gradient:
            continue
        weight, want = draw_weight(want["output"][0]), call.gradients(attn)[1]

        def loss(w: Tensor, *values: Tensor, run: Callable[..., Tensor] = run) -> Tensor:
            return (run(*(x[None] for x in values))[0] * w).sum()

        each = torch.func.vmap(torch.func.grad(loss, argnums=tuple(range(1, len(tensors) + 1))))
        label = f"vmap of torch.func.grad over the batch, {describe(call.mask)}"
        refusals.append(
            _try(
                lambda each=each, w=weight, xs=tensors: dict(zip(xs, each(w, *xs.values()), strict=True)),
                {name: want[name] for name in tensors},
                f"gradients, {label}",
            )
        )
    return "; ".join(filter(None, refusals)) or None


def _compiles_itself(subject: Subject) -> str | None:
    return "its calls are compiled anyway" if subject.attn.compiles else None


@check(skip_reason=_compiles_itself)
def compiled(subject: Subject) -> str | None:
    """torch.compile gives the results of eager calls: with gradients for one length, and without for another, for which
    it compiles a form for all lengths. Graph breaks are allowed."""
    torch.compiler.reset()
    attn = subject.make(subject.shape(LENGTHS[-1]))
    compiled_attn = torch.compile(attn, backend="aot_eager")
    try:
        for n, graph in zip(LENGTHS, (True, False), strict=True):
            call = subject.draw(subject.shape(n))
            with torch.set_grad_enabled(graph):
                want = subject.evaluate(call, attn, gradients=graph)
                got = subject.evaluate(call, attn, gradients=graph, run=lambda call, _: call.run(compiled_attn))
            assert_all_close(got, want, f"compiled, for N={n} after {LENGTHS[: LENGTHS.index(n)]}")
    except UnsupportedError as error:
        return f"torch.compile: {error}"
    finally:
        torch.compiler.reset()
    return None
