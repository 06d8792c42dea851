"""Decode states: left padding, branches and selected rows, batches, tensors of the caller, and the work of a step."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from ...contract.decode_state import select_state_rows
from ...contract.mask import Mask
from ...errors import UnsupportedError
from ..check import CheckFailure, check
from ..mechanism_call import Call
from ..probing import accepts_chunks, find_capacity
from ..sequence_decoding import Decoding, new_state, step_tolerance, supported_sizes
from ..subject import Subject
from ..tensor_comparison import GRADIENT_TOLERANCES, assert_close, assert_same, assert_zero
from .growth_claims import MAX_WORK, SLACK, WorkCounter, growth_exponent, not_countable

N, STARTS = 60, (0, 1, 7, 39, 44)
SPLITS = ((40, 1, 1, 3, 1, 1, 1, 12), (3, 1, 1, 1, 35, 1, 1, 17), (45, 5, 1, 9), (1,) * N)
CONTINUED = 6  # positions of a branch
BEAMS = (4, 0, 0, 3, 1, 2, 2)  # rows of a state that are selected, some of them twice
LONG = 1100  # positions of a batch
STEPS, EARLY, LATE = 32, 600, 2400  # steps whose work is counted, after this many positions
MAX_ROOM = 1.3  # times the work of a step with a state for four times as many positions


def no_padding(subject: Subject) -> str | None:
    """Why rows of a state cannot begin late; None if they can."""
    return None if subject.traits.padding else "it does not support padding"


@check(needs="decode", skip_reason=no_padding)
@torch.no_grad()
def row_starts(subject: Subject) -> None:
    """Rows that begin late (`init_state(starts=..)`) equal decoding without their padding, which may hold anything, and
    have outputs of 0 before their start."""
    kv_heads, starts = subject.kv_head_counts[-1], subject.lengths(*STARTS)
    shape = subject.shape(N, batch=len(STARTS), kv_heads=kv_heads)
    call, oracle = subject.draw(shape, mask=Mask(causal=True)), subject.oracle(shape)
    want = torch.zeros_like(call.run(oracle))
    for row, start in enumerate(STARTS):
        want[row, :, start:] = _select(call, [row]).both(slice(start, N)).run(oracle)[0]
    padding = torch.arange(N, device=subject.device) < starts[:, None]
    padded = call.change(lambda x: x.masked_fill(padding.view(len(STARTS), 1, N, *[1] * (x.ndim - 3)), torch.nan))
    for backend in subject.backends_for(subject.dtype) or (None,):
        attn = subject.make(shape, backend=backend)
        for split in SPLITS:
            label = f"{attn.backend}, starts={list(STARTS)}, steps of {split[:8]}"
            state = attn.init_state(len(STARTS), N, subject.dtype, subject.device, starts=starts)
            for at, out in Decoding(subject, attn, padded, want, state=state).step(split, label):
                for row, start in enumerate(STARTS):
                    assert_zero(out[row, :, : max(start - at.start, 0)], f"row {row} before its start {start}, {label}")
        label = f"{attn.backend}, starts={list(STARTS)}, after absorbing 42"
        state = attn.init_state(len(STARTS), N, subject.dtype, subject.device, starts=starts)
        decoding = Decoding(subject, attn, padded, want, state=state)
        decoding.absorb(42)
        with suppress(UnsupportedError):  # a state whose rows cannot be selected
            selected = select_state_rows(decoding.state, len(STARTS), BEAMS)
            rows = _select(padded, BEAMS), want[list(BEAMS)]
            Decoding(subject, attn, *rows, decoding.at, selected).step((1, 5), f"rows {BEAMS}, {label}")
        decoding.step((1, 1, 1, 5), label)


def _select(call: Call, rows: Sequence[int]) -> Call:
    """The call with these rows of the batch."""
    return call.change(lambda x: x[list(rows)])


@check(needs="decode")
@torch.no_grad()
def state_branches(subject: Subject) -> str | None:
    """A copied state (`copy.deepcopy`, `select_state_rows`) and its original continue differently without affecting
    each other."""
    prompt, batch = min(find_capacity(subject).positions or 64, LONG) + 7, 5
    n, kv_heads = prompt + CONTINUED, subject.attn.kv_heads or 1
    shape = subject.shape(n, batch=batch, heads=2 * kv_heads)
    attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
    decoding = Decoding(subject, attn, call, call.run(attn))
    decoding.absorb(prompt - 2)
    decoding.step((1, 1), "before a branch")
    branches, reason = {"the original state": decoding}, None
    for seed, (label, rows) in enumerate({"a deep copy": range(batch), f"rows {list(BEAMS)}": BEAMS}.items(), 1):
        try:
            state = copy.deepcopy(decoding.state) if seed == 1 else select_state_rows(decoding.state, batch, rows)
        except UnsupportedError as error:
            reason = f"its rows cannot be selected: {error}"
            continue
        other = _select(_continue_differently(call, subject.draw(shape, seed=seed), prompt), rows)
        branches[label] = Decoding(subject, attn, other, other.run(attn), prompt, state)
    for size in supported_sizes(subject, (1, 1, 3, 1)):
        for label, branch in branches.items():
            branch.step(
                (size,), f"{label}, {len(branches)} branches of one state in turns; a copy must share no tensor"
            )
    return reason


def _continue_differently(call: Call, other: Call, first: int) -> Call:
    """The call with the contents of another one from a position on."""
    tails = iter([other[name][:, :, first:] for name in {id(x): name for name, x in call.tensors.items()}.values()])
    return call.change(lambda x: torch.cat([x[:, :, :first], next(tails)], 2))


@check(needs="decode")
@torch.no_grad()
def independent_steps(subject: Subject) -> None:
    """In a step, a row of a batch has the result that it has alone, and a position that without the later ones, however
    large those are; the tolerance of a lossy state does not apply, as its loss is the same."""
    shape, tolerance = subject.shape(24, batch=3), GRADIENT_TOLERANCES[subject.dtype]
    attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
    sizes = supported_sizes(subject, (7, 1, 1, 5, 10))
    scales = torch.tensor([1.0, 100.0, 0.0], device=subject.device).to(subject.dtype)
    batch, alone = (
        torch.cat([out for _, out, _ in x.steps(attn, new_state(attn, x), sizes)], 2)
        for x in (call.scale(scales.view(3, 1, 1, 1)), _select(call, [0]))
    )
    assert_close(batch[:1], alone, "row 0 of 3, beside a row a hundred times larger", tolerance=tolerance)
    if not accepts_chunks(subject):
        return
    later = torch.ones(24, 1, device=subject.device, dtype=subject.dtype)
    later[9 + 2 :] = 100
    outputs = []
    for x in (call, call.scale(later)):
        state = x.both(slice(9)).absorb(attn, new_state(attn, x))
        outputs.append(x.both(slice(9, 14)).step(attn, state)[0][:, :, :2])
    label = "positions 9 and 10 in a step to 13, whose later positions are a hundred times larger"
    assert_close(outputs[1], outputs[0], label, tolerance=tolerance)


@check(needs="decode")
@torch.no_grad()
def step_leaves_inputs(subject: Subject) -> None:
    """A step changes none of its inputs, and the caller may overwrite them and its output afterwards; the next steps
    leave the output as it is."""
    attn, call = subject.prepare(24, mask=Mask(causal=True))
    want, state, at, outputs = call.run(attn), new_state(attn, call), 0, list[tuple[Tensor, Tensor]]()
    for size, absorbs in ((6, False), (1, False), (1, False), (4, True), (1, False), (1, True), (3, False), (1, False)):
        for n in supported_sizes(subject, (size,)):
            now, label = slice(at, at + n), f"positions {at} to {at + n - 1}"
            part, at = call.both(now).change(torch.clone), at + n
            if absorbs:
                state = part.absorb(attn, state)
            else:
                out, state = part.step(attn, state)
                text = f"{label}, after earlier inputs and outputs were overwritten: copy what the state keeps"
                assert_close(out, want[:, :, now], text, tolerance=step_tolerance(subject, out.dtype))
                for earlier, copied in outputs[-1:]:
                    assert_same(earlier, copied, f"an earlier output after {label}: return a new tensor from each step")
                    earlier.zero_()
                outputs.append((out, out.clone()))
            for name, x in part.tensors.items():
                assert_same(x, call[name][:, :, now], f"{name} after the step or absorb of {label}")
            part.change(lambda x: x.fill_(7))


@check(needs="decode")
@torch.no_grad()
def long_batches(subject: Subject) -> None:
    """Rows of batches of 5 and 9 with different contents are correct beyond 1,000 positions, also in half precision."""
    halves = [(dtype, 5) for dtype in subject.dtypes if dtype.itemsize < 4]
    for dtype, batch in ((subject.dtype, 9), *halves):
        shape = subject.shape(LONG, batch=batch, heads=2 * (subject.attn.kv_heads or 1))
        attn, call = subject.make(shape, dtype=dtype), subject.draw(shape, mask=Mask(causal=True), dtype=dtype)
        exact, truth = call.change(Tensor.double), subject.truth(shape, dtype)
        single_rows = subject.traits.rows_alone
        want = torch.zeros_like(exact["q"]) if single_rows else exact.run(truth)
        decoding, label = Decoding(subject, attn, call, want), f"B={batch}, {dtype}"
        for absorbed, sizes in ((399, (1, 1)), (400, (1, 1, 1, 1)), (260, (1, 1, 3, 1))):
            decoding.absorb(absorbed)
            rows = slice(decoding.at, decoding.at + sum(sizes))
            if single_rows:
                want[:, :, rows] = exact.keys(slice(rows.stop)).queries(rows).run(truth)
            decoding.step(sizes, label)


def _count_steps(subject: Subject, before: int, max_len: int, size: int = 1) -> tuple[float, float]:
    """The mean work of a position after others, and the declared work, both in multiply-adds. size: positions a step.

    Masks and indices do not count: they may cover all positions, but belong to all heads and widths.
    """
    heads = subject.attn.kv_heads or 1
    n = before + STEPS
    attn, call = subject.prepare(n, batch=1, heads=heads, kv_heads=heads, mask=Mask(causal=True), dtype=torch.float32)
    state = new_state(attn, call, max_len)
    for context in supported_sizes(subject, (before,)):
        state = call.both(slice(context)).absorb(attn, state)
    with WorkCounter(computed_only=True) as counter:
        for _ in call.steps(attn, state, (size,) * (STEPS // size), before):
            pass
    assert counter.work, "no work of a step was counted"
    pair_work = heads * (call["q"].shape[-1] + call.tensors.get("v", call["q"]).shape[-1])
    growth = attn.growth
    if growth.step is None:
        pairs = growth.cost(n, n, True) - growth.cost(before, before, True)
    else:
        pairs = sum(map(growth.step, range(before + 1, n + 1)))
    return counter.work / STEPS, pairs * pair_work / STEPS


@check(needs="decode", skip_reason=not_countable)
@torch.no_grad()
def step_growth(subject: Subject) -> None:
    """The work of a decode step grows no faster than the declared cost of a step, and does not depend on max_len."""
    room = LATE + STEPS
    early = 0.0
    for size in (STEPS, 1) if accepts_chunks(subject) else (1,):
        (early, early_cost), (late, late_cost) = (_count_steps(subject, n, room, size) for n in (EARLY, LATE))
        measured, declared = growth_exponent(early, late), growth_exponent(early_cost, late_cost)
        if late > MAX_WORK * late_cost and measured > declared + SLACK:
            raise CheckFailure(
                f"from position {EARLY} to {LATE} the work of a step of {size} positions grows as N^{measured:.2f}, "
                f"the declared cost as N^{declared:.2f}, and is {late / late_cost:.0f} times the cost: compute only "
                "the new positions in a step, or declare ea.Growth(step=..)"
            )
    roomy, _ = _count_steps(subject, EARLY, 4 * room)
    assert roomy <= MAX_ROOM * early, (
        f"after {EARLY} positions a step takes {roomy / early:.1f} times the work if the state has room for "
        f"{4 * room} positions instead of {room}: read the filled part of the state only"
    )
