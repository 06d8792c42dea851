"""Decode steps give the same rows as the forward pass: in any split, beyond a state's capacity, and far."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from ...contract.decode_state import iterate_tensors, state_bytes
from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Dims
from ...errors import UnsupportedError, UsageError
from ..check import check
from ..covering_design import cover
from ..mechanism_call import Call
from ..probing import accepts_chunks, find_capacity, refuses_shape
from ..sequence_decoding import Decoding, new_state, start_decodings, supported_sizes
from ..subject import MAX_LEN, Subject
from ..tensor_comparison import assert_close, expect_error, find_largest_value

N = 150
SPLITS = ((1,) * 24, (130,) + (1,) * 20, (7, 64, 1, 1, 66, 1, 10), (150,), (2, 1, 3, 1, 140, 1, 2))
MIN_POSITIONS = 300  # beyond every chunk size of the kernels
MAX_POSITIONS = 4200  # of tests that decode beyond twice a state's capacity
TOTAL, ABSORBED = 8200, 4099  # keys in total, and those that are absorbed first: an odd number


@check(needs="decode")
def decode_equals_forward(subject: Subject) -> str | None:
    """Rows equal those of the causal forward pass, however a sequence is split into steps."""
    for kv_heads in subject.kv_head_counts:
        for value_dim in (8, 5):
            attn, call = subject.prepare(N, kv_heads=kv_heads, value_dim=value_dim, mask=Mask(causal=True))
            want = call.run(attn)
            for split in SPLITS:
                label = f"steps of {split[:8]}, {kv_heads} key-value heads, E={value_dim}"
                Decoding(subject, attn, call, want).step(split, label)
    one_at_a_time = "its step accepts one position at a time: only single positions were tested"
    return None if accepts_chunks(subject) else one_at_a_time


@check(needs="decode")
def absorb_then_step(subject: Subject) -> None:
    """`absorb` leads to the same next outputs as `step`."""
    for kv_heads in subject.kv_head_counts:
        attn, call = subject.prepare(90, kv_heads=kv_heads, mask=Mask(causal=True))
        want = call.run(attn)
        for length, sizes in ((1, (5,) * 17 + (4,)), (33, (5,) * 11 + (2,)), (80, (5, 5))):
            decoding = Decoding(subject, attn, call, want)
            decoding.absorb(length)
            decoding.step(sizes, f"after absorbing {length}")


@check(needs="decode")
def decode_sizes(subject: Subject) -> None:
    """Steps equal the reference rows for all widths, batch sizes, numbers of heads and dtypes, beyond the capacity of
    a short rolling cache."""
    kv_heads, grouped = subject.attn.kv_heads, subject.traits.grouped
    heads = [(2 * kv_heads, kv_heads)] if kv_heads else [(2, 2), (3, 3), *[(2, 1), (6, 3)] * grouped]
    widths = [w for w in (64, 80, 13) if refuses_shape(subject, subject.shape(4, head_dim=w, value_dim=w)) is None]
    levels: dict[str, Sequence[Any]] = {"width": widths, "value_width": (0, 24), "batch": (1, 4), "heads": heads}
    for c in cover(levels | {"dtype": subject.dtypes, "first": (1, 33, 70)}, seed=subject.seed):
        sizes = {"batch": c["batch"], "head_dim": c["width"], "value_dim": c["value_width"] or c["width"]}
        shape, dtype = subject.shape(90, heads=c["heads"][0], kv_heads=c["heads"][1], **sizes), c["dtype"]
        attn, call = subject.make(shape, dtype=dtype), subject.draw(shape, dtype=dtype, mask=Mask(causal=True))
        with torch.no_grad():
            want = call.change(Tensor.double).run(subject.truth(shape, dtype))
            label = f"H={shape.heads} Hkv={shape.kv_heads} {sizes} {dtype}"
            Decoding(subject, attn, call, want).step((c["first"], 1, 1, 5, 1, 11, 1), label)


@check(needs="decode")
def state_size(subject: Subject) -> None:
    """The state is allocated once: its size is positive and the same after every step. It is on the device that
    `init_state` names."""
    attn, call = subject.prepare(N)
    devices = {x.device.type for x in iterate_tensors(attn.init_state(2, N, subject.dtype, "meta"))}
    assert devices <= {"meta"}, f"a state for torch's meta device has tensors on {min(devices - {'meta'})}"
    state = new_state(attn, call)
    before, steps = state_bytes(state), call.steps(attn, state, supported_sizes(subject, (3, *(1,) * 20)))
    sizes = [state_bytes(state) for _, _, state in steps]
    assert sizes[0] > 0, "the state has no tensors"
    assert before in (0, sizes[0]), f"{before} bytes when created, {sizes[0]} after the first step"
    assert min(sizes) == max(sizes), f"the state's bytes change between steps: {sizes}"


@check(needs="decode")
def state_without_dims(subject: Subject) -> None:
    """A state that is created without known shapes takes them from the first step."""
    try:
        attn = subject.new(Dims(max_len=MAX_LEN)).to(subject.device, subject.dtype)
    except UsageError:
        return  # it cannot be created without dims
    call = subject.draw(subject.shape(20), mask=Mask(causal=True))
    Decoding(subject, attn, call, call.run(attn)).step((7, *(1,) * 13), "without dims")


def unbounded_state(subject: Subject) -> str | None:
    """Why the state is not limited to max_len positions; None if it is."""
    attn = subject.make(subject.shape(4))
    small, large = (state_bytes(attn.init_state(1, m, subject.dtype, subject.device)) for m in (8, 16))
    return "its state does not depend on max_len" if small == large else None


def _run_steps(subject: Subject, attn: Attention, call: Call, split: tuple[int, ...], max_len: int) -> None:
    for _ in call.steps(attn, new_state(attn, call, max_len), supported_sizes(subject, split)):
        pass


@check(needs="decode", skip_reason=unbounded_state)
def state_is_bounded(subject: Subject) -> None:
    """Steps beyond max_len raise `UsageError`; the state neither overwrites positions nor grows."""
    attn, call = subject.prepare(9)
    _run_steps(subject, attn, call, (8,), 8)
    for split in ((9,), (8, 1), (1,) * 9):
        with expect_error(UsageError, f"steps of {split} with a state for 8 positions"):
            _run_steps(subject, attn, call, split, 8)


@check(needs="decode")
def wrong_steps(subject: Subject) -> None:
    """Invalid sizes of steps and states raise `UsageError`."""
    attn, call = subject.prepare(4)
    for batch, max_len in ((0, 8), (2, 0)):
        with expect_error(UsageError, f"init_state(batch={batch}, max_len={max_len})"):
            attn.init_state(batch, max_len)
    for label, step in (("more keys than queries", call.queries(slice(1))), ("no positions", call.both(slice(0)))):
        with expect_error(UsageError, f"a step with {label}"):
            step.step(attn, new_state(attn, call, 8))


@check(needs="decode")
@torch.no_grad()
def decode_past_two_laps(subject: Subject) -> str | None:
    """Rows beyond twice the state's capacity are correct, in single steps, and in random steps and absorbed chunks."""
    capacity = find_capacity(subject)
    n = max(MIN_POSITIONS, min(2 * (capacity.positions or 0) + 37, MAX_POSITIONS))
    label = f"state capacity {capacity.positions or 'unlimited'}"
    single, decoding = start_decodings(subject, n, 0, 0)
    single.step((1,) * n, f"single steps, {label}")
    # mostly one position; a fifth of the steps are absorbed instead
    random, long = Random(subject.seed), n // 3
    sizes = (1, 1, 1, 1, 1, 2, 3, 5, 7, 13, 33, long + 1 - long % 2, long + 2 + long % 2)
    while decoding.at < n:
        size = min(random.choice(sizes), n - decoding.at) if accepts_chunks(subject) else 1
        if random.random() < 0.2:
            decoding.absorb(size)
        else:
            decoding.step((size,), f"steps drawn with seed {subject.seed}, {label}")
    return f"{capacity.why}: decoded to {n} positions" if capacity.positions is None else None


