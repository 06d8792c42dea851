"""Padding, whose contents have no effect, rows without keys, which are zero, and packed sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise, product

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...errors import UnsupportedError, UsageError
from ..check import check
from ..mechanism_call import Call
from ..subject import Subject
from ..tensor_comparison import (
    assert_close,
    assert_finite,
    assert_same,
    assert_zero,
    describe,
    expect_error,
    find_largest_value,
)


def _garbage(subject: Subject) -> tuple[float, ...]:
    """A large value, the extreme values of the dtype, infinity and NaN, which buffers that nobody wrote may contain."""
    largest = torch.finfo(subject.dtype).max
    return min(1e30, largest / 4), -largest, largest, torch.inf, torch.nan


def _hidden(valid: Tensor | None) -> Tensor:
    """``[B, 1, L, 1]``: whether a position is padding. valid: ``[B, L]``, of a mask that pads."""
    assert valid is not None
    return ~valid[:, None, :, None]


def _broadcast(hidden: Tensor, x: Tensor) -> Tensor:
    """What `_hidden` returns, for a tensor ``[B, heads, L, ..]``."""
    return hidden.view(*hidden.shape[:3], *[1] * (x.ndim - 3))


def _fill_padding(call: Call, garbage: float, side: str) -> Call:
    """The call with garbage in the padding of its mask, in all tensors of one side."""
    n, m = call["q"].shape[2], call["k"].shape[2]
    hidden = _hidden(call.mask.query_valid(n) if side == "query" else call.mask.key_valid(m))
    chosen = {name: x for name, x in call.tensors.items() if call.sides[name] == side}
    return call.with_(**{name: x.masked_fill(_broadcast(hidden, x), garbage) for name, x in chosen.items()})


def _draw_padded(subject: Subject, m: int) -> Iterator[tuple[Call, Tensor]]:
    """Yield calls with padded keys, and what `_hidden` returns for these."""
    shape = subject.shape(m)
    call = subject.draw(shape)
    for causal in subject.causalities:
        lengths, holes = subject.lengths(m - 3, m // 3), subject.holes(shape)
        for key_lengths, key_mask in ((lengths, None), (None, holes), (lengths, holes)):
            mask = Mask(causal=causal, key_lengths=key_lengths, key_mask=key_mask)
            yield call.under(mask), _hidden(mask.key_valid(m))


@check(needs="padding")
def padding_garbage(subject: Subject) -> None:
    """The output is finite and the same whatever padded keys, values and further inputs hold, NaN included."""
    for m in (17, 150):
        attn = subject.make(subject.shape(m))
        for call, hidden in _draw_padded(subject, m):
            # padded keys may be queries too, whose rows are not compared
            ignored = hidden & call.shares_qk
            want = call.run(attn).masked_fill(ignored, 0)
            for garbage in _garbage(subject):
                got = _fill_padding(call, garbage, "key").run(attn).masked_fill(ignored, 0)
                assert_close(got, want, f"{garbage:.3g} in the padding, M={m}, {describe(call.mask)}")


@check()
def query_lengths(subject: Subject) -> None:
    """Rows from query_lengths on are exactly zero, and the contents of their queries have no effect."""
    n = 130
    attn, drawn = subject.prepare(n)
    for causal in subject.causalities:
        call = drawn.under(Mask(causal=causal, query_lengths=subject.lengths(n - 5, 40)))
        hidden, label = _hidden(call.mask.query_valid(n)), describe(call.mask)
        want = call.run(attn)
        assert_zero(want.masked_select(hidden), f"rows after the query lengths, {label}")
        if not subject.traits.mixes_queries:
            plain = call.under(Mask(causal=causal)).run(attn).masked_fill(hidden, 0)
            assert_close(want, plain, f"rows within the query lengths, {label}")
        if call.shares_qk:
            continue
        for garbage in _garbage(subject):
            filled = _fill_padding(call, garbage, "query")
            assert_close(filled.run(attn), want, f"{garbage:.3g} in padded queries, {label}")
        if subject.traits.gradient:
            for garbage in (_garbage(subject)[0], torch.nan):
                _, grads = _fill_padding(call, garbage, "query").gradients(attn)
                for name, grad in grads.items():
                    assert_finite(grad, f"gradient by {name}, {garbage:.3g} in padded queries, {label}")
                assert_zero(grads["q"].masked_select(hidden), f"gradient by padded queries, {label}")


def _calls_without_keys(subject: Subject) -> Iterator[tuple[Call, Tensor]]:
    """Yield calls with rows that see no key, with a mask ``[B, N]`` of these rows."""
    shape = subject.shape(40)
    call = subject.draw(shape)
    if subject.traits.padding:
        blind = torch.tensor([[False], [True]], device=subject.device).expand(2, 40)
        for causal in subject.causalities:
            yield call.under(Mask(causal=causal, key_lengths=subject.lengths(40, 0))), blind
        yield call.under(subject.mask(key_mask=subject.holes(shape) & ~blind)), blind
    if subject.traits.cross and subject.traits.causal:
        early = torch.arange(40, device=subject.device).expand(2, 40) < 23
        yield subject.draw(subject.shape(40, 17)).under(Mask(causal=True)), early
        yield call.under(Mask(causal=True, query_start=-23)), early


@check()
def blind_rows(subject: Subject) -> None:
    """A query without visible keys gives exactly zeros, and finite gradients."""
    for call, blind in _calls_without_keys(subject):
        n, m = call["q"].shape[2], call["k"].shape[2]
        attn = subject.make(subject.shape(n, m))
        label = f"N={n}, M={m}, {describe(call.mask)}"
        with torch.no_grad():
            plain = {"output": call.run(attn)}
        for results in (plain, subject.evaluate(call, attn)):
            for name, result in results.items():
                assert_finite(result, f"{name}, {label}")
            assert_zero(results["output"].masked_select(blind[:, None, :, None]), f"rows that see no key, {label}")


def find_trimmed_causalities(subject: Subject) -> tuple[bool, ...]:
    """The values of causal for which a padded row equals the shorter sequence. With strict causality this includes
    True in any case, because the past cannot depend on M."""
    trimmed, strict = subject.traits.padded_as_trimmed, subject.traits.strictly_causal
    return tuple(causal for causal in subject.causalities if trimmed or (causal and strict))


@check(
    needs="padding",
    skip_reason=lambda s: (
        None if find_trimmed_causalities(s) else "its result depends on the number of keys, padded ones included"
    ),
)
def padded_equals_trimmed(subject: Subject) -> None:
    """A padded row of a batch equals a separate call of the shorter sequence."""
    m = 150
    attn, call = subject.prepare(m, batch=3)
    all_queries = subject.traits.rows_alone
    cases = product(
        find_trimmed_causalities(subject), ((147, 70, 1), (m, 70, m), (90, 90, 90)), ("key_lengths", "key_mask")
    )
    for causal, lengths, field in cases:
        valid = subject.lengths(*lengths)
        keys = valid if field == "key_lengths" else torch.arange(m, device=subject.device) < valid[:, None]
        queries = None if all_queries else valid
        mask = replace(Mask(causal=causal, query_lengths=queries), **{field: keys})
        out = call.under(mask).run(attn)
        for b, length in enumerate(lengths):
            alone = call.change(lambda x, b=b: x[b : b + 1]).keys(slice(None, length))
            rows = slice(None) if all_queries else slice(None, length)
            want = alone.queries(rows).under(Mask(causal=causal, query_start=0 if all_queries else None)).run(attn)
            assert_close(out[b : b + 1, :, rows], want, f"row {b} padded from {length} to {m}, {describe(mask)}")


@check(needs="padding bidirectional cross padded_as_trimmed", unless="positional mixes_queries")
def holes_equal_removed(subject: Subject) -> None:
    """Hiding keys with key_mask is the same as removing them."""
    attn, call = subject.prepare(70)
    holes = subject.holes(subject.shape(70))
    out = call.under(Mask(key_mask=holes)).run(attn)
    for b in range(len(holes)):
        alone = call.change(lambda x, b=b: x[b : b + 1]).keys(holes[b].nonzero()[:, 0])
        assert_close(out[b : b + 1], alone.run(attn), f"row {b} with {int((~holes[b]).sum())} keys hidden")


@check(needs="padding gradient")
def padding_gradients(subject: Subject) -> None:
    """Garbage in padded keys, values and further inputs has gradients of 0, and does not affect other gradients."""
    m = 80
    attn = subject.make(subject.shape(m))
    for call, hidden in _draw_padded(subject, m):
        _, want = call.gradients(attn)
        # a query that is also a hidden key keeps its own row
        for garbage in (_garbage(subject)[0], *[torch.nan] * (not call.shares_qk)):
            _, got = _fill_padding(call, garbage, "key").gradients(attn)
            for name, grad in got.items():
                label = f"gradient by {name}, {garbage:.3g} in the padding, {describe(call.mask)}"
                assert_finite(grad, label)
                if not call.shares_qk:
                    assert_close(grad, want[name], label, summed=find_largest_value(want.values()))
                    if call.sides.get(name) == "key":
                        assert_zero(grad.masked_select(_broadcast(hidden, grad)), f"padded part of the {label}")


@check(needs="cross")
def nothing_at_all(subject: Subject) -> None:
    """Calls without keys give zeros; calls without queries or an empty batch give no rows. All have a backward pass."""
    attn = subject.make(subject.shape(5))
    for n, m, batch in ((5, 0, 2), (0, 5, 2), (5, 5, 0)):
        call = subject.draw(subject.shape(5, 5, batch=batch)).queries(slice(n)).keys(slice(m))
        out = call.run(attn)
        assert_same(out, call["q"].new_zeros(batch, subject.heads, n, 8), f"B={batch}, N={n}, M={m}")
        if subject.traits.gradient:
            call.gradients(attn)


# -- packed sequences -----------------------------------------------------------------------------------------------

# equal lengths next to each other and apart, 1, 0, odd and beyond a chunk; only equal ones; only different ones
PACKS = ((33, 1, 0, 70, 33, 1, 1, 0, 129), (40, 40, 40), (0, 5, 66))


def _no_packing(subject: Subject) -> str | None:
    return None if "cu_seqlens" in subject.attn.known_mask_fields else "it does not support cu_seqlens"


def _packed_calls(subject: Subject) -> Iterator[tuple[Call, list[slice]]]:
    """Yield packed calls, with the positions of each sequence."""
    for lengths in PACKS:
        call, ends = subject.draw(subject.shape(sum(lengths), batch=1)), list(accumulate(lengths, initial=0))
        for causal in subject.causalities:
            mask = Mask(causal=causal, cu_seqlens=subject.lengths(*ends))
            yield call.under(mask), [slice(start, end) for start, end in pairwise(ends)]


@check(skip_reason=_no_packing)
def packed_equals_alone(subject: Subject) -> None:
    """A packed sequence has the result and the gradients of a separate call; no gradient crosses a boundary."""
    for call, sequences in _packed_calls(subject):
        attn = subject.make(subject.shape(call["q"].shape[2], batch=1))
        out = call.run(attn)
        for at in sequences:
            alone = call.both(at).under(Mask(causal=call.mask.causal))
            label = f"the sequence at {at.start} to {at.stop}, {describe(call.mask)}"
            assert_close(out[:, :, at], alone.run(attn), label)
        for at in {s.stop - s.start: s for s in sequences}.values() if subject.traits.gradient else ():
            _check_gradients(attn, call, at)  # of one sequence of each length


def _check_gradients(attn: Attention, call: Call, at: slice) -> None:
    _, got = call.gradients(attn, run=lambda call, attn: call.run(attn)[:, :, at])
    _, want = call.both(at).under(Mask(causal=call.mask.causal)).gradients(attn)
    label = f"of the sequence at {at.start} to {at.stop}, {describe(call.mask)}"
    for name, grad in got.items():
        if name in call.sides:
            for others in (slice(at.start), slice(at.stop, None)):
                assert_zero(grad[:, :, others], f"gradient by other sequences' {name} {label}")
            grad = grad[:, :, at]
        summed = find_largest_value(want.values())
        assert_close(grad, want[name], f"gradient by {name} {label}", summed=summed)


@check(skip_reason=_no_packing)
def packed_misfits(subject: Subject) -> None:
    """Invalid cu_seqlens raise `UsageError`, and undeclared masks raise `UnsupportedError` also for packed calls."""
    attn, call = subject.make(subject.shape(6)), subject.draw(subject.shape(6, batch=1))
    for label, ends in (
        ("an end before N", (0, 3, 5)),
        ("an end after N", (0, 3, 7)),
        ("a start after 0", (1, 3, 6)),
        ("decreasing ends", (0, 4, 3, 6)),
        ("no sequence", (0,)),
    ):
        with expect_error(UsageError, label):
            call.under(subject.mask(cu_seqlens=subject.lengths(*ends))).run(attn)
    packed = subject.mask(cu_seqlens=subject.lengths(0, 2, 6))
    with expect_error(UsageError, "packed sequences in a batch of two"):
        subject.draw(subject.shape(6)).under(packed).run(attn)
    if subject.traits.cross:
        with expect_error(UsageError, "packed sequences with N < M"):
            call.queries(slice(5)).under(packed).run(attn)
    for causal in {False, True} - {*subject.causalities}:
        with expect_error(UnsupportedError, f"packed sequences with causal={causal}"):
            call.under(Mask(causal=causal, cu_seqlens=subject.lengths(0, 2, 6))).run(attn)
