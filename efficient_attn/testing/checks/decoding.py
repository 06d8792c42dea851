"""Steps give the same as the forward pass."""

from __future__ import annotations

from typing import Any

import torch

from ...contract.decode_state import state_bytes
from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Dims
from ...errors import UnsupportedError, UsageError
from ..check import check
from ..probing import takes_many
from ..subject import MAX_LEN, Call, Subject
from ..tensor_comparison import EPSILONS, Refusal, assert_close, assert_same

N = 150
SPLITS = ((1,) * 24, (130,) + (1,) * 20, (7, 64, 1, 1, 66, 1, 10), (150,), (2, 1, 3, 1, 140, 1, 2))


def _decode(
    subject: Subject, attn: Attention, call: Call, split: tuple[int, ...], max_len: int = N
) -> tuple[torch.Tensor, list[int]]:
    """All rows, position after position, and the state's bytes after each step."""
    first = call["q"]
    state = attn.init_state(first.shape[0], max_len, first.dtype, first.device)
    at, rows, sizes = 0, [], []
    for t in cuts(subject, split):
        out, state = call.both(slice(at, at + t)).step(attn, state)
        rows.append(out)
        sizes.append(state_bytes(state))
        at += t
    return torch.cat(rows, 2), sizes


def cuts(subject: Subject, split: tuple[int, ...]) -> tuple[int, ...]:
    """Single positions for a mechanism whose step accepts only one."""
    return split if takes_many(subject) else (1,) * sum(split)


@check(needs="decode")
def decode_equals_forward(subject: Subject) -> str | None:
    """However a sequence is cut into steps, its rows are those of the causal forward pass."""
    for kv_heads in {subject.heads, 2 if subject.traits.grouped else subject.heads}:
        for value_dim in (8, 5):
            shape = subject.shape(N, kv_heads=kv_heads, value_dim=value_dim)
            attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
            want = call.run(attn)
            for split in SPLITS:
                got, _ = _decode(subject, attn, call, split)
                label = f"steps of {split[:8]}, {shape.kv_heads} key-value heads, E={value_dim}"
                assert_close(got, want[:, :, : sum(split)], label)
    return None if takes_many(subject) else "its step accepts one position at a time: only single positions were tested"


@check(needs="decode")
def decode_dtypes(subject: Subject) -> None:
    """Decoding keeps the dtype, with an error within its tolerance."""
    shape = subject.shape(40)
    for dtype in subject.dtypes:
        attn, call = subject.make(shape, dtype=dtype), subject.draw(shape, mask=Mask(causal=True), dtype=dtype)
        got, _ = _decode(subject, attn, call, (30,) + (1,) * 10)
        assert got.dtype == dtype, f"{dtype} in, {got.dtype} out"
        want = call.change(lambda x: x.double()).run(subject.truth(shape, dtype))
        assert_close(got.double(), want, f"{dtype} compared with the float64 reference", tolerance=EPSILONS[dtype])


@check(needs="decode")
def state_size(subject: Subject) -> None:
    """The state is allocated once: its bytes are counted, more than 0, and the same after every step."""
    shape = subject.shape(N)
    attn, call = subject.make(shape), subject.draw(shape)
    before = state_bytes(attn.init_state(2, N, subject.dtype, subject.device))
    _, sizes = _decode(subject, attn, call, (3, *(1,) * 20))
    assert sizes[0] > 0, "the state has no tensors"
    assert before in (0, sizes[0]), f"{before} bytes when created, {sizes[0]} after the first step"
    assert min(sizes) == max(sizes), f"the state's bytes change from step to step: {sizes}"


@check(needs="decode")
def state_without_dims(subject: Subject) -> None:
    """A state created before the shapes are known takes them from the first step."""
    try:
        attn = subject.new(Dims(max_len=MAX_LEN)).to(subject.device, subject.dtype)
    except UsageError:
        return  # its creation needs dims, so that it always knows the shapes
    call = subject.draw(subject.shape(20), mask=Mask(causal=True))
    assert_close(_decode(subject, attn, call, (7, *(1,) * 13))[0], call.run(attn), "decoding without dims")


@check(needs="decode")
def absorb_then_step(subject: Subject) -> None:
    """A prompt absorbed by absorb gives the same state as one processed by step."""
    for kv_heads in {subject.heads, 2 if subject.traits.grouped else subject.heads}:
        shape = subject.shape(90, kv_heads=kv_heads)
        attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
        want = call.run(attn)
        for cut in (1, 33, 80):
            state = absorbed(
                subject, attn, call.both(slice(cut)), attn.init_state(2, 90, subject.dtype, subject.device)
            )
            size = 5 if takes_many(subject) else 1
            for t in range(cut, 90, size):
                out, state = call.both(slice(t, min(t + size, 90))).step(attn, state)
                assert_close(out, want[:, :, t : t + size], f"positions {t} on, after absorbing {cut}")


def absorbed(subject: Subject, attn: Attention, call: Call, state: Any) -> Any:
    """The state after absorbing all positions of a call."""
    keys = {n: x for n, x in call.tensors.items() if call.sides[n] == "key"}
    length = call["k"].shape[2]
    size = length if takes_many(subject) else 1
    for t in range(0, length, size):
        some = {name: x[:, :, t : t + size] for name, x in keys.items()}
        state = attn.absorb(some.pop("k"), some.pop("v", None), state, **some)
    return state


def not_bound(subject: Subject) -> str | None:
    """Why a longer sequence needs no larger state; None when it does."""
    attn = subject.make(subject.shape(4))
    small, large = (state_bytes(attn.init_state(1, m, subject.dtype, subject.device)) for m in (8, 16))
    return "its state does not depend on max_len" if small == large else None


@check(needs="decode", ask=lambda s: not_bound(s) if s.traits.decode else None)
def state_is_bounded(subject: Subject) -> None:
    """Steps beyond max_len raise `UsageError` instead of overwriting or growing."""
    attn, call = subject.make(subject.shape(9)), subject.draw(subject.shape(9))
    _decode(subject, attn, call, (8,), max_len=8)
    for split in ((9,), (8, 1), (1,) * 9):
        with Refusal(UsageError, f"steps of {split} into a state for 8"):
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
    """Steps and states of impossible sizes raise `UsageError`."""
    attn, call = subject.make(subject.shape(4)), subject.draw(subject.shape(4))
    for batch, max_len in ((0, 8), (2, 0)):
        with Refusal(UsageError, f"init_state(batch={batch}, max_len={max_len})"):
            attn.init_state(batch, max_len)
    state = attn.init_state(2, 8, subject.dtype, subject.device)
    with Refusal(UsageError, "a step with more keys than queries"):
        call.queries(slice(1)).step(attn, state)
    with Refusal(UsageError, "a step of no position"):
        call.both(slice(0)).step(attn, state)


def _decodes(subject: Subject) -> str | None:
    return "it decodes" if subject.traits.decode else None


@check(ask=_decodes)
def no_decoding(subject: Subject) -> None:
    """Without the decode trait, init_state raises `UnsupportedError`."""
    with Refusal(UnsupportedError, "init_state without the decode trait"):
        subject.make(subject.shape(4)).init_state(2, 8)


CHECKS = (
    decode_equals_forward,
    absorb_then_step,
    decode_dtypes,
    state_size,
    state_without_dims,
    state_is_bounded,
    step_leaves_inputs,
    wrong_steps,
    no_decoding,
)
