"""Decode steps give the same rows as the forward pass."""

from __future__ import annotations

from typing import Any

import torch

from ...contract.decode_state import state_bytes
from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Dims
from ...errors import UnsupportedError, UsageError
from ..check import check
from ..probing import accepts_chunks
from ..subject import MAX_LEN, Call, Subject
from ..tensor_comparison import TOLERANCES, assert_close, assert_same, expect_error

N = 150
SPLITS = ((1,) * 24, (130,) + (1,) * 20, (7, 64, 1, 1, 66, 1, 10), (150,), (2, 1, 3, 1, 140, 1, 2))


def _decode(
    subject: Subject, attn: Attention, call: Call, split: tuple[int, ...], max_len: int = N
) -> tuple[torch.Tensor, list[int]]:
    """Decode in steps of these sizes. Return all rows, and the state's bytes after each step."""
    q = call["q"]
    state = attn.init_state(q.shape[0], max_len, q.dtype, q.device)
    steps = [(out, state_bytes(state)) for _, out, state in call.steps(attn, state, supported_sizes(subject, split))]
    return torch.cat([out for out, _ in steps], 2), [size for _, size in steps]


def supported_sizes(subject: Subject, split: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of steps, or single positions if a step of the mechanism accepts only one."""
    return split if accepts_chunks(subject) else (1,) * sum(split)


@check(needs="decode")
def decode_equals_forward(subject: Subject) -> str | None:
    """Rows equal those of the causal forward pass, however a sequence is split into steps."""
    for kv_heads in subject.kv_head_counts:
        for value_dim in (8, 5):
            shape = subject.shape(N, kv_heads=kv_heads, value_dim=value_dim)
            attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
            want = call.run(attn)
            for split in SPLITS:
                got, _ = _decode(subject, attn, call, split)
                label = f"steps of {split[:8]}, {shape.kv_heads} key-value heads, E={value_dim}"
                assert_close(got, want[:, :, : sum(split)], label)
    one_at_a_time = "its step accepts one position at a time: only single positions were tested"
    return None if accepts_chunks(subject) else one_at_a_time


@check(needs="decode")
def absorb_then_step(subject: Subject) -> None:
    """`absorb` leads to the same next outputs as `step`."""
    for kv_heads in subject.kv_head_counts:
        shape = subject.shape(90, kv_heads=kv_heads)
        attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
        want = call.run(attn)
        for length in (1, 33, 80):
            state = attn.init_state(2, 90, subject.dtype, subject.device)
            state = absorb(subject, attn, call.both(slice(length)), state)
            count, rest = divmod(90 - length, 5)
            sizes = (*(5,) * count, rest) if rest else (5,) * count
            for at, out, _ in call.steps(attn, state, supported_sizes(subject, sizes), length):
                assert_close(out, want[:, :, at], f"positions {at.start} on, after absorbing {length}")


def absorb(subject: Subject, attn: Attention, call: Call, state: Any) -> Any:
    """Absorb all positions of a call and return the state."""
    keys = {n: x for n, x in call.tensors.items() if call.sides[n] == "key"}
    length = call["k"].shape[2]
    size = length if accepts_chunks(subject) else 1
    for t in range(0, length, size):
        new = {name: x[:, :, t : t + size] for name, x in keys.items()}
        state = attn.absorb(new.pop("k"), new.pop("v", None), state, **new)
    return state


@check(needs="decode")
def decode_dtypes(subject: Subject) -> None:
    """Outputs of steps have the dtype of the inputs, and errors within its tolerance."""
    shape = subject.shape(40)
    for dtype in subject.dtypes:
        attn, call = subject.make(shape, dtype=dtype), subject.draw(shape, mask=Mask(causal=True), dtype=dtype)
        got, _ = _decode(subject, attn, call, (30,) + (1,) * 10)
        assert got.dtype == dtype, f"{dtype} in, {got.dtype} out"
        want = call.change(lambda x: x.double()).run(subject.truth(shape, dtype))
        assert_close(got.double(), want, f"{dtype} compared with the float64 reference", tolerance=TOLERANCES[dtype])


@check(needs="decode")
def state_size(subject: Subject) -> None:
    """The state is allocated once: its size is positive and the same after every step."""
    shape = subject.shape(N)
    attn, call = subject.make(shape), subject.draw(shape)
    before = state_bytes(attn.init_state(2, N, subject.dtype, subject.device))
    _, sizes = _decode(subject, attn, call, (3, *(1,) * 20))
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
    assert_close(_decode(subject, attn, call, (7, *(1,) * 13))[0], call.run(attn), "decoding without dims")


def unbounded_state(subject: Subject) -> str | None:
    """Why the state is not limited to max_len positions; None if it is."""
    attn = subject.make(subject.shape(4))
    small, large = (state_bytes(attn.init_state(1, m, subject.dtype, subject.device)) for m in (8, 16))
    return "its state does not depend on max_len" if small == large else None


@check(needs="decode", skip_reason=unbounded_state)
def state_is_bounded(subject: Subject) -> None:
    """Steps beyond max_len raise `UsageError`; the state neither overwrites positions nor grows."""
    attn, call = subject.make(subject.shape(9)), subject.draw(subject.shape(9))
    _decode(subject, attn, call, (8,), max_len=8)
    for split in ((9,), (8, 1), (1,) * 9):
        with expect_error(UsageError, f"steps of {split} with a state for 8 positions"):
            _decode(subject, attn, call, split, max_len=8)


@check(needs="decode")
def step_leaves_inputs(subject: Subject) -> None:
    """A step changes none of its inputs."""
    shape = subject.shape(12)
    attn, call = subject.make(shape), subject.draw(shape)
    copies = {name: x.clone() for name, x in call.tensors.items()}
    _decode(subject, attn, call, (6, *(1,) * 6))
    for name, x in copies.items():
        assert_same(call[name], x, f"{name} after decoding")


@check(needs="decode")
def wrong_steps(subject: Subject) -> None:
    """Invalid sizes of steps and states raise `UsageError`."""
    attn, call = subject.make(subject.shape(4)), subject.draw(subject.shape(4))
    for batch, max_len in ((0, 8), (2, 0)):
        with expect_error(UsageError, f"init_state(batch={batch}, max_len={max_len})"):
            attn.init_state(batch, max_len)
    state = attn.init_state(2, 8, subject.dtype, subject.device)
    with expect_error(UsageError, "a step with more keys than queries"):
        call.queries(slice(1)).step(attn, state)
    with expect_error(UsageError, "a step without positions"):
        call.both(slice(0)).step(attn, state)


@check(unless="decode")
def no_decoding(subject: Subject) -> None:
    """Without the decode trait, init_state raises `UnsupportedError`."""
    with expect_error(UnsupportedError, "init_state without the decode trait"):
        subject.make(subject.shape(4)).init_state(2, 8)
