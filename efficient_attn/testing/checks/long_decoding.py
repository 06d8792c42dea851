"""Long decoding: beyond a state's capacity, over thousands of positions, with several states."""

from __future__ import annotations

from collections.abc import Iterator
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
from ..probing import find_room, refuses_shape, takes_many
from ..subject import Call, Subject
from ..tensor_comparison import EPSILONS, assert_close
from .decoding import absorbed, cuts

PLENTY = 300  # positions where a state has no capacity to run around: past every chunk of the kernels
MOST = 4200  # of any state's two laps
LONG, BEFORE = 8200, 4099  # keys in total; an odd number of them are absorbed first


def _drawn_cuts(subject: Subject, total: int, held: int) -> Iterator[tuple[int, bool]]:
    """Sizes of the next steps, mostly one position, and whether they are only absorbed."""
    order, at = Random(subject.seed), 0
    sizes = (1, 1, 1, 1, 1, 2, 3, 5, 7, 13, 33, held + 1 - held % 2, held + 2 + held % 2)
    while at < total:
        size = min(order.choice(sizes), total - at) if takes_many(subject) else 1
        yield size, order.random() < 0.2
        at += size


def _small(subject: Subject, n: int, **sizes: int) -> Shape:
    return subject.shape(n, batch=1, heads=2 * (subject.attn.kv_heads or 1), **sizes)


def _start(subject: Subject, attn: Attention, positions: int) -> Any:
    return attn.init_state(1, positions, subject.dtype, subject.device)


@check(needs="decode")
def decode_past_two_laps(subject: Subject) -> str | None:
    """Decoding is correct beyond twice the state's capacity, one by one, and in random steps with absorbing."""
    room = find_room(subject)
    laps = min(2 * room.positions + 37, MOST) if room.positions else 0
    n = max(PLENTY, laps)
    shape = _small(subject, n)
    attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
    with torch.no_grad():
        want = call.run(attn)
        for how in ("one by one", f"in cuts drawn by seed {subject.seed}"):
            state, at = _start(subject, attn, n), 0
            steps = ((1, False) for _ in range(n)) if how == "one by one" else _drawn_cuts(subject, n, n // 3)
            for size, silent in steps:
                part = call.both(slice(at, at + size))
                if silent:
                    state = absorbed(subject, attn, part, state)
                else:
                    out, state = part.step(attn, state)
                    label = f"{how}, positions {at} to {at + size - 1}, state capacity {room.positions or 'unlimited'}"
                    assert_close(out, want[:, :, at : at + size], label)
                at += size
    return f"{room.why}: decoded to {n} positions" if room.positions is None else None


@check(needs="decode")
def decode_sizes(subject: Subject) -> None:
    """Steps equal the reference rows at every width, batch, number of heads and dtype, beyond a short ring's
    capacity."""
    kv_heads, grouped = subject.attn.kv_heads, subject.traits.grouped
    heads = [(2 * kv_heads, kv_heads)] if kv_heads else [(2, 2), (3, 3), *[(2, 1), (6, 3)] * grouped]
    widths = [w for w in (64, 80, 13) if refuses_shape(subject, subject.shape(4, head_dim=w, value_dim=w)) is None]
    levels = {"width": widths, "value_width": (0, 24), "batch": (1, 4), "heads": heads, "dtype": subject.dtypes}
    levels |= {"first": (1, 33, 70)}
    for case in cover(levels, seed=subject.seed):
        c: Any = case
        sizes = {"batch": c["batch"], "head_dim": c["width"], "value_dim": c["value_width"] or c["width"]}
        shape = subject.shape(90, heads=c["heads"][0], kv_heads=c["heads"][1], **sizes)
        attn, call = (
            subject.make(shape, dtype=c["dtype"]),
            subject.draw(shape, dtype=c["dtype"], mask=Mask(causal=True)),
        )
        with torch.no_grad():
            want = call.change(lambda x: x.double()).run(subject.truth(shape, c["dtype"]))
            state, at = attn.init_state(c["batch"], 90, c["dtype"], subject.device), 0
            for size in cuts(subject, (c["first"], 1, 1, 5, 1, 11, 1)):
                out, state = call.both(slice(at, at + size)).step(attn, state)
                label = f"positions {at} to {at + size - 1}, H={shape.heads} Hkv={shape.kv_heads} {sizes} {c['dtype']}"
                assert_close(out.double(), want[:, :, at : at + size], label, tolerance=EPSILONS[c["dtype"]])
                at += size


@check(needs="decode")
def states_apart(subject: Subject) -> None:
    """Two states of one instance used alternately give separate results: nothing of them is stored on the module."""
    n = 40
    shape = _small(subject, n)
    attn = subject.make(shape)
    calls = [subject.draw(shape, mask=Mask(causal=True), seed=seed) for seed in range(2)]
    with torch.no_grad():
        want = [call.run(attn) for call in calls]
        states = [_start(subject, attn, n) for _ in calls]
        at = 0
        for size in cuts(subject, (3, *(1,) * 5, 17, *(1,) * 15)):
            for which, call in enumerate(calls):
                out, states[which] = call.both(slice(at, at + size)).step(attn, states[which])
                label = f"state {which} of two used alternately, positions {at} to {at + size - 1}"
                assert_close(out, want[which][:, :, at : at + size], label)
            at += size


@check(needs="decode")
def absorb_into_filled(subject: Subject) -> None:
    """A state that was stepped, once or beyond its capacity, absorbs more and continues correctly."""
    held = find_room(subject).positions or 64
    n = min(held, MOST) + 70
    shape = _small(subject, n)
    attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
    with torch.no_grad():
        want = call.run(attn)
        # after a single position, so that a pattern's first keys are absorbed too
        for sizes, more in (((n - 63, 1, 2), 33), ((n - 23, 1, 2), 1), ((2, 1, 2), n - 30), ((1,), n - 30)):
            state, at = _start(subject, attn, n), 0
            for size in cuts(subject, sizes):
                _, state = call.both(slice(at, at + size)).step(attn, state)
                at += size
            state = absorbed(subject, attn, call.both(slice(at, at + more)), state)
            at += more
            for t in range(at, at + 5):
                out, state = call.both(slice(t, t + 1)).step(attn, state)
                assert_close(out, want[:, :, t : t + 1], f"position {t}, {sum(sizes)} stepped and {more} absorbed")


def _step_gradients(subject: Subject, attn: Attention, call: Call, split: tuple[int, ...], last: bool) -> list[Tensor]:
    """Gradients of all rows, or of the last only, of all tensors, through the steps."""
    leaves = call.leaves()
    state, at, out = _start(subject, attn, call["q"].shape[2]), 0, []
    for size in split:
        row, state = leaves.both(slice(at, at + size)).step(attn, state)
        out.append(row)
        at += size
    total = out[-1][:, :, -1].sum() if last else torch.cat(out, 2).sum()
    grads = torch.autograd.grad(total, list(leaves.tensors.values()), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves.tensors.values(), strict=True)]