@check(needs="decode")
@torch.no_grad()
def states_apart(subject: Subject) -> None:
    """Two states of one instance, stepped alternately, do not affect each other."""
    decodings = start_decodings(subject, 40, 0, 1)
    for size in supported_sizes(subject, (3, *(1,) * 5, 17, *(1,) * 15)):
        for i, decoding in enumerate(decodings):
            decoding.step((size,), f"state {i} of two, stepped alternately")


@check(needs="decode")
@torch.no_grad()
def absorb_into_filled(subject: Subject) -> None:
    """A state that absorbs keys after steps, few or beyond its capacity, continues correctly."""
    n = min(find_capacity(subject).positions or 64, MAX_POSITIONS) + 70
    # the last plan steps over one position only, so that the first keys of a sparse pattern are absorbed too
    plans = (((n - 63, 1, 2), 33), ((n - 23, 1, 2), 1), ((2, 1, 2), n - 30), ((1,), n - 30))
    for decoding, (sizes, count) in zip(start_decodings(subject, n, 0, 0, 0, 0), plans, strict=True):
        label = f"{sum(sizes)} stepped and {count} absorbed"
        decoding.step(sizes, label)
        decoding.absorb(count)
        decoding.step((1,) * 5, label)


def _differentiate(rows: Tensor, leaves: Call) -> tuple[Tensor, ...]:
    tensors = list(leaves.tensors.values())
    return torch.autograd.grad(rows.sum(), tensors, allow_unused=True, materialize_grads=True)


