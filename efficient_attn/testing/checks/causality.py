"""Future positions do not affect past ones, and a position has the same result in shorter and longer calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ...contract.mask import Mask
from ..check import check
from ..subject import Call, Subject
from ..tensor_comparison import assert_close, assert_zero, describe

CUTS = (1, 16, 64, 129, 256)  # lengths of the past: inside the kernels' chunks and on their borders


def _causal_calls(subject: Subject) -> Iterator[tuple[Call, int]]:
    """Yield causal calls, with the position of their first query."""
    for n, m in [(300, 300)] + [(130, 200)] * subject.traits.cross:
        shape = subject.shape(n, m)
        yield subject.draw(shape, mask=Mask(causal=True)), m - n


# contents of the future, to detect code that branches on their size, sign or equality
FUTURES: dict[str, Callable[[Tensor], Tensor]] = {
    "a hundred times larger": lambda x: 100 * x,
    "zero": lambda x: 0 * x,
    "redrawn": lambda x: x,
    "positive": lambda x: x.abs(),
    "negative": lambda x: -x.abs(),
    "all the same": lambda x: torch.ones_like(x),
    "tiny": lambda x: 1e-6 * x,
}


def _change_future(call: Call, row: int, start: int, kind: str) -> Call:
    """The same call with other contents from a row on."""
    generator = torch.Generator().manual_seed(row)

    def change(x: Tensor, first: int) -> Tensor:
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return torch.cat([x[:, :, :first], FUTURES[kind](noise).to(x)[:, :, first:]], 2)

    return call.change(partial(change, first=row), "query").change(partial(change, first=start + row), "key")


@check(needs="causal strictly_causal")
def causality(subject: Subject) -> None:
    """Past rows are equal bit for bit whatever the future contains, with and without gradients."""
    for call, start in _causal_calls(subject):
        n, m = call["q"].shape[2], call["k"].shape[2]
        attn = subject.make(subject.shape(n, m))
        for graph in (False, True) if subject.traits.gradient else (False,):
            with torch.set_grad_enabled(graph):
                want = (call.leaves() if graph else call).run(attn)
                kinds = itertools.cycle(FUTURES)
                cuts = [c for c in CUTS if c < n] if graph else [c for c in CUTS if c < n] + [65] * len(FUTURES)
                for row, kind in zip(cuts, kinds, strict=False):
                    changed = _change_future(call, row, start, kind)
                    got = (changed.leaves() if graph else changed).run(attn)
                    label = f"rows before {row} after the future became {kind}, N={n}, M={m}"
                    label = f"{label}, {'with' if graph else 'without'} gradients"
                    subject.assert_alike(got[:, :, :row], want[:, :, :row], label)


@check(needs="causal strictly_causal")
def causality_in_dtypes(subject: Subject) -> None:
    """In every dtype, past rows are equal bit for bit whatever the future contains."""
    for dtype in subject.dtypes[1:] or subject.dtypes:
        shape = subject.shape(70)
        attn, call = subject.make(shape, dtype=dtype), subject.draw(shape, mask=Mask(causal=True), dtype=dtype)
        with torch.no_grad():
            want = call.run(attn)
            for row, kind in ((1, "redrawn"), (33, "a hundred times larger"), (64, "zero")):
                got = _change_future(call, row, 0, kind).run(attn)
                label = f"rows before {row} of 70 after the future became {kind}, {dtype}"
                subject.assert_alike(got[:, :, :row], want[:, :, :row], label)


@check(needs="cross", unless="mixes_queries")
def alignment(subject: Subject) -> None:
    """The last t queries alone give the last t rows; other queries give their rows with query_start."""
    n = 200
    shape = subject.shape(n)
    attn = subject.make(shape)
    for plain in subject.plain_masks:
        call = subject.draw(shape, mask=plain)
        want = call.run(attn)
        for t in (1, 33, 129):
            got = call.queries(slice(n - t, n)).run(attn)
            assert_close(got, want[:, :, n - t :], f"the last {t} of {n} queries, {describe(call.mask)}")
        for first, last in ((0, 40), (65, 150)):
            mask = Mask(causal=plain.causal, query_start=first)
            got = call.queries(slice(first, last)).under(mask).run(attn)
            assert_close(got, want[:, :, first:last], f"queries {first} to {last} of {n}, {describe(mask)}")


@check(needs="causal strictly_causal")
def prefix_law(subject: Subject) -> None:
    """A prefix of the output is the output of the prefix."""
    shape = subject.shape(300)
    call = subject.draw(shape, mask=Mask(causal=True))
    attn = subject.make(shape)
    want = call.run(attn)
    for t in CUTS:
        got = call.both(slice(None, t)).run(attn)
        assert_close(got, want[:, :, :t], f"output of the first {t} of 300 positions")


@check(needs="causal strictly_causal gradient")
def gradient_causality(subject: Subject) -> None:
    """Gradients of past rows by future inputs are exactly 0."""
    for call, start in _causal_calls(subject):
        n, m = call["q"].shape[2], call["k"].shape[2]
        attn = subject.make(subject.shape(n, m))
        for row, kind in ((1, "redrawn"), (64, "zero"), (100, "a hundred times larger")):
            _, grads = _change_future(call, row, start, kind).gradients(attn, slice(None, row))
            for name, side in call.sides.items():
                if name in grads:
                    future = grads[name][:, :, row if side == "query" else start + row :]
                    assert_zero(future, f"gradient of the rows before {row} by future {name}, N={n}, M={m}")
