"""Padding: its contents never matter, and rows without keys are zero."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...contract.mask import Mask
from ..check import check
from ..subject import Call, Subject
from ..tensor_comparison import assert_close, assert_finite, assert_same, assert_zero, describe


def _garbage(subject: Subject) -> tuple[float, ...]:
    """Large, and the largest that there is."""
    most = torch.finfo(subject.dtype).max
    return min(1e30, most / 4), -most, most


def _spoiled(call: Call, valid: Tensor, garbage: float, side: str) -> Call:
    """The call with garbage wherever ``valid [B, L]`` is False: in q, or in k and v. Other inputs stay."""
    names = ("q",) if side == "query" else ("k", "v")
    hidden = ~valid[:, None, :, None]
    return call.with_(**{x: call[x].masked_fill(hidden, garbage) for x in names if x in call.tensors})


def _padded_masks(subject: Subject, m: int) -> Iterator[Mask]:
    shape = subject.shape(m)
    for causal in subject.causalities:
        lengths = subject.lengths(m - 3, m // 3)
        yield Mask(causal=causal, key_lengths=lengths)
        yield Mask(causal=causal, key_mask=subject.holes(shape))
        yield Mask(causal=causal, key_lengths=lengths, key_mask=subject.holes(shape))


@check(needs="padding")
def padding_garbage(subject: Subject) -> None:
    """Whatever finite values padded keys and values have, the output is the same, and finite."""
    for m in (17, 150):
        shape = subject.shape(m)
        attn, call = subject.make(shape), subject.draw(shape)
        for mask in _padded_masks(subject, m):
            valid = mask.key_valid(m)
            assert valid is not None
            want = call.under(mask).run(attn)
            for garbage in _garbage(subject):
                got = _spoiled(call.under(mask), valid, garbage, "key").run(attn)
                rows = valid if call.tied else torch.ones_like(valid)  # a query that is its own key has such values too
                label = f"{garbage:.3g} in the padding, M={m}, {describe(mask)}"
                keep = rows[:, None, :, None]
                assert_close(torch.where(keep, got, 0), torch.where(keep, want, 0), label)


@check(needs="padding gradient")
def padding_gradients(subject: Subject) -> None:
    """Garbage in the padding gets a gradient of exactly 0, and spoils no other."""
    m = 80
    shape = subject.shape(m)
    attn, call = subject.make(shape), subject.draw(shape)
    for mask in _padded_masks(subject, m):
        valid = mask.key_valid(m)
        assert valid is not None
        _, want = call.under(mask).gradients(attn)
        _, got = _spoiled(call.under(mask), valid, _garbage(subject)[0], "key").gradients(attn)
        for name in got:
            assert_finite(got[name], f"gradient by {name}, garbage in the padding, {describe(mask)}")
            if not call.tied:
                assert_close(got[name], want[name], f"gradient by {name}, garbage in the padding, {describe(mask)}")
        for name in {"k", "v"} & set(call.tensors):
            if not call.tied:
                hidden = got[name].masked_select(~valid[:, None, :, None])
                assert_zero(hidden, f"gradient by padded {name}, {describe(mask)}")


def _trimmed_causalities(subject: Subject) -> tuple[bool, ...]:
    """The masks with which a padded row equals the shorter sequence: causal ones do in any case, as the past cannot
    depend on M."""
    free = subject.traits.padded_as_trimmed
    return tuple(c for c in subject.causalities if free or (c and subject.traits.strictly_causal))


@check(
    needs="padding",
    ask=lambda s: None if _trimmed_causalities(s) else "the number of keys, padded ones included, matters to it",
)
def padded_equals_trimmed(subject: Subject) -> None:
    """A padded row of a batch equals the shorter sequence alone."""
    m = 150
    shape, lengths = subject.shape(m), (m - 3, 70)
    attn, call = subject.make(shape), subject.draw(shape)
    whole = subject.traits.rows_alone
    for causal in _trimmed_causalities(subject):
        lengths_mask = subject.lengths(*lengths)
        mask = Mask(causal=causal, key_lengths=lengths_mask, query_lengths=None if whole else lengths_mask)
        out = call.under(mask).run(attn)
        for b, length in enumerate(lengths):
            alone = call.change(lambda x, b=b: x[b : b + 1]).keys(slice(None, length))
            rows = slice(None) if whole else slice(None, length)
            short = alone.queries(rows).under(Mask(causal=causal, query_start=0 if whole else None))
            assert_close(
                out[b : b + 1, :, rows], short.run(attn), f"row {b} padded from {length} to {m}, {describe(mask)}"
            )


@check(needs="padding bidirectional cross padded_as_trimmed", unless="positional mixes_queries")
def holes_equal_removed(subject: Subject) -> None:
    """Keys that key_mask hides might as well not be there."""
    shape = subject.shape(70)
    attn, call, holes = subject.make(shape), subject.draw(shape), subject.holes(shape)
    out = call.under(Mask(key_mask=holes)).run(attn)
    for b in range(shape.batch):
        alone = call.change(lambda x, b=b: x[b : b + 1]).keys(holes[b].nonzero()[:, 0])
        assert_close(out[b : b + 1], alone.run(attn), f"row {b} with {int((~holes[b]).sum())} keys hidden")


@check()
def query_lengths(subject: Subject) -> None:
    """Rows from query_lengths on are exactly zero, and the contents of their queries affect nothing."""
    n = 130
    shape = subject.shape(n)
    attn, call = subject.make(shape), subject.draw(shape)
    for causal in subject.causalities:
        mask = Mask(causal=causal, query_lengths=subject.lengths(n - 5, 40))
        valid = mask.query_valid(n)
        assert valid is not None
        want = call.under(mask).run(attn)
        unwanted = want.masked_select(~valid[:, None, :, None])
        assert_zero(unwanted, f"rows after the query lengths, {describe(mask)}")
        if not subject.traits.mixes_queries:
            plain = call.under(Mask(causal=causal)).run(attn).masked_fill(~valid[:, None, :, None], 0)
            assert_close(want, plain, f"rows within the query lengths, {describe(mask)}")
        if not call.tied:
            _garbage_queries(subject, call.under(mask), valid, want)


def _garbage_queries(subject: Subject, call: Call, valid: Tensor, want: Tensor) -> None:
    attn = subject.make(subject.shape(call["q"].shape[2]))
    for garbage in _garbage(subject):
        bad = _spoiled(call, valid, garbage, "query")
        assert_close(bad.run(attn), want, f"{garbage:.3g} in unwanted queries, {describe(call.mask)}")
    if subject.traits.gradient:
        _, grads = _spoiled(call, valid, _garbage(subject)[0], "query").gradients(attn)
        for name, grad in grads.items():
            assert_finite(grad, f"gradient by {name}, garbage in unwanted queries")
        hidden = grads["q"].masked_select(~valid[:, None, :, None])
        assert_zero(hidden, f"gradient by unwanted queries, {describe(call.mask)}")


def _blind_calls(subject: Subject) -> Iterator[tuple[Call, Tensor]]:
    """Calls with rows that see no key, and which ``[B, N]`` those are."""
    shape = subject.shape(40)
    call = subject.draw(shape)
    blind = torch.zeros(2, 40, dtype=torch.bool, device=subject.device)
    if subject.traits.padding:
        blind[1] = True
        nothing = subject.holes(shape)
        nothing[1] = False
        for causal in subject.causalities:
            yield call.under(Mask(causal=causal, key_lengths=subject.lengths(40, 0))), blind
        yield call.under(subject.mask(key_mask=nothing)), blind
    if subject.traits.cross and subject.traits.causal:
        early = torch.arange(40, device=subject.device).expand(2, 40) < 23
        yield subject.draw(subject.shape(40, 17)).under(Mask(causal=True)), early
        yield call.under(Mask(causal=True, query_start=-23)), early


@check()
def blind_rows(subject: Subject) -> None:
    """A query without keys gives exactly zeros, and does not affect other gradients."""
    for call, blind in _blind_calls(subject):
        n, m = call["q"].shape[2], call["k"].shape[2]
        attn = subject.make(subject.shape(n, m))
        label = f"N={n}, M={m}, {describe(call.mask)}"
        with torch.no_grad():
            out = call.run(attn)
        assert_finite(out, f"output, {label}")
        assert_zero(out.masked_select(blind[:, None, :, None]), f"rows that see no key, {label}")
        if subject.traits.gradient:
            graph, grads = call.gradients(attn)
            assert_same(graph.masked_fill(~blind[:, None, :, None], 0), torch.zeros_like(graph), f"on a graph, {label}")
            for name, grad in grads.items():
                assert_finite(grad, f"gradient by {name}, {label}")


@check(needs="cross")
def nothing_at_all(subject: Subject) -> None:
    """No keys give zeros of the right shape, no queries and no batch give no rows, all with a backward pass."""
    attn = subject.make(subject.shape(5))
    for n, m, batch in ((5, 0, 2), (0, 5, 2), (5, 5, 0)):
        call = subject.draw(subject.shape(5, 5, batch=batch)).queries(slice(n)).keys(slice(m))
        out = call.run(attn)
        assert_same(out, call["q"].new_zeros(batch, subject.heads, n, 8), f"B={batch}, N={n}, M={m}")
        if subject.traits.gradient:
            call.gradients(attn)


CHECKS = (
    padding_garbage,
    query_lengths,
    blind_rows,
    padded_equals_trimmed,
    holes_equal_removed,
    padding_gradients,
    nothing_at_all,
)
