"""Padding, whose contents have no effect, rows without keys, which are zero, and packed sequences."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...errors import UnsupportedError, UsageError
from ..check import check
from ..subject import Call, Subject
from ..tensor_comparison import assert_close, assert_finite, assert_same, assert_zero, describe, expect_error


def _garbage(subject: Subject) -> tuple[float, ...]:
    """A large value, and the extreme values of the dtype."""
    largest = torch.finfo(subject.dtype).max
    return min(1e30, largest / 4), -largest, largest


def _fill_padding(call: Call, valid: Tensor, garbage: float, side: str) -> Call:
    """The call with garbage where ``valid [B, L]`` is False, in q or in k and v; other inputs are unchanged."""
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
    """The output is finite and the same for all finite values of padded keys and values."""
    for m in (17, 150):
        shape = subject.shape(m)
        attn, call = subject.make(shape), subject.draw(shape)
        for mask in _padded_masks(subject, m):
            valid = mask.key_valid(m)
            assert valid is not None
            want = call.under(mask).run(attn)
            for garbage in _garbage(subject):
                got = _fill_padding(call.under(mask), valid, garbage, "key").run(attn)
                # padded keys may be queries too, whose rows are not compared
                rows = (valid if call.shares_qk else torch.ones_like(valid))[:, None, :, None]
                label = f"{garbage:.3g} in the padding, M={m}, {describe(mask)}"
                assert_close(torch.where(rows, got, 0), torch.where(rows, want, 0), label)


@check()
def query_lengths(subject: Subject) -> None:
    """Rows from query_lengths on are exactly zero, and the contents of their queries have no effect."""
    n = 130
    shape = subject.shape(n)
    attn, call = subject.make(shape), subject.draw(shape)
    for causal in subject.causalities:
        mask = Mask(causal=causal, query_lengths=subject.lengths(n - 5, 40))
        valid = mask.query_valid(n)
        assert valid is not None
        want = call.under(mask).run(attn)
        assert_zero(want.masked_select(~valid[:, None, :, None]), f"rows after the query lengths, {describe(mask)}")
        if not subject.traits.mixes_queries:
            plain = call.under(Mask(causal=causal)).run(attn).masked_fill(~valid[:, None, :, None], 0)
            assert_close(want, plain, f"rows within the query lengths, {describe(mask)}")
        if not call.shares_qk:
            _check_padded_queries(subject, call.under(mask), valid, want)


def _check_padded_queries(subject: Subject, call: Call, valid: Tensor, want: Tensor) -> None:
    attn = subject.make(subject.shape(call["q"].shape[2]))
    for garbage in _garbage(subject):
        filled = _fill_padding(call, valid, garbage, "query")
        assert_close(filled.run(attn), want, f"{garbage:.3g} in padded queries, {describe(call.mask)}")
    if subject.traits.gradient:
        _, grads = _fill_padding(call, valid, _garbage(subject)[0], "query").gradients(attn)
        for name, grad in grads.items():
            assert_finite(grad, f"gradient by {name}, garbage in padded queries")
        hidden = grads["q"].masked_select(~valid[:, None, :, None])
        assert_zero(hidden, f"gradient by padded queries, {describe(call.mask)}")


def _calls_without_keys(subject: Subject) -> Iterator[tuple[Call, Tensor]]:
    """Yield calls with rows that see no key, with a mask ``[B, N]`` of these rows."""
    shape = subject.shape(40)
    call = subject.draw(shape)
    blind = torch.zeros(2, 40, dtype=torch.bool, device=subject.device)
    if subject.traits.padding:
        blind[1] = True
        no_keys = subject.holes(shape)
        no_keys[1] = False
        for causal in subject.causalities:
            yield call.under(Mask(causal=causal, key_lengths=subject.lengths(40, 0))), blind
        yield call.under(subject.mask(key_mask=no_keys)), blind
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
            out = call.run(attn)
        assert_finite(out, f"output, {label}")
        assert_zero(out.masked_select(blind[:, None, :, None]), f"rows that see no key, {label}")
        if subject.traits.gradient:
            out, grads = call.gradients(attn)
            label = f"{label}, with gradients"
            assert_zero(out.masked_select(blind[:, None, :, None]), f"rows that see no key, {label}")
            for name, grad in grads.items():
                assert_finite(grad, f"gradient by {name}, {label}")


def _trimmed_causalities(subject: Subject) -> tuple[bool, ...]:
    """The values of causal for which a padded row equals the shorter sequence. With strict causality this includes
    True in any case, because the past cannot depend on M."""
    trimmed, strict = subject.traits.padded_as_trimmed, subject.traits.strictly_causal
    return tuple(causal for causal in subject.causalities if trimmed or (causal and strict))


@check(
    needs="padding",
    skip_reason=lambda s: (
        None if _trimmed_causalities(s) else "its result depends on the number of keys, padded ones included"
    ),
)
def padded_equals_trimmed(subject: Subject) -> None:
    """A padded row of a batch equals a separate call of the shorter sequence."""
    m = 150
    shape, lengths = subject.shape(m), (m - 3, 70)
    attn, call = subject.make(shape), subject.draw(shape)
    all_queries = subject.traits.rows_alone
    for causal in _trimmed_causalities(subject):
        valid = subject.lengths(*lengths)
        mask = Mask(causal=causal, key_lengths=valid, query_lengths=None if all_queries else valid)
        out = call.under(mask).run(attn)
        for b, length in enumerate(lengths):
            alone = call.change(lambda x, b=b: x[b : b + 1]).keys(slice(None, length))
            rows = slice(None) if all_queries else slice(None, length)
            want = alone.queries(rows).under(Mask(causal=causal, query_start=0 if all_queries else None)).run(attn)
            assert_close(out[b : b + 1, :, rows], want, f"row {b} padded from {length} to {m}, {describe(mask)}")


@check(needs="padding bidirectional cross padded_as_trimmed", unless="positional mixes_queries")
def holes_equal_removed(subject: Subject) -> None:
    """Hiding keys with key_mask is the same as removing them."""
    shape = subject.shape(70)
    attn, call, holes = subject.make(shape), subject.draw(shape), subject.holes(shape)
    out = call.under(Mask(key_mask=holes)).run(attn)
    for b in range(shape.batch):
        alone = call.change(lambda x, b=b: x[b : b + 1]).keys(holes[b].nonzero()[:, 0])
        assert_close(out[b : b + 1], alone.run(attn), f"row {b} with {int((~holes[b]).sum())} keys hidden")


@check(needs="padding gradient")
def padding_gradients(subject: Subject) -> None:
    """Garbage in padded keys and values has gradients of exactly 0, and does not affect other gradients."""
    m = 80
    shape = subject.shape(m)
    attn, call = subject.make(shape), subject.draw(shape)
    for mask in _padded_masks(subject, m):
        valid = mask.key_valid(m)
        assert valid is not None
        _, want = call.under(mask).gradients(attn)
        _, got = _fill_padding(call.under(mask), valid, _garbage(subject)[0], "key").gradients(attn)
        for name in got:
            assert_finite(got[name], f"gradient by {name}, garbage in the padding, {describe(mask)}")
            if not call.shares_qk:
                assert_close(got[name], want[name], f"gradient by {name}, garbage in the padding, {describe(mask)}")
        for name in set() if call.shares_qk else {"k", "v"} & set(call.tensors):
            hidden = got[name].masked_select(~valid[:, None, :, None])
            assert_zero(hidden, f"gradient by padded {name}, {describe(mask)}")


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
        if subject.traits.gradient:
            weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
            for at in {s.stop - s.start: s for s in sequences}.values():  # one of each length
                _check_gradients(attn, call, at, weight.to(out))


def _check_gradients(attn: Attention, call: Call, at: slice, weight: Tensor) -> None:
    _, got = call.gradients(attn, at, weight=weight)
    alone = call.both(at).under(Mask(causal=call.mask.causal))
    _, want = alone.gradients(attn, weight=weight[:, :, at])
    label = f"of the sequence at {at.start} to {at.stop}, {describe(call.mask)}"
    for name, grad in got.items():
        if name in call.sides:
            for others in (slice(at.start), slice(at.stop, None)):
                assert_zero(grad[:, :, others], f"gradient by other sequences' {name} {label}")
            grad = grad[:, :, at]
        assert_close(grad, want[name], f"gradient by {name} {label}")


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
