"""Long decoding: beyond a state's capacity, over thousands of positions, and with several states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Shape
from ...errors import UnsupportedError
from ..check import check
from ..covering_design import cover
from ..probing import accepts_chunks, find_capacity, refuses_shape
from ..subject import Call, Subject
from ..tensor_comparison import TOLERANCES, assert_close
from .decoding import absorb, supported_sizes

MIN_POSITIONS = 300  # beyond every chunk size of the kernels
MAX_POSITIONS = 4200  # of tests that decode beyond twice a state's capacity
TOTAL, ABSORBED = 8200, 4099  # keys in total, and those that are absorbed first: an odd number


@check(needs="decode")
def decode_sizes(subject: Subject) -> None:
    """Steps equal the reference rows for all widths, batch sizes, numbers of heads and dtypes, beyond the capacity of
    a short rolling cache."""
    kv_heads, grouped = subject.attn.kv_heads, subject.traits.grouped
    heads = [(2 * kv_heads, kv_heads)] if kv_heads else [(2, 2), (3, 3), *[(2, 1), (6, 3)] * grouped]
    widths = [w for w in (64, 80, 13) if refuses_shape(subject, subject.shape(4, head_dim=w, value_dim=w)) is None]
    levels = {"width": widths, "value_width": (0, 24), "batch": (1, 4), "heads": heads, "dtype": subject.dtypes}
    levels |= {"first": (1, 33, 70)}
    for c in cover(levels, seed=subject.seed):
        sizes = {"batch": c["batch"], "head_dim": c["width"], "value_dim": c["value_width"] or c["width"]}
        shape = subject.shape(90, heads=c["heads"][0], kv_heads=c["heads"][1], **sizes)
        dtype = c["dtype"]
        attn, call = subject.make(shape, dtype=dtype), subject.draw(shape, dtype=dtype, mask=Mask(causal=True))
        with torch.no_grad():
            want = call.change(lambda x: x.double()).run(subject.truth(shape, dtype))
            state = attn.init_state(c["batch"], 90, dtype, subject.device)
            for at, out, _ in call.steps(attn, state, supported_sizes(subject, (c["first"], 1, 1, 5, 1, 11, 1))):
                label = f"{_describe(at)}, H={shape.heads} Hkv={shape.kv_heads} {sizes} {dtype}"
                assert_close(out.double(), want[:, :, at], label, tolerance=TOLERANCES[dtype])


def _draw_steps(subject: Subject, total: int, long: int) -> Iterator[tuple[int, bool]]:
    """Yield random sizes of steps, mostly one position, and whether these are absorbed instead of stepped."""
    random, at = Random(subject.seed), 0
    sizes = (1, 1, 1, 1, 1, 2, 3, 5, 7, 13, 33, long + 1 - long % 2, long + 2 + long % 2)
    while at < total:
        size = min(random.choice(sizes), total - at) if accepts_chunks(subject) else 1
        yield size, random.random() < 0.2
        at += size


def _small(subject: Subject, n: int) -> Shape:
    return subject.shape(n, batch=1, heads=2 * (subject.attn.kv_heads or 1))


def _new_state(subject: Subject, attn: Attention, positions: int) -> Any:
    return attn.init_state(1, positions, subject.dtype, subject.device)


@check(needs="decode")
def decode_past_two_laps(subject: Subject) -> str | None:
    """Rows beyond twice the state's capacity are correct, in single steps, and in random steps and absorbed chunks."""
    capacity = find_capacity(subject)
    n = max(MIN_POSITIONS, min(2 * (capacity.positions or 0) + 37, MAX_POSITIONS))
    shape = _small(subject, n)
    attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
    with torch.no_grad():
        want = call.run(attn)
        for name, steps in (
            ("single steps", [(1, False)] * n),
            (f"steps drawn with seed {subject.seed}", _draw_steps(subject, n, n // 3)),
        ):
            state, at = _new_state(subject, attn, n), 0
            for size, is_absorbed in steps:
                chunk = call.both(slice(at, at + size))
                if is_absorbed:
                    state = absorb(subject, attn, chunk, state)
                else:
                    out, state = chunk.step(attn, state)
                    label = f"positions {at} to {at + size - 1}, state capacity {capacity.positions or 'unlimited'}"
                    assert_close(out, want[:, :, at : at + size], f"{name}, {label}")
                at += size
    return f"{capacity.why}: decoded to {n} positions" if capacity.positions is None else None


@check(needs="decode")
def states_apart(subject: Subject) -> None:
    """Two states of one instance, stepped alternately, do not affect each other."""
    n = 40
    shape = _small(subject, n)
    attn = subject.make(shape)
    calls = [subject.draw(shape, mask=Mask(causal=True), seed=seed) for seed in range(2)]
    with torch.no_grad():
        want = [call.run(attn) for call in calls]
        sizes = supported_sizes(subject, (3, *(1,) * 5, 17, *(1,) * 15))
        steps = [call.steps(attn, _new_state(subject, attn, n), sizes) for call in calls]
        for alternate in zip(*steps, strict=True):
            for i, (at, out, _) in enumerate(alternate):
                assert_close(out, want[i][:, :, at], f"state {i} of two, stepped alternately, {_describe(at)}")


@check(needs="decode")
def absorb_into_filled(subject: Subject) -> None:
    """A state that absorbs keys after steps, few or beyond its capacity, continues correctly."""
    n = min(find_capacity(subject).positions or 64, MAX_POSITIONS) + 70
    shape = _small(subject, n)
    attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
    with torch.no_grad():
        want = call.run(attn)
        # the last plan steps over one position only, so that the first keys of a sparse pattern are absorbed too
        for sizes, count in (((n - 63, 1, 2), 33), ((n - 23, 1, 2), 1), ((2, 1, 2), n - 30), ((1,), n - 30)):
            state, stepped = _new_state(subject, attn, n), sum(sizes)
            *_, (_, _, state) = call.steps(attn, state, supported_sizes(subject, sizes))
            state = absorb(subject, attn, call.both(slice(stepped, stepped + count)), state)
            for at, out, _ in call.steps(attn, state, (1,) * 5, stepped + count):
                assert_close(out, want[:, :, at], f"{_describe(at)}, {stepped} stepped and {count} absorbed")


def _differentiate(rows: Tensor, leaves: Call) -> tuple[Tensor, ...]:
    tensors = list(leaves.tensors.values())
    return torch.autograd.grad(rows.sum(), tensors, allow_unused=True, materialize_grads=True)


@check(needs="decode gradient")
def gradients_through_steps(subject: Subject) -> str | None:
    """Gradients through steps equal those of the forward pass, or the backward pass raises an error; they are never
    silently incomplete."""
    n, refused = 12, ""
    shape = _small(subject, n)
    attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
    for split in dict.fromkeys(supported_sizes(subject, s) for s in ((n,), (5, 7), (1,) * n)):
        for last in (False, True):
            leaves, stepped = call.leaves(), call.leaves()
            want = _differentiate(leaves.run(attn)[:, :, n - 1 if last else 0 :], leaves)
            try:
                outputs = [out for _, out, _ in stepped.steps(attn, _new_state(subject, attn, n), split)]
                got = _differentiate(outputs[-1][:, :, -1] if last else torch.cat(outputs, 2), stepped)
            except RuntimeError as error:  # torch's own error for a buffer that was overwritten
                if not isinstance(error, UnsupportedError) and "inplace" not in str(error):
                    raise
                refused = refused or f"the backward pass through steps of {split[:3]} raises an error"
                continue
            rows = "the last row" if last else "all rows"
            for name, got_grad, want_grad in zip(leaves.tensors, got, want, strict=True):
                assert_close(got_grad, want_grad, f"gradient of {rows} by {name} through steps of {split[:8]}")
    return refused or None


@check(needs="decode")
def decode_far(subject: Subject) -> str | None:
    """In float32, rows after thousands of positions, up to the 8,200th, equal the forward pass."""
    in_chunks = accepts_chunks(subject)
    n, before = (TOTAL, ABSORBED) if in_chunks else (MIN_POSITIONS + 1, MIN_POSITIONS - 29)
    kv_heads = subject.attn.kv_heads or 1
    sizes = {"heads": 2 * kv_heads, "kv_heads": kv_heads if subject.traits.grouped else 2 * kv_heads}
    shape = subject.shape(n, batch=1, head_dim=64, value_dim=64, **sizes)
    attn, dtype = subject.make(shape, dtype=torch.float32), torch.float32
    call = subject.draw(shape, mask=Mask(causal=True), dtype=dtype)
    with torch.no_grad():
        rows = _make_row_reference(subject, shape, call, attn)
        state, at = attn.init_state(1, n, dtype, subject.device), 0
        for absorbed, sizes in ((before, (1, 3, 1)), (n - before - 11, (1,) * 6)):
            state = absorb(subject, attn, call.both(slice(at, at + absorbed)), state)
            at += absorbed
            steps = list(call.steps(attn, state, supported_sizes(subject, sizes), at))
            for positions, out, _ in steps:
                label = f"{_describe(positions)} of {n}"
                assert_close(out, rows(positions).float(), label, tolerance=TOLERANCES[dtype])
            state, at = steps[-1][2], at + sum(sizes)
    return None if in_chunks else f"its step accepts one position at a time: decoded to {n} positions"


def _make_row_reference(subject: Subject, shape: Shape, call: Call, attn: Attention) -> Callable[[slice], Tensor]:
    """A function that computes rows: with the reference if single rows can be computed, else from the whole output."""
    if not subject.traits.rows_alone:
        whole = call.run(attn)
        return lambda rows: whole[:, :, rows]
    oracle, exact = subject.truth(shape, call["q"].dtype), call.change(lambda x: x.double())
    return lambda rows: exact.keys(slice(rows.stop)).queries(rows).run(oracle)


def _describe(positions: slice) -> str:
    return f"positions {positions.start} to {positions.stop - 1}"