@check(needs="decode gradient")
def gradients_through_steps(subject: Subject) -> str | None:
    """Gradients through steps equal those of the forward pass, or the backward pass raises an error; they are never
    silently incomplete."""
    n, refused = 12, ""
    (decoding,) = start_decodings(subject, n, 0)
    attn, call = decoding.attn, decoding.call
    for split in dict.fromkeys(supported_sizes(subject, s) for s in ((n,), (5, 7), (1,) * n)):
        for last in (False, True):
            leaves, stepped = call.leaves(), call.leaves()
            want = _differentiate(leaves.run(attn)[:, :, n - 1 if last else 0 :], leaves)
            try:
                outputs = [out for _, out, _ in stepped.steps(attn, new_state(attn, call), split)]
                got = _differentiate(outputs[-1][:, :, -1] if last else torch.cat(outputs, 2), stepped)
            except RuntimeError as error:  # torch's own error for a buffer that was overwritten
                if not isinstance(error, UnsupportedError) and "inplace" not in str(error):
                    raise
                refused = refused or f"the backward pass through steps of {split[:3]} raises an error"
                continue
            rows = "the last row" if last else "all rows"
            for name, got_grad, want_grad in zip(leaves.tensors, got, want, strict=True):
                label = f"gradient of {rows} by {name} through steps of {split[:8]}"
                assert_close(got_grad, want_grad, label, summed=find_largest_value(want))
    return refused or None


@check(needs="decode")
@torch.no_grad()
def decode_far(subject: Subject) -> str | None:
    """In float32, rows after thousands of positions, up to the 8,200th, equal the forward pass."""
    in_chunks, dtype = accepts_chunks(subject), torch.float32
    n, before = (TOTAL, ABSORBED) if in_chunks else (MIN_POSITIONS + 1, MIN_POSITIONS - 29)
    kv_heads = subject.attn.kv_heads or 1
    heads = {"heads": 2 * kv_heads, "kv_heads": kv_heads if subject.traits.grouped else 2 * kv_heads}
    shape = subject.shape(n, batch=1, head_dim=64, value_dim=64, **heads)
    attn, call = subject.make(shape, dtype=dtype), subject.draw(shape, mask=Mask(causal=True), dtype=dtype)
    exact = call.change(Tensor.double)
    # the reference, if it can compute single rows
    whole = torch.zeros_like(exact["q"]) if subject.traits.rows_alone else call.run(attn).double()
    decoding = Decoding(subject, attn, call, whole)
    for absorbed, sizes in ((before, (1, 3, 1)), (n - before - 11, (1,) * 6)):
        decoding.absorb(absorbed)
        if subject.traits.rows_alone:
            rows = slice(decoding.at, decoding.at + sum(sizes))
            whole[:, :, rows] = exact.keys(slice(rows.stop)).queries(rows).run(subject.truth(shape, dtype))
        decoding.step(sizes, f"of {n}")
    return None if in_chunks else f"its step accepts one position at a time: decoded to {n} positions"