@check(needs="decode gradient")
def gradients_through_steps(subject: Subject) -> str | None:
    """Gradients through steps are those of the forward pass, or the backward pass raises an error; none is silently
    cut."""
    n, refused = 12, ""
    shape = _small(subject, n)
    attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
    for split in dict.fromkeys(cuts(subject, s) for s in ((n,), (5, 7), (1,) * n)):
        for last in (False, True):
            leaves = call.leaves()
            wanted = leaves.run(attn)[:, :, n - 1 if last else 0 :].sum()
            want = torch.autograd.grad(wanted, list(leaves.tensors.values()), allow_unused=True)
            try:
                grads = _step_gradients(subject, attn, call, split, last)
            except RuntimeError as error:  # torch's own error for a buffer that was overwritten
                if not isinstance(error, UnsupportedError) and "inplace" not in str(error):
                    raise
                refused = refused or f"the backward pass through steps of {split[:3]} raises an error"
                continue
            for name, got, g in zip(leaves.tensors, grads, want, strict=True):
                right = torch.zeros_like(got) if g is None else g
                which = "the last row" if last else "all rows"
                assert_close(got, right, f"gradient of {which} by {name} through steps of {split[:8]}")
    return refused or None


@check(needs="decode")
def decode_far(subject: Subject) -> str | None:
    """In float32, rows after thousands of positions, up to the 8,200th, equal the forward pass."""
    many = takes_many(subject)
    n, before = (LONG, BEFORE) if many else (PLENTY + 1, PLENTY - 29)
    kv_heads = subject.attn.kv_heads or 1
    sizes = {"heads": 2 * kv_heads, "kv_heads": kv_heads if subject.traits.grouped else 2 * kv_heads}
    shape = subject.shape(n, batch=1, head_dim=64, value_dim=64, **sizes)
    attn, dtype = subject.make(shape, dtype=torch.float32), torch.float32
    call = subject.draw(shape, mask=Mask(causal=True), dtype=dtype)
    alone = subject.traits.rows_alone
    with torch.no_grad():
        whole = None if alone else call.run(attn)
        oracle = subject.truth(shape, dtype) if alone else None
        state, at = attn.init_state(1, n, dtype, subject.device), 0
        for size, silent in (
            (before, True),
            *((s, False) for s in (1, 3, 1)),
            (n - before - 11, True),
            *[(1, False)] * 6,
        ):
            part = call.both(slice(at, at + size))
            if silent:
                state = absorbed(subject, attn, part, state)
            else:
                for cut in cuts(subject, (size,)):
                    out, state = call.both(slice(at, at + cut)).step(attn, state)
                    want = _rows(call, slice(at, at + cut), oracle) if oracle else whole[:, :, at : at + cut]  # pyright: ignore
                    assert_close(
                        out, want.float(), f"positions {at} to {at + cut - 1} of {n}", tolerance=EPSILONS[dtype]
                    )
                    at += cut
                continue
            at += size
    return None if many else f"its step accepts one position at a time: decoded to {n} positions"


def _rows(call: Call, place: slice, oracle: Attention) -> Tensor:
    """The reference rows of some queries, over all keys up to the last of them."""
    exact = call.keys(slice(place.stop)).queries(place).change(lambda x: x.double())
    return exact.run(oracle)


CHECKS = (
    decode_sizes,
    decode_past_two_laps,
    states_apart,
    absorb_into_filled,
    gradients_through_steps,
    decode_far,
)
