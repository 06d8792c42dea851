"""No part of the future affects the past, and positions mean the same whatever else is in the call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...contract.mask import Mask
from ..check import check
from ..subject import Call, Subject
from ..tensor_comparison import assert_close, assert_zero, describe

CUTS = (1, 16, 64, 129, 256)  # row counts that end inside chunks and on their borders


def _causal_calls(subject: Subject) -> Iterator[tuple[Call, int]]:
    """Causal calls, and the position of their first query."""
    for n, m in [(300, 300)] + [(130, 200)] * subject.traits.cross:
        shape = subject.shape(n, m)
        yield subject.draw(shape, mask=Mask(causal=True)), m - n


# contents of the future: a branch on its size, sign or equality would show
FUTURES: dict[str, Callable[[Tensor], Tensor]] = {
    "a hundred times larger": lambda x: 100 * x,
    "zero": lambda x: 0 * x,
    "drawn anew": lambda x: x,
    "positive": lambda x: x.abs(),
    "negative": lambda x: -x.abs(),
    "all the same": lambda x: torch.ones_like(x),
    "tiny": lambda x: 1e-6 * x,
}


def _another_future(call: Call, row: int, start: int, kind: str) -> Call:
    """The same call with new contents of some kind after a row."""
    generator = torch.Generator().manual_seed(row)

    def redrawn(first: int) -> Callable[[Tensor], Tensor]:
        def change(x: Tensor) -> Tensor:
            noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
            return torch.cat([x[:, :, :first], FUTURES[kind](noise).to(x)[:, :, first:]], 2)

        return change

    return call.change(redrawn(row), "query").change(redrawn(start + row), "key")


@check(needs="causal strictly_causal")
def causality(subject: Subject) -> None:
    """Whatever the future contains, every past row is the same to the last bit, with and without a graph."""
    for call, start in _causal_calls(subject):
        n, m = call["q"].shape[2], call["k"].shape[2]
        attn = subject.make(subject.shape(n, m))
        for graph in (False, True) if subject.traits.gradient else (False,):
            with torch.set_grad_enabled(graph):
                want = (call.leaves() if graph else call).run(attn)
                kinds = itertools.cycle(FUTURES)
                cuts = [c for c in CUTS if c < n] if graph else [c for c in CUTS if c < n] + [65] * len(FUTURES)
                for row, kind in zip(cuts, kinds, strict=False):
                    other = _another_future(call, row, start, kind)
                    got = (other.leaves() if graph else other).run(attn)
                    where = f"rows before {row} after the future became {kind}, N={n}, M={m}"
                    where = f"{where}, {'on a' if graph else 'no'} graph"
                    subject.assert_alike(got[:, :, :row], want[:, :, :row], where)


@check(needs="causal strictly_causal")
def causality_in_dtypes(subject: Subject) -> None:
    """In every dtype, whatever the future contains, every past row is the same to the last bit."""
    for dtype in subject.dtypes[1:] or subject.dtypes:
        shape = subject.shape(70)
        attn, call = subject.make(shape, dtype=dtype), subject.draw(shape, mask=Mask(causal=True), dtype=dtype)
        with torch.no_grad():
            want = call.run(attn)
            for row, kind in ((1, "drawn anew"), (33, "a hundred times larger"), (64, "zero")):
                got = _another_future(call, row, 0, kind).run(attn)
                where = f"rows before {row} of 70 after the future became {kind}, {dtype}"
                subject.assert_alike(got[:, :, :row], want[:, :, :row], where)


@check(needs="causal strictly_causal gradient")
def gradient_causality(subject: Subject) -> None:
    """The gradient of past rows by future inputs is exactly 0."""
    for call, start in _causal_calls(subject):
        n, m = call["q"].shape[2], call["k"].shape[2]
        attn = subject.make(subject.shape(n, m))
        for row in (1, 64, 100):
            kind = {1: "drawn anew", 64: "zero", 100: "a hundred times larger"}[row]
            _, grads = _another_future(call, row, start, kind).gradients(attn, slice(None, row))
            for name, side in call.sides.items():
                if name in grads:
                    future = grads[name][:, :, row if side == "query" else start + row :]
                    assert_zero(future, f"gradient of the rows before {row} by later {name}, N={n}, M={m}")


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


@check(needs="cross", unless="mixes_queries")
def alignment(subject: Subject) -> None:
    """The last t queries alone, over all keys, give the last t rows; any others do with query_start."""
    n = 200
    shape = subject.shape(n)
    attn = subject.make(shape)
    for causal in subject.causalities:
        call = subject.draw(shape, mask=Mask(causal=causal))
        want = call.run(attn)
        for t in (1, 33, 129):
            got = call.queries(slice(n - t, n)).run(attn)
            assert_close(got, want[:, :, n - t :], f"the last {t} of {n} queries, {describe(call.mask)}")
        for first, last in ((0, 40), (65, 150)):
            mask = Mask(causal=causal, query_start=first)
            got = call.queries(slice(first, last)).under(mask).run(attn)
            assert_close(got, want[:, :, first:last], f"queries {first} to {last} of {n}, {describe(mask)}")


CHECKS = (causality, causality_in_dtypes, alignment, prefix_law, gradient_causality)
