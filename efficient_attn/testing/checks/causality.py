"""Future positions do not affect past ones, and a position has the same result in shorter and longer calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ..check import check
from ..mechanism_call import Call
from ..subject import Subject
from ..tensor_comparison import assert_close, assert_zero, describe

CUTS = (1, 16, 64, 129, 256)  # lengths of the past: inside the kernels' chunks and on their borders


def _prepare_causal(subject: Subject) -> Iterator[tuple[Attention, Call, int]]:
    """Yield instances with causal calls, and the position of their first query."""
    for n, m in [(300, 300)] + [(130, 200)] * subject.traits.cross:
        yield *subject.prepare(n, m, mask=Mask(causal=True)), m - n


# contents of the future, to detect code that branches on their size, sign or equality
FUTURES: dict[str, Callable[[Tensor], Tensor]] = {
    "a hundred times larger": lambda x: 100 * x,
    "zero": lambda x: 0 * x,
    "redrawn": lambda x: x,
    "positive": torch.abs,
    "negative": lambda x: -x.abs(),
    "all the same": torch.ones_like,
    "tiny": lambda x: 1e-6 * x,
}


def _change_future(call: Call, row: int, start: int, kind: str) -> Call:
    """The same call with other contents from a row on. Further inputs, which may have a range, are permuted."""
    generator = torch.Generator().manual_seed(row)
    further = {id(x) for name, x in call.tensors.items() if name not in ("q", "k", "v")}

    def change(x: Tensor, first: int) -> Tensor:
        if id(x) in further:
            return torch.cat([x[:, :, :first], x.flip(2)[:, :, first:]], 2)
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return torch.cat([x[:, :, :first], FUTURES[kind](noise).to(x)[:, :, first:]], 2)

    firsts = {"query": row, "key": start + row}
    changed = {id(x): change(x, firsts[call.sides[name]]) for name, x in call.tensors.items()}
    return call.with_(**{name: changed[id(x)] for name, x in call.tensors.items()})


def _check_past(
    subject: Subject, attn: Attention, call: Call, changes: Iterable[tuple[int, str]], *, start: int = 0
) -> None:
    """Change the future from rows on, to contents of some kinds, and compare the rows before."""
    graph = torch.is_grad_enabled()
    want = (call.leaves() if graph else call).run(attn)
    for row, kind in changes:
        changed = _change_future(call, row, start, kind)
        got = (changed.leaves() if graph else changed).run(attn)
        label = f"rows before {row} after the future became {kind}, N={want.shape[2]}, M={call['k'].shape[2]}"
        label = f"{label}, {want.dtype}, {'with' if graph else 'without'} gradients"
        subject.assert_alike(got[:, :, :row], want[:, :, :row], label)


@check(needs="causal strictly_causal")
def causality(subject: Subject) -> None:
    """Past rows are equal bit for bit whatever the future contains, with and without gradients, and in every dtype."""
    for attn, call, start in _prepare_causal(subject):
        cuts = [c for c in CUTS if c < call["q"].shape[2]]
        with torch.no_grad():
            changes = zip(cuts + [65] * len(FUTURES), cycle(FUTURES), strict=False)
            _check_past(subject, attn, call, changes, start=start)
        if subject.traits.gradient:
            _check_past(subject, attn, call, zip(cuts, cycle(FUTURES), strict=False), start=start)
    for dtype in subject.dtypes[1:] or subject.dtypes:
        attn, call = subject.prepare(70, mask=Mask(causal=True), dtype=dtype)
        with torch.no_grad():
            _check_past(subject, attn, call, ((1, "redrawn"), (33, "a hundred times larger"), (64, "zero")))


@check(needs="cross", unless="mixes_queries")
def alignment(subject: Subject) -> None:
    """The last t queries alone give the last t rows; other queries give their rows with query_start."""
    n = 200
    attn, drawn = subject.prepare(n)
    for call in map(drawn.under, subject.plain_masks):
        want = call.run(attn)
        for t in (1, 33, 129):
            got = call.queries(slice(n - t, n)).run(attn)
            assert_close(got, want[:, :, n - t :], f"the last {t} of {n} queries, {describe(call.mask)}")
        for first, last in ((0, 40), (65, 150)):
            mask = Mask(causal=call.mask.causal, query_start=first)
            got = call.queries(slice(first, last)).under(mask).run(attn)
            assert_close(got, want[:, :, first:last], f"queries {first} to {last} of {n}, {describe(mask)}")


@check(needs="causal strictly_causal")
def prefix_law(subject: Subject) -> None:
    """A prefix of the output is the output of the prefix."""
    attn, call = subject.prepare(300, mask=Mask(causal=True))
    want = call.run(attn)
    for t in CUTS:
        got = call.both(slice(None, t)).run(attn)
        assert_close(got, want[:, :, :t], f"output of the first {t} of 300 positions")


@check(needs="causal strictly_causal gradient")
def gradient_causality(subject: Subject) -> None:
    """Gradients of past rows by future inputs are exactly 0."""
    for attn, call, start in _prepare_causal(subject):
        for row, kind in ((1, "redrawn"), (64, "zero"), (100, "a hundred times larger")):
            _, grads = _change_future(call, row, start, kind).gradients(attn, slice(None, row))
            for name in call.tensors:
                future = grads[name][:, :, row if call.sides[name] == "query" else start + row :]
                assert_zero(future, f"gradient of the rows before {row} by future {name}, {list(grads['q'].shape)}")
