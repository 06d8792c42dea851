"""Results do not depend on torch's settings, and are the same under torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ...errors import UnsupportedError
from ..check import check
from ..subject import Subject
from ..tensor_comparison import assert_all_close, describe
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


@check(skip_reason=lambda s: "its calls are compiled anyway" if s.attn.compiles else None)
def compiled(subject: Subject) -> str | None:
    """torch.compile gives the results of eager calls: with gradients for one length, and without for another, for which
    it compiles a form for all lengths. Graph breaks are allowed."""
    torch.compiler.reset()
    attn = subject.make(subject.shape(LENGTHS[-1]))
    compiled_attn: Any = torch.compile(attn, backend="aot_eager")
    try:
        for n, graph in zip(LENGTHS, (True, False), strict=True):
            call = subject.draw(subject.shape(n))
            with torch.set_grad_enabled(graph):
                want = subject.evaluate(call, attn, gradients=graph)
                got = subject.evaluate(call, attn, gradients=graph, run=lambda call, _: call.run(compiled_attn))
            assert_all_close(got, want, f"compiled, N={n}, after N={LENGTHS[0]}" if n > LENGTHS[0] else "compiled")
    except UnsupportedError as error:
        return f"torch.compile: {error}"
    finally:
        torch.compiler.reset()
    return None
